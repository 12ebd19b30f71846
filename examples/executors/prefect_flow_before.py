"""Does what `prefect_flow.py` does, without the client."""

import json
import os
import sys
import time

import httpx
from prefect import flow, task
from prefect.runtime import flow_run

http = httpx.Client(
    base_url=os.environ["TRUNKLINE_URL"],
    headers={"Authorization": f"Bearer {os.environ['TRUNKLINE_KEY']}"},
)


class GatewayError(Exception):
    def __init__(self, message, executed):
        super().__init__(message)
        self.executed = executed


class ToolFailed(GatewayError):
    pass


def request(method, path, **options):
    deadline = time.monotonic() + 60
    pause = 0.2
    while True:
        wait = pause
        try:
            response = http.request(method, path, timeout=90, **options)
        except httpx.TransportError as error:
            failure = GatewayError(str(error), "unknown")
        else:
            if response.status_code < 400:
                return response
            try:
                problem = response.json()
            except ValueError:
                problem = {}
            message = f"{problem.get('code', response.status_code)}: {problem.get('detail', '')}"
            failure = GatewayError(message, problem.get("executed", "unknown"))
            if not problem.get("retryable"):
                raise failure
            wait += problem.get("retry_after_ms", 0) / 1000
        if time.monotonic() + wait > deadline:
            raise failure
        time.sleep(wait)
        pause = min(pause * 2, 10)


def text_of(result):
    text = "\n".join(part.get("text", "") for part in result["content"])
    if result.get("isError"):
        raise ToolFailed(text, "yes")
    return text


def call(tool, arguments, key):
    headers = {"Idempotency-Key": key}
    path = f"/v1/servers/ledger/tools/{tool}"
    return text_of(request("POST", path, json=arguments, headers=headers).json())


def call_and_wait(tool, arguments, key, timeout):
    headers = {"Idempotency-Key": key, "Prefer": "respond-async"}
    path = f"/v1/servers/ledger/tools/{tool}"
    response = request("POST", path, json=arguments, headers=headers)
    call_id = response.headers["trunkline-call-id"]
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        response = request("GET", f"/v1/calls/{call_id}/result", params={"wait": 30})
        if response.status_code == 200:
            return text_of(response.json())
        time.sleep(1)
    raise TimeoutError(f"the call {call_id} is not over yet")


def is_of_the_worker(task, run, state):
    return not isinstance(state.result(raise_on_failure=False), GatewayError)


@task(retries=3, retry_delay_seconds=1, retry_condition_fn=is_of_the_worker)
def post(entry):
    return call("post", {"entry": entry}, f"{flow_run.id}-{entry}")


@task(retries=3, retry_delay_seconds=1, retry_condition_fn=is_of_the_worker)
def close():
    return call_and_wait("close", {"ms": 3000}, f"{flow_run.id}-close", 600)


@flow
def month_end(entries):
    posted = [(entry, post.submit(entry)) for entry in entries]
    outcomes = {}
    for entry, future in posted:
        match future.result(raise_on_failure=False):
            case ToolFailed():
                outcomes[entry] = "failed"
            case GatewayError(executed="unknown"):
                outcomes[entry] = "unknown"
            case Exception() as error:
                raise error
            case _:
                outcomes[entry] = "booked"
    return outcomes | {"close": close()}


if __name__ == "__main__":
    print(json.dumps(month_end(sys.argv[1:])))
