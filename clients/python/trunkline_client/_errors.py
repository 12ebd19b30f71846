"""Outcomes that are not results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Mapping

if TYPE_CHECKING:
    from ._types import ToolResult

Executed = Literal["yes", "no", "unknown"]


class TrunklineError(Exception):
    """The base of all errors of this package."""


class GatewayUnreachable(TrunklineError):
    """No answer came. `executed` says whether the tool may have run."""

    def __init__(self, message: str, executed: Executed) -> None:
        super().__init__(message)
        self.executed = executed


class InvalidSignature(TrunklineError):
    """A callback was not signed with this secret, or is too old."""


class ProblemError(TrunklineError):
    """The gateway's own error. Subclasses say whether the tool ran."""

    def __init__(self, problem: Mapping[str, Any], call_id: str | None = None) -> None:
        self.problem = dict(problem)
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail", ""))
        self.status = int(problem.get("status", 0))
        self.retryable = problem.get("retryable") is True
        executed = problem.get("executed")
        self.executed: Executed = executed if executed in ("yes", "no") else "unknown"
        wait = problem.get("retry_after_ms")
        self.retry_after = wait / 1000 if isinstance(wait, (int, float)) else None
        limit = problem.get("limit")
        self.limit: dict[str, Any] | None = limit if isinstance(limit, dict) else None
        pointer = problem.get("pointer")
        self.pointer: str | None = pointer if isinstance(pointer, str) else None
        self.call_id = call_id
        super().__init__(f"{self.code}: {self.detail}")

    @staticmethod
    def of(problem: Mapping[str, Any], call_id: str | None = None) -> ProblemError:
        """Returns the error of the class that `executed` names."""
        classes = {"no": NotExecuted, "yes": ResultLost}
        made = classes.get(str(problem.get("executed")), OutcomeUnknown)
        return made(problem, call_id)


class NotExecuted(ProblemError):
    """The tool certainly did not run."""


class OutcomeUnknown(ProblemError):
    """The tool may have run."""


class ResultLost(ProblemError):
    """The tool ran, and its result is gone."""


class ToolError(TrunklineError):
    """The tool ran and failed."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.text or "the tool failed without a text")
        self.result = result
