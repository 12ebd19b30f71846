"""What is sent and answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Mapping

from ._errors import ProblemError, ToolError

Json = Any


@dataclass(frozen=True)
class ToolResult:
    """A tool's result. `raw` is all of it, as the server sent it."""

    raw: dict[str, Json]
    call_id: str | None = None
    replayed: bool = False

    @property
    def content(self) -> list[dict[str, Json]]:
        content = self.raw.get("content")
        return content if isinstance(content, list) else []

    @property
    def structured(self) -> Json:
        return self.raw.get("structuredContent")

    @property
    def is_error(self) -> bool:
        return self.raw.get("isError") is True

    @property
    def text(self) -> str:
        """All texts of the content, joined by line breaks."""
        texts = (part["text"] for part in self.content if part.get("type") == "text")
        return "\n".join(str(text) for text in texts)

    def checked(self) -> ToolResult:
        """Raises `ToolError` if the tool failed."""
        if self.is_error:
            raise ToolError(self)
        return self


@dataclass(frozen=True)
class Progress:
    """How far a call is, as its tool reports it."""

    progress: float
    total: float | None = None
    message: str | None = None


@dataclass(frozen=True)
class Call:
    """One call, for `submit` and for calls with all options."""

    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    timeout: float | None = None
    key: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    callback: str | None = None


@dataclass(frozen=True)
class KeptCall:
    """A call that the gateway keeps: asynchronous, or made under a key."""

    id: str
    state: Literal["accepted", "running", "ended"]
    raw: dict[str, Json]

    @staticmethod
    def of(raw: dict[str, Json]) -> KeptCall:
        return KeptCall(id=str(raw["id"]), state=raw["state"], raw=raw)


@dataclass(frozen=True)
class BatchCall:
    """One call of a batch."""

    id: str
    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    timeout: float | None = None
    depends_on: tuple[str, ...] = ()
    if_dependency_fails: Literal["fail", "run"] = "fail"

    def as_json(self) -> dict[str, Json]:
        members: dict[str, Json] = {
            "id": self.id,
            "server": self.server,
            "tool": self.tool,
            "arguments": dict(self.arguments),
            "depends_on": list(self.depends_on),
            "if_dependency_fails": self.if_dependency_fails,
        }
        if self.timeout is not None:
            members["timeout_ms"] = milliseconds(self.timeout)
        return members


@dataclass(frozen=True)
class BatchOutcome:
    """How one call of a batch ended."""

    id: str
    call_id: str
    outcome: Literal["ok", "tool_error", "error"]
    raw: dict[str, Json]

    @staticmethod
    def of(raw: dict[str, Json]) -> BatchOutcome:
        return BatchOutcome(raw["id"], raw["call_id"], raw["outcome"], raw)

    def result(self) -> ToolResult:
        """Returns the result; raises what a call alone would have raised."""
        if "problem" in self.raw:
            raise ProblemError.of(self.raw["problem"], self.call_id)
        return ToolResult(self.raw["result"], self.call_id).checked()


def reference(call: str, pointer: str = "") -> dict[str, str]:
    """Stands, in the arguments of a batch, for a part of an earlier call's result."""
    return {"$result": call, "pointer": pointer}


def milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
