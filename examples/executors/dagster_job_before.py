"""Does what `dagster_job.py` does, without the client."""

import json
import os
import sys
import time

import httpx
from dagster import DynamicOut, DynamicOutput, RetryPolicy, RetryRequested, job, op

http = httpx.Client(
    base_url=os.environ["TRUNKLINE_URL"],
    headers={"Authorization": f"Bearer {os.environ['TRUNKLINE_KEY']}"},
)
OF_THE_WORKER = RetryPolicy(max_retries=3, delay=1)


class ToolFailed(Exception):
    pass


class OutcomeUnknown(Exception):
    pass


def key_of(context, what):
    return f"{context.run.root_run_id or context.run.run_id}-{what}"


def request(method, path, **options):
    """Makes a request; has Dagster make it again later if that can help."""
    try:
        response = http.request(method, path, timeout=90, **options)
    except httpx.TransportError as error:
        raise RetryRequested(max_retries=60, seconds_to_wait=1) from error
    if response.status_code < 400:
        return response
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if problem.get("retryable"):
        pause = problem.get("retry_after_ms", 1000) / 1000
        raise RetryRequested(max_retries=60, seconds_to_wait=pause)
    message = f"{problem.get('code', response.status_code)}: {problem.get('detail', '')}"
    if problem.get("executed") in ("no", "yes"):
        raise RuntimeError(message)
    raise OutcomeUnknown(message)


def text_of(result):
    text = "\n".join(part.get("text", "") for part in result["content"])
    if result.get("isError"):
        raise ToolFailed(text)
    return text


def call(tool, arguments, key):
    headers = {"Idempotency-Key": key}
    path = f"/v1/servers/ledger/tools/{tool}"
    return text_of(request("POST", path, json=arguments, headers=headers).json())


def submit(tool, arguments, key):
    headers = {"Idempotency-Key": key, "Prefer": "respond-async"}
    path = f"/v1/servers/ledger/tools/{tool}"
    response = request("POST", path, json=arguments, headers=headers)
    return response.headers["trunkline-call-id"]


def wait(call_id, timeout):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        response = request("GET", f"/v1/calls/{call_id}/result", params={"wait": 30})
        if response.status_code == 200:
            return text_of(response.json())
        time.sleep(1)
    raise TimeoutError(f"the call {call_id} is not over yet")


@op(out=DynamicOut(str), config_schema=[str])
def entries(context):
    for entry in context.op_config:
        yield DynamicOutput(entry, mapping_key=entry.replace("-", "_"))


@op(retry_policy=OF_THE_WORKER)
def post(context, entry):
    try:
        call("post", {"entry": entry}, key_of(context, entry))
    except ToolFailed:
        return entry, "failed"
    except OutcomeUnknown:
        return entry, "unknown"
    return entry, "booked"


@op(retry_policy=OF_THE_WORKER)
def begin_close(context, outcomes):
    return submit("close", {"ms": 3000}, key_of(context, "close"))


@op(retry_policy=OF_THE_WORKER)
def close(context, outcomes, call_id):
    return dict(outcomes) | {"close": wait(call_id, 600)}


@job
def month_end():
    outcomes = entries().map(post).collect()
    close(outcomes, begin_close(outcomes))


if __name__ == "__main__":
    config = {"ops": {"entries": {"config": sys.argv[1:]}}}
    print(json.dumps(month_end.execute_in_process(config).output_for_node("close")))
