"""The client that blocks."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Iterable, Iterator, Mapping, TypeVar

import httpx

from . import _exchange as exchange
from ._errors import ProblemError
from ._exchange import Exchange, Pause, Received, RetryPolicy, Send
from ._streams import BatchStream, CallStream, Stream
from ._types import BatchCall, BatchOutcome, Call, KeptCall, Progress, ToolResult, milliseconds

S = TypeVar("S")
T = TypeVar("T")


class Client:
    """Calls tools through a gateway. Threads may share it. Close it, or use it in a `with`."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retry: RetryPolicy = RetryPolicy(),
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._retry = retry
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport)

    def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        keyed: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> ToolResult:
        """Calls a tool once, however often the request is sent. Raises `ToolError` if the tool
        fails, and `ProblemError` if there is no result. Without `key` the call gets one of its own;
        with `keyed=False` none, which costs less, and is retried only if it did not run."""
        made = Call(server, tool, arguments or {}, timeout, key, labels or {})
        return self._run(exchange.call(made, self._retry, keyed=keyed))

    def call_stream(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        keyed: bool = True,
        labels: Mapping[str, str] | None = None,
    ) -> Iterator[Progress | ToolResult]:
        """Does what `call` does, and yields the tool's progress before the result. Bytes flow while
        the tool works, so proxies keep the connection. A stream that breaks is asked for again."""
        made = Call(server, tool, arguments or {}, timeout, key, labels or {})
        return self._stream(CallStream(made, self._retry, keyed=keyed))

    def submit(self, call: Call) -> KeptCall:
        """Has a call accepted, and does not wait for it."""
        return self._run(exchange.submit(call, self._retry))

    def wait(self, call: KeptCall | str, timeout: float | None = None) -> ToolResult:
        """Waits for the result of a kept call. Raises `TimeoutError` if it is not over in time."""
        return self._run(exchange.wait(_id(call), self._retry, timeout))

    def show(self, call: KeptCall | str) -> KeptCall:
        return KeptCall.of(self._run(exchange.get(f"/v1/calls/{_id(call)}", self._retry)))

    def cancel(self, call: KeptCall | str) -> KeptCall:
        return self._run(exchange.cancel(_id(call), self._retry))

    def batch(
        self, calls: Iterable[BatchCall], *, key: str | None = None, **options: Any
    ) -> list[BatchOutcome]:
        """Makes many calls, each once. `options` are members of the request, such as
        `on_error="stop"`."""
        answer = self._run(exchange.batch(batch_body(calls, options), self._retry, key))
        return [BatchOutcome.of(outcome) for outcome in answer["results"]]

    def batch_stream(
        self, calls: Iterable[BatchCall], *, key: str | None = None, **options: Any
    ) -> Iterator[BatchOutcome]:
        """Makes many calls, each once, and yields each outcome when it is there."""
        return self._stream(BatchStream(batch_body(calls, options), self._retry, key))

    def servers(self) -> list[dict[str, Any]]:
        return list(self._run(exchange.get("/v1/servers", self._retry))["servers"])

    def tools(self, server: str) -> list[dict[str, Any]]:
        return list(self._run(exchange.get(f"/v1/servers/{server}/tools", self._retry))["tools"])

    def limits(self) -> list[dict[str, Any]]:
        return list(self._run(exchange.get("/v1/limits", self._retry))["limits"])

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _stream(self, stream: Stream[S]) -> Iterator[S]:
        while not stream.is_over:
            failure: httpx.TransportError | ProblemError | None = None
            stream.begin()
            try:
                with self._http.stream(**request_of_stream(stream)) as response:
                    if response.status_code >= 400:
                        response.read()
                        raise_problem(response)
                    for piece in response.iter_bytes():
                        yield from stream.read(piece)
            except (httpx.TransportError, ProblemError) as error:
                failure = error
            if not stream.is_over:
                time.sleep(stream.pause(failure))

    def _run(self, steps: Exchange[T]) -> T:
        received: Received = None
        try:
            while True:
                step = steps.send(received)
                received = None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    received = self._send(step)
        except StopIteration as end:
            value: T = end.value
            return value

    def _send(self, send: Send) -> Received:
        try:
            return self._http.request(**request_of(send))
        except httpx.TransportError as error:
            return error


def request_of(send: Send) -> dict[str, Any]:
    """Returns the arguments for httpx."""
    body = {} if send.body is None else {"json": send.body}
    return {"method": send.method, "url": send.path, "headers": dict(send.headers),
            "params": send.params, "timeout": httpx.Timeout(send.timeout, connect=10.0), **body}


def request_of_stream(stream: Stream[Any]) -> dict[str, Any]:
    return {"method": "POST", "url": stream.path, "headers": stream.headers, "json": stream.body,
            "timeout": stream.timeout}


def batch_body(calls: Iterable[BatchCall], options: Mapping[str, Any]) -> dict[str, Any]:
    members = dict(options)
    if "timeout" in members:
        members["timeout_ms"] = milliseconds(members.pop("timeout"))
    return {"calls": [call.as_json() for call in calls], **members}


def raise_problem(response: httpx.Response) -> None:
    error = exchange.problem_of(response)
    if error is not None:
        raise error


def _id(call: KeptCall | str) -> str:
    return call if isinstance(call, str) else call.id
