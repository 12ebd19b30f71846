"""Answers that are lost, and streams that break."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, AsyncIterator, Callable, Iterator

import httpx
import pytest
from conftest import Both, Gateway

from trunkline_client import (
    BatchCall,
    GatewayUnreachable,
    OutcomeUnknown,
    ProblemError,
    Progress,
    RetryPolicy,
    ToolError,
    ToolResult,
)

LOST = httpx.ReadError("the connection broke")


class Breaking(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Breaks the first response after so many bytes, and passes the others on."""

    def __init__(self, inner: Any, after: int, failure: Exception | None = LOST) -> None:
        self.inner, self.after, self.failure = inner, after, failure
        self.sent: list[httpx.Request] = []

    def _cut(self, pieces: list[bytes]) -> bytes:
        return b"".join(pieces)[: self.after]

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        response: httpx.Response = self.inner.handle_request(request)
        if len(self.sent) > 1:
            return response
        stream: Any = response.stream

        def broken() -> Iterator[bytes]:
            pieces: list[bytes] = []
            for piece in stream:
                pieces.append(piece)
                if sum(map(len, pieces)) >= self.after:
                    break
            stream.close()
            yield self._cut(pieces)
            if self.failure:
                raise self.failure

        response.stream = Pieces(broken)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        response: httpx.Response = await self.inner.handle_async_request(request)
        if len(self.sent) > 1:
            return response
        stream: Any = response.stream

        async def broken() -> AsyncIterator[bytes]:
            pieces: list[bytes] = []
            async for piece in stream:
                pieces.append(piece)
                if sum(map(len, pieces)) >= self.after:
                    break
            await stream.aclose()
            yield self._cut(pieces)
            if self.failure:
                raise self.failure

        response.stream = Pieces(broken)
        return response


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.make())

    def __aiter__(self) -> AsyncIterator[bytes]:
        made: AsyncIterator[bytes] = self.make().__aiter__()
        return made


def breaking(client: Both, after: int, failure: Exception | None = LOST) -> Breaking:
    http = client.client._http
    http._transport = Breaking(http._transport, after, failure)
    transport: Breaking = http._transport
    return transport


def new_key() -> str:
    return f"key-{time.time_ns()}"


def test_a_lost_answer_is_asked_for_again(make: Callable[..., Both]) -> None:
    """A call with a key is sent again, any other is not."""
    client = make()
    sent = breaking(client, 0).sent
    assert client.call("std", "uuid").replayed and len(sent) == 2
    assert len({request.headers["idempotency-key"] for request in sent}) == 1
    sent.clear()
    with pytest.raises(GatewayUnreachable) as failed:
        client.call("std", "uuid", keyed=False)
    assert failed.value.executed == "unknown" and len(sent) == 1


def test_progress_comes_before_the_result(make: Callable[..., Both]) -> None:
    for keyed in (True, False):
        *told, last = make().stream("call_stream", "ledger", "close", {"ms": 100}, keyed=keyed)
        assert told == [Progress(step, 5, None) for step in range(1, 6)]
        assert isinstance(last, ToolResult) and last.text == "the books are closed"
        assert last.call_id and not last.replayed


def test_a_stream_raises_what_a_call_raises(make: Callable[..., Both]) -> None:
    client = make(retry=RetryPolicy(attempts=1))
    with pytest.raises(ToolError, match="no luck"):
        client.stream("call_stream", "std", "fail", {"message": "no luck"})
    with pytest.raises(OutcomeUnknown) as late:
        client.stream("call_stream", "std", "sleep", {"ms": 5000}, timeout=0.1, keyed=False)
    assert (late.value.code, late.value.retryable) == ("deadline_exceeded", False)
    with pytest.raises(ProblemError) as refused:
        client.stream("call_stream", "nope", "echo")
    assert (refused.value.code, refused.value.status) == ("server_not_found", 404)
    with pytest.raises(ProblemError) as unknown:
        make(key="tl_no_key").stream("call_stream", "std", "echo")
    assert unknown.value.status == 401


@pytest.mark.parametrize("failure", [LOST, None], ids=["broken", "ended"])
def test_a_stream_that_breaks_is_asked_for_again(
    make: Callable[..., Both], gateway: Gateway, failure: Exception | None
) -> None:
    client, before = make(), gateway.booked("close")
    # Within the second event.
    sent = breaking(client, 120, failure).sent
    told = client.stream("call_stream", "ledger", "close", {"ms": 1000})
    assert told[0] == Progress(1, 5, None) and told[-1].text == "the books are closed"
    assert len(sent) == 2 and gateway.booked("close") == before + 1


def test_a_stream_that_breaks_without_a_key_is_not(
    make: Callable[..., Both], gateway: Gateway
) -> None:
    client, before = make(), gateway.booked("close")
    sent = breaking(client, 120).sent
    with pytest.raises(GatewayUnreachable) as failed:
        client.stream("call_stream", "ledger", "close", {"ms": 500}, keyed=False)
    assert failed.value.executed == "unknown"
    assert len(sent) == 1 and gateway.booked("close") == before + 1


@pytest.mark.parametrize("failure", [LOST, None], ids=["broken", "ended"])
def test_a_batch_that_breaks_runs_only_what_is_missing(
    make: Callable[..., Both], gateway: Gateway, failure: Exception | None
) -> None:
    client, name = make(), new_key()
    calls = [
        BatchCall(str(number), "ledger", "post", {"entry": f"{name}-{number}", "ms": number * 100})
        for number in range(5)
    ]
    sent = breaking(client, 700, failure).sent
    outcomes = client.stream("batch_stream", calls)
    assert sorted(outcome.id for outcome in outcomes) == ["0", "1", "2", "3", "4"]
    assert len(sent) == 2
    assert [gateway.booked(f"{name}-{number}") for number in range(5)] == [1] * 5


def test_lines_end_at_line_feeds_alone(make: Callable[..., Both]) -> None:
    """JSON may hold other line separators as they are, and servers write them so."""
    text = "a\u2028b\u0085c\rd"
    plain = json.dumps({"content": [{"type": "text", "text": text}]}, ensure_ascii=False)
    line = f'{{"id":"a","call_id":"1","outcome":"ok","result":{plain}}}\n{{"summary":{{}}}}\n'
    event = f'event: result\r\ndata: {{"call":"1","replayed":false,"result":{plain}}}\r\n\r\n'
    cases: list[tuple[str, list[Any], str]] = [
        ("batch_stream", [[]], line),
        ("call_stream", ["std", "echo"], event),
    ]
    for method, args, body in cases:
        pieces = [bytes([byte]) for byte in body.encode()]

        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=Pieces(lambda: client.pieces(pieces)))

        client = make(transport=httpx.MockTransport(answer))
        [told] = client.stream(method, *args)
        result = told if isinstance(told, ToolResult) else told.result()
        assert result.text == text


def test_a_restart_in_the_middle_of_a_stream(make: Callable[..., Both], gateway: Gateway) -> None:
    client, before = make(retry=RetryPolicy(attempts=20)), gateway.booked("close")

    def restart() -> None:
        while gateway.booked("close") == before:
            time.sleep(0.02)
        gateway.stop()
        gateway.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    told = client.stream("call_stream", "ledger", "close", {"ms": 1500})
    restarting.join()
    assert told[-1].text == "the books are closed"
    assert gateway.booked("close") == before + 1
