"""An MCP server that runs what it is told and says what came of it: one tool, `do`, with Python in `code`.

The answer is the value of the last line, or the name and number of the error. With `stubborn` as its argument, neither the end
of its input nor SIGTERM ends it.
"""

import json
import os
import signal
import sys
import time


def do(code):
    *before, last = code.strip().split("\n")
    names = {}
    try:
        exec("\n".join(before), names)
        return str(eval(last, names))
    except OSError as error:
        return "%s %s" % (type(error).__name__, os.strerror(error.errno))


def result(message):
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "confined", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": do(params["arguments"]["code"])}]}


if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    found = result(message)
    if found is None:
        answer["error"] = {"code": -32601, "message": "no such method"}
    else:
        answer["result"] = found
    print(json.dumps(answer), flush=True)
while "stubborn" in sys.argv:
    time.sleep(60)
