"""An MCP server that repeats its variable TOKEN on standard error and in errors: `refuse` answers nothing else, `change` has
no tools from its second list on."""

import json
import os
import sys

TOKEN, HOW = os.environ["TOKEN"], sys.argv[1]
print("this is", TOKEN, file=sys.stderr, flush=True)
lists = 0


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if HOW == "change" and method == "initialize":
        info = {"name": "telling", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        about = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        send({"id": id, "result": about})
    elif HOW == "change" and method == "tools/list" and lists == 0:
        lists = 1
        send({"id": id, "result": {"tools": []}})
        send({"method": "notifications/tools/list_changed"})
    elif id is not None:
        send({"id": id, "error": {"code": -32000, "message": "no such token: " + TOKEN}})
