"""Runs a program whose worker fails once: the answer to one of its calls is lost, in a way that no
HTTP client retries."""

import runpy
import sys

import httpx

answers = 0


def fail_once(response):
    global answers
    if "idempotency-key" in response.request.headers and response.status_code == 200:
        answers += 1
        if answers == 3:
            raise RuntimeError("the worker failed")


def losing(send):
    def patched(self, request, **options):
        response = send(self, request, **options)
        fail_once(response)
        return response

    return patched


def losing_async(send):
    async def patched(self, request, **options):
        response = await send(self, request, **options)
        fail_once(response)
        return response

    return patched


httpx.Client.send = losing(httpx.Client.send)
httpx.AsyncClient.send = losing_async(httpx.AsyncClient.send)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
