"""A client of the Trunkline gateway.

`Client` and `AsyncClient` have the same methods. Each logical call gets an idempotency key of its
own, so it runs once however often it is retried. Outcomes that are not results are exceptions.
"""

from ._async import AsyncClient
from ._client import Client
from ._errors import (
    Executed,
    GatewayUnreachable,
    InvalidSignature,
    NotExecuted,
    OutcomeUnknown,
    ProblemError,
    ResultLost,
    ToolError,
    TrunklineError,
)
from ._exchange import RetryPolicy
from ._types import BatchCall, BatchOutcome, Call, KeptCall, Progress, ToolResult, reference
from ._webhook import verify_callback

__all__ = [
    "AsyncClient",
    "BatchCall",
    "BatchOutcome",
    "Call",
    "Client",
    "Executed",
    "GatewayUnreachable",
    "InvalidSignature",
    "KeptCall",
    "NotExecuted",
    "OutcomeUnknown",
    "ProblemError",
    "Progress",
    "ResultLost",
    "RetryPolicy",
    "ToolError",
    "ToolResult",
    "TrunklineError",
    "reference",
    "verify_callback",
]
