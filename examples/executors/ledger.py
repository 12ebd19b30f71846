"""An MCP server that books entries, for the examples. Each execution is a line of the file LEDGER,
so a check can count them.

An entry that begins with `bad` fails. One that begins with `lost` is booked, and answered with an
internal error: its caller cannot know that it was booked.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

TEXT = {"type": "string"}
MS = {"type": "integer", "minimum": 0}
TOOLS = [
    {"name": "post", "description": "Books an entry.", "inputSchema": {
        "type": "object", "properties": {"entry": TEXT, "ms": MS}, "required": ["entry"]}},
    {"name": "close", "description": "Closes the books, which takes long.", "inputSchema": {
        "type": "object", "properties": {"ms": MS}, "required": ["ms"]}},
]
STEPS = 5
output = threading.Lock()


def send(message: dict[str, Any]) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with output:
        sys.stdout.write(line)
        sys.stdout.flush()


def book(entry: str) -> None:
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{entry}\n".encode())
    os.close(ledger)


def post(entry: str, ms: int = 0) -> tuple[str, bool]:
    book(entry)
    time.sleep(ms / 1000)
    if entry.startswith("lost"):
        raise RuntimeError("something went wrong")
    if entry.startswith("bad"):
        return f"{entry} has no account", True
    return f"{entry} is booked", False


def close(ms: int, token: Any) -> tuple[str, bool]:
    book("close")
    for step in range(1, STEPS + 1):
        time.sleep(ms / 1000 / STEPS)
        if token is not None:
            progress = {"progressToken": token, "progress": step, "total": STEPS}
            send({"method": "notifications/progress", "params": progress})
    return "the books are closed", False


def call(number: Any, params: dict[str, Any]) -> None:
    arguments = params.get("arguments", {})
    try:
        if params["name"] == "post":
            text, is_error = post(**arguments)
        else:
            text, is_error = close(arguments["ms"], params.get("_meta", {}).get("progressToken"))
    except RuntimeError as error:
        send({"id": number, "error": {"code": -32603, "message": str(error)}})
        return
    content = [{"type": "text", "text": text}]
    send({"id": number, "result": {"content": content, "isError": is_error}})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params", {})
        match message.get("method"):
            case "initialize":
                about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                         "serverInfo": {"name": "ledger", "version": "1"}}
                send({"id": number, "result": about})
            case "tools/list":
                send({"id": number, "result": {"tools": TOOLS}})
            case "tools/call":
                threading.Thread(target=call, args=(number, params), daemon=True).start()
            case "ping":
                send({"id": number, "result": {}})
            case _ if number is not None:
                unknown = {"code": -32601, "message": "there is no such method"}
                send({"id": number, "error": unknown})


main()
