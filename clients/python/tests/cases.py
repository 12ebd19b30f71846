"""Thirty calls and their outcomes, for any client: ours, and one that is generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    name: str
    server: str
    tool: str
    arguments: dict[str, Any]
    # What happened (`ok`, `tool_error`, or the code of the problem), and a part of its text.
    outcome: str
    text: str = ""
    timeout_ms: int | None = None
    key: str | None = None
    pointer: str | None = None
    executed: str = "yes"


def refused(name: str, server: str, tool: str, arguments: dict[str, Any], code: str) -> Case:
    return Case(name, server, tool, arguments, code, executed="no")


def misfit(name: str, tool: str, arguments: dict[str, Any], pointer: str) -> Case:
    return Case(name, "std", tool, arguments, "invalid_arguments", executed="no", pointer=pointer)


SHA256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
DOCUMENT = {"user": {"name": "Ada", "tags": ["a", "b"]}, "a/b": 1, "m~n": 2, "": 3}
LONG = "x" * 100_000

CASES = [
    Case("a text", "std", "echo", {"text": "hello"}, "ok", "hello"),
    Case("an empty text", "std", "echo", {"text": ""}, "ok", ""),
    Case("other scripts", "std", "echo", {"text": "größe 日本 🎉"}, "ok", "größe 日本 🎉"),
    Case("control characters", "std", "echo", {"text": "a\n\t\u0001\u2028b"}, "ok", "a\n\t\u0001"),
    Case("quotes", "std", "echo", {"text": '"\\\\"'}, "ok", '"\\\\"'),
    Case("a long text", "std", "echo", {"text": LONG}, "ok", LONG),
    Case("a hash", "std", "hash", {"algorithm": "sha256", "text": "hello"}, "ok", SHA256),
    Case("no arguments", "std", "uuid", {}, "ok", "-"),
    Case("optional arguments", "std", "time", {}, "ok", "20"),
    Case("a time zone", "std", "time", {"timezone": "Asia/Tokyo"}, "ok", "20"),
    Case("an object", "std", "json_query", {"json": DOCUMENT, "pointer": "/user"}, "ok", "Ada"),
    Case("an item", "std", "json_query", {"json": DOCUMENT, "pointer": "/user/tags/1"}, "ok", "b"),
    Case("a slash", "std", "json_query", {"json": DOCUMENT, "pointer": "/a~1b"}, "ok", "1"),
    Case("a tilde", "std", "json_query", {"json": DOCUMENT, "pointer": "/m~0n"}, "ok", "2"),
    Case("null", "std", "json_query", {"json": {"a": None}, "pointer": "/a"}, "ok", "null"),
    Case("a large number", "std", "json_query",
         {"json": {"a": 9007199254740993}, "pointer": "/a"}, "ok", "9007199254740993"),
    Case("a pause", "std", "sleep", {"ms": 50}, "ok"),
    Case("a failure", "std", "fail", {"message": "no luck"}, "tool_error", "no luck"),
    Case("a failure with a key", "std", "fail", {"message": "no luck"}, "tool_error", "no luck",
         key="case-failure"),
    Case("a key", "std", "echo", {"text": "a"}, "ok", "a", key="case-key"),
    Case("the key again", "std", "echo", {"text": "a"}, "ok", "a", key="case-key"),
    Case("the key for other arguments", "std", "echo", {"text": "b"}, "idempotency_mismatch",
         key="case-key", executed="no"),
    Case("a deadline", "std", "sleep", {"ms": 5000}, "deadline_exceeded", timeout_ms=100,
         executed="unknown"),
    refused("an unknown server", "nope", "echo", {}, "server_not_found"),
    refused("an unknown tool", "std", "nope", {}, "tool_not_found"),
    refused("a server that is down", "down", "echo", {}, "server_unavailable"),
    misfit("a missing argument", "echo", {}, "/text"),
    misfit("a wrong type", "echo", {"text": 5}, "/text"),
    misfit("an unknown algorithm", "hash", {"algorithm": "rot13", "text": "a"}, "/algorithm"),
    misfit("a wrong number", "sleep", {"ms": "long"}, "/ms"),
]
assert len(CASES) == 30
