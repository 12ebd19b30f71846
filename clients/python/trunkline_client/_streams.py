"""Responses that come in parts, without any input or output: the events of a call, and the lines of
a batch.

`Client` and `AsyncClient` send a stream's request, and give it the response piece by piece. A
stream that breaks before its end is asked for again.
"""

from __future__ import annotations

import json
from typing import Any, Generic, Iterator, Mapping, TypeVar, Union

import httpx

from ._errors import ProblemError
from ._exchange import Retries, RetryPolicy, headers_of, new_key, tool_path
from ._types import BatchOutcome, Call, Progress, ToolResult

T = TypeVar("T")
# The gateway breaks the silence of a call every 15 seconds.
SILENCE = 60.0


class Stream(Generic[T]):
    """The request of a stream, and what was read of the response."""

    def __init__(
        self,
        path: str,
        headers: dict[str, str],
        body: Mapping[str, Any],
        retries: Retries,
        silence: float | None = None,
    ) -> None:
        self.path, self.headers, self.body = path, headers, body
        self.timeout = httpx.Timeout(silence, connect=10.0)
        self.is_over = False
        self._retries = retries
        self._line: list[bytes] = []

    def begin(self) -> None:
        """Forgets the half line of a response that broke."""
        self._line.clear()

    def read(self, piece: bytes) -> Iterator[T]:
        """Yields what the lines tell that end in this piece."""
        # Not `iter_lines`: that also splits at characters that JSON may hold as they are.
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = b"".join([*self._line, end])
            self._line.clear()
            told = self._told(line)
            if told is not None:
                # The stream gets on: the next break is another one.
                self._retries.attempt, self._retries.waited = 0, 0.0
                yield told
        self._line.append(rest)

    def pause(self, failure: httpx.TransportError | ProblemError | None) -> float:
        """Returns the time before the next attempt; raises if there is none."""
        cut = httpx.RemoteProtocolError("the response ended too early")
        return self._retries.pause(failure or cut)

    def _told(self, line: bytes) -> T | None:
        raise NotImplementedError


class CallStream(Stream[Union[Progress, ToolResult]]):
    """The events of one call."""

    def __init__(self, call: Call, policy: RetryPolicy, *, keyed: bool) -> None:
        key = call.key or (new_key() if keyed else None)
        headers = headers_of(call, key) | {"Accept": "text/event-stream"}
        retries = Retries(policy, is_safe=key is not None)
        path = tool_path(call.server, call.tool)
        super().__init__(path, headers, dict(call.arguments), retries, SILENCE)
        self._event = b""

    def _told(self, line: bytes) -> Progress | ToolResult | None:
        name, _, value = line.rstrip(b"\r").partition(b": ")
        if name == b"event":
            self._event = value
        if name != b"data":
            return None
        data = json.loads(value)
        if self._event == b"progress":
            return Progress(data["progress"], data.get("total"), data.get("message"))
        if self._event == b"error":
            raise ProblemError.of(data["problem"], data["call"])
        if self._event != b"result":
            return None
        self.is_over = True
        return ToolResult(data["result"], data["call"], data["replayed"]).checked()


class BatchStream(Stream[BatchOutcome]):
    """The outcomes of a batch. One that was there before the stream broke is left out."""

    def __init__(self, body: Mapping[str, Any], policy: RetryPolicy, key: str | None) -> None:
        headers = {"Accept": "application/x-ndjson", "Idempotency-Key": key or new_key()}
        super().__init__("/v1/batch", headers, body, Retries(policy, is_safe=True))
        self._seen: set[str] = set()

    def _told(self, line: bytes) -> BatchOutcome | None:
        members = json.loads(line)
        if "summary" in members:
            self.is_over = True
            return None
        if members["id"] in self._seen:
            return None
        self._seen.add(members["id"])
        return BatchOutcome.of(members)
