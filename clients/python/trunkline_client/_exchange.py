"""Requests, answers and retries, without any input or output.

An exchange is a generator: it yields requests to send and pauses to make, is sent responses, and
returns the outcome. `Client` and `AsyncClient` only carry out what it yields.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass
from typing import Any, Generator, Mapping, TypeVar, Union
from urllib.parse import quote

import httpx

from ._errors import GatewayUnreachable, ProblemError
from ._types import Call, KeptCall, ToolResult, milliseconds

# The longest that one request waits for the result of a kept call, in seconds.
WAIT_MAX = 30
# The time that a response may take beyond the call's own.
GRACE = 10.0


@dataclass(frozen=True)
class RetryPolicy:
    """Retries only what cannot run twice, at most `attempts` times, for at most `budget` seconds."""

    attempts: int = 6
    budget: float = 60.0
    first_pause: float = 0.2
    longest_pause: float = 10.0

    def pause(self, attempt: int, asked: float | None) -> float:
        """Returns the time before the next attempt: what the gateway asked for, or longer."""
        backoff = min(self.longest_pause, self.first_pause * 2.0 ** (attempt - 1))
        return (asked or 0.0) + float(random.uniform(0.5, 1.0)) * backoff


@dataclass(frozen=True)
class Send:
    """A request to send. `timeout` is for the whole response."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any = None
    params: Mapping[str, str] | None = None
    timeout: float | None = 60.0


@dataclass(frozen=True)
class Pause:
    seconds: float


# A response, or the reason why there is none.
Received = Union[httpx.Response, httpx.TransportError, None]
T = TypeVar("T")
Exchange = Generator[Union[Send, Pause], Received, T]


def new_key() -> str:
    return uuid.uuid4().hex


def tool_path(server: str, tool: str) -> str:
    return f"/v1/servers/{quote(server, safe='')}/tools/{quote(tool, safe='')}"


def headers_of(call: Call, key: str | None) -> dict[str, str]:
    headers: dict[str, str] = {}
    if key is not None:
        headers["Idempotency-Key"] = key
    if call.timeout is not None:
        headers["Trunkline-Timeout-Ms"] = str(milliseconds(call.timeout))
    if call.labels:
        headers["Trunkline-Labels"] = ",".join(f"{k}={v}" for k, v in call.labels.items())
    if call.callback is not None:
        headers["Trunkline-Callback"] = call.callback
    return headers


@dataclass
class Retries:
    """Counts the attempts of one request. With `is_safe`, also a request that the gateway may have
    received is sent again: it cannot take effect twice."""

    policy: RetryPolicy
    is_safe: bool
    attempt: int = 0
    waited: float = 0.0

    def pause(self, failure: httpx.TransportError | ProblemError) -> float:
        """Returns the time before the next attempt. If there is none, raises what the caller is to
        be told."""
        self.attempt += 1
        if isinstance(failure, ProblemError):
            may_retry, asked = failure.retryable, failure.retry_after
            error: Exception = failure
        else:
            was_sent = not isinstance(failure, (httpx.ConnectError, httpx.ConnectTimeout))
            may_retry, asked = self.is_safe or not was_sent, None
            reason = str(failure) or type(failure).__name__
            error = GatewayUnreachable(reason, "unknown" if was_sent else "no")
            error.__cause__ = failure
        pause = self.policy.pause(self.attempt, asked)
        if (
            not may_retry
            or self.attempt >= self.policy.attempts
            or self.waited + pause > self.policy.budget
        ):
            raise error
        self.waited += pause
        return pause


def request(send: Send, policy: RetryPolicy, is_safe: bool) -> Exchange[httpx.Response]:
    """Sends until there is an answer that no retry can better."""
    retries = Retries(policy, is_safe)
    while True:
        received = yield send
        if isinstance(received, httpx.Response):
            error = problem_of(received)
            if error is None:
                return received
            yield Pause(retries.pause(error))
        elif received is not None:
            yield Pause(retries.pause(received))


def problem_of(response: httpx.Response) -> ProblemError | None:
    if response.status_code < 400:
        return None
    call_id = response.headers.get("trunkline-call-id")
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or "code" not in problem:
        # A proxy's own answer.
        detail = f"the status {response.status_code} without a problem"
        problem = {"code": "unknown", "status": response.status_code, "detail": detail}
    error = ProblemError.of(problem, call_id)
    asked = response.headers.get("retry-after", "")
    if error.retry_after is None and asked.isdigit():
        error.retry_after = float(asked)
    return error


def call(call: Call, policy: RetryPolicy, *, keyed: bool) -> Exchange[ToolResult]:
    key = call.key or (new_key() if keyed else None)
    timeout = None if call.timeout is None else call.timeout + GRACE
    send = Send("POST", tool_path(call.server, call.tool), headers_of(call, key),
                dict(call.arguments), timeout=timeout)
    response = yield from request(send, policy, is_safe=key is not None)
    return result_of(response)


def submit(call: Call, policy: RetryPolicy) -> Exchange[KeptCall]:
    headers = headers_of(call, call.key or new_key()) | {"Prefer": "respond-async"}
    send = Send("POST", tool_path(call.server, call.tool), headers, dict(call.arguments))
    response = yield from request(send, policy, is_safe=True)
    if response.status_code == 202:
        return KeptCall.of(response.json())
    # A retry found the call over.
    raw = {"id": response.headers["trunkline-call-id"], "state": "ended"}
    return KeptCall.of(raw)


def wait(call_id: str, policy: RetryPolicy, timeout: float | None) -> Exchange[ToolResult]:
    """Waits for the result of a kept call, in requests of at most `WAIT_MAX` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = WAIT_MAX if deadline is None else max(0.0, deadline - time.monotonic())
        seconds = min(WAIT_MAX, int(left))
        send = Send("GET", f"/v1/calls/{quote(call_id, safe='')}/result", {},
                    params={"wait": str(seconds)}, timeout=seconds + GRACE)
        response = yield from request(send, policy, is_safe=True)
        if response.status_code != 202:
            return result_of(response)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"the call {call_id} is not over yet")
        # A gateway that shuts down answers before the time is over.
        yield Pause(min(1.0, left))


def get(path: str, policy: RetryPolicy, params: Mapping[str, str] | None = None) -> Exchange[Any]:
    response = yield from request(Send("GET", path, {}, params=params), policy, is_safe=True)
    return response.json()


def cancel(call_id: str, policy: RetryPolicy) -> Exchange[KeptCall]:
    send = Send("DELETE", f"/v1/calls/{quote(call_id, safe='')}", {})
    response = yield from request(send, policy, is_safe=True)
    return KeptCall.of(response.json())


def batch(body: Mapping[str, Any], policy: RetryPolicy, key: str | None) -> Exchange[Any]:
    # With a key, a batch that is sent again runs only what is missing.
    headers = {"Idempotency-Key": key or new_key()}
    send = Send("POST", "/v1/batch", headers, dict(body), timeout=None)
    response = yield from request(send, policy, is_safe=True)
    return response.json()


def result_of(response: httpx.Response) -> ToolResult:
    replayed = response.headers.get("trunkline-replayed") == "true"
    call_id = response.headers.get("trunkline-call-id")
    return ToolResult(response.json(), call_id, replayed).checked()
