"""The client for asyncio."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, AsyncIterator, Iterable, Mapping, TypeVar

import httpx

from . import _exchange as exchange
from ._client import _id, batch_body, raise_problem, request_of, request_of_stream
from ._errors import ProblemError
from ._exchange import Exchange, Pause, Received, RetryPolicy, Send
from ._streams import BatchStream, CallStream, Stream
from ._types import BatchCall, BatchOutcome, Call, KeptCall, Progress, ToolResult

S = TypeVar("S")
T = TypeVar("T")


class AsyncClient:
    """Does what `Client` does, for asyncio. Cancelling a task cancels its call only if the call has
    no key: one with a key goes on."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        retry: RetryPolicy = RetryPolicy(),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._retry = retry
        self._http = httpx.AsyncClient(base_url=url, headers=headers, transport=transport)

    async def call(
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
        made = Call(server, tool, arguments or {}, timeout, key, labels or {})
        return await self._run(exchange.call(made, self._retry, keyed=keyed))

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
    ) -> AsyncIterator[Progress | ToolResult]:
        made = Call(server, tool, arguments or {}, timeout, key, labels or {})
        return self._stream(CallStream(made, self._retry, keyed=keyed))

    async def submit(self, call: Call) -> KeptCall:
        return await self._run(exchange.submit(call, self._retry))

    async def wait(self, call: KeptCall | str, timeout: float | None = None) -> ToolResult:
        return await self._run(exchange.wait(_id(call), self._retry, timeout))

    async def show(self, call: KeptCall | str) -> KeptCall:
        return KeptCall.of(await self._run(exchange.get(f"/v1/calls/{_id(call)}", self._retry)))

    async def cancel(self, call: KeptCall | str) -> KeptCall:
        return await self._run(exchange.cancel(_id(call), self._retry))

    async def batch(
        self, calls: Iterable[BatchCall], *, key: str | None = None, **options: Any
    ) -> list[BatchOutcome]:
        answer = await self._run(exchange.batch(batch_body(calls, options), self._retry, key))
        return [BatchOutcome.of(outcome) for outcome in answer["results"]]

    def batch_stream(
        self, calls: Iterable[BatchCall], *, key: str | None = None, **options: Any
    ) -> AsyncIterator[BatchOutcome]:
        return self._stream(BatchStream(batch_body(calls, options), self._retry, key))

    async def servers(self) -> list[dict[str, Any]]:
        return list((await self._run(exchange.get("/v1/servers", self._retry)))["servers"])

    async def tools(self, server: str) -> list[dict[str, Any]]:
        answer = await self._run(exchange.get(f"/v1/servers/{server}/tools", self._retry))
        return list(answer["tools"])

    async def limits(self) -> list[dict[str, Any]]:
        return list((await self._run(exchange.get("/v1/limits", self._retry)))["limits"])

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _stream(self, stream: Stream[S]) -> AsyncIterator[S]:
        while not stream.is_over:
            failure: httpx.TransportError | ProblemError | None = None
            stream.begin()
            try:
                async with self._http.stream(**request_of_stream(stream)) as response:
                    if response.status_code >= 400:
                        await response.aread()
                        raise_problem(response)
                    async for piece in response.aiter_bytes():
                        for told in stream.read(piece):
                            yield told
            except (httpx.TransportError, ProblemError) as error:
                failure = error
            if not stream.is_over:
                await asyncio.sleep(stream.pause(failure))

    async def _run(self, steps: Exchange[T]) -> T:
        received: Received = None
        try:
            while True:
                step = steps.send(received)
                received = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    received = await self._send(step)
        except StopIteration as end:
            value: T = end.value
            return value

    async def _send(self, send: Send) -> Received:
        try:
            return await self._http.request(**request_of(send))
        except httpx.TransportError as error:
            return error
