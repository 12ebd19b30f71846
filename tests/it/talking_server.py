"""An MCP server that has everything (tools, prompts, resources, completion) and much to say while it works.

Options are KEY=VALUE arguments:
  log=PATH     every start, every line received (>) and every line sent (<) is noted there
  extra=PATH   names of further tools, one per line, read whenever the tools are listed
  era=WHAT     modern or legacy
  bare=yes     modern, but it forgets to say so in its results
"""

import json
import os
import sys

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[1:])
MODERN = OPTIONS["era"] == "modern"
LOG = open(OPTIONS["log"], "a", buffering=1)
META = "io.modelcontextprotocol/"
STATE = 'where we were: "\u00e9" \\ \n \u2028'
# Names that do not fit where all servers are shown together, and one that looks like what becomes of another.
STRANGE = ["gr\u00f6\u00dfe", "gr__e", "a b", "x" * 100, "x" * 99 + "y", "a/b.c-d", "__"]
HEADER_TOOL = {
    "name": "deploy",
    "inputSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "count": {"type": "integer", "x-mcp-header": "Count"},
        },
    },
}
held = []
subscribed = set()
listeners = {}


def send(message):
    text = json.dumps(message)
    LOG.write("< " + text[:500] + "\n")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answer(id, result, **more):
    if MODERN and "bare" not in OPTIONS:
        result = {"resultType": "complete", **result, **more}
    send({"jsonrpc": "2.0", "id": id, "result": result})


def fail(id, code, message, **more):
    send({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **more}})


def tell(method, **params):
    send({"jsonrpc": "2.0", "method": "notifications/" + method, "params": params})


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def announce(method, wanted, **params):
    """To everybody who listens, as each era does it."""
    if not MODERN:
        return tell(method, **params)
    for id, asked in listeners.items():
        if wanted(asked):
            tell(method, **params, _meta={META + "subscriptionId": id})


def change(kind):
    announce(kind + "/list_changed", lambda asked: asked.get(kind + "ListChanged"))


def touch(uri):
    if MODERN or uri in subscribed:
        announce("resources/updated", lambda asked: uri in asked.get("resourceSubscriptions", []), uri=uri)


def filled(value, own):
    """The same with what stands for the call's own id and token replaced by them."""
    if isinstance(value, str):
        return own.get(value, value)
    if isinstance(value, list):
        return [filled(item, own) for item in value]
    if isinstance(value, dict):
        return {name: filled(item, own) for name, item in value.items()}
    return value


def progress(id, args, params):
    token = params.get("_meta", {}).get("progressToken")
    pad = "x" * args.get("pad", 0)
    if token is not None:
        for n in range(args["n"]):
            tell("progress", progressToken=token, progress=n + 1, message=str(args.get("tag")) + pad)
    if args.get("hold"):
        held.append((id, args))
    else:
        answer(id, text(str(args.get("tag"))))


def say(id, args, params):
    """Sends whatever it is told to, then answers, then sends more."""
    own = {"$id": id, "$token": params.get("_meta", {}).get("progressToken")}
    for message in filled(args.get("say", []), own):
        send({"jsonrpc": "2.0", **message})
    if "error" in args:
        fail(id, **args["error"])
    elif "result" in args:
        send({"jsonrpc": "2.0", "id": id, "result": args["result"]})
    else:
        answer(id, text("said"))
    for message in filled(args.get("after", []), own):
        send({"jsonrpc": "2.0", **message})


def ask(id, params):
    if "requestState" in params:
        words = {"state": params["requestState"], "responses": params.get("inputResponses")}
        return answer(id, text(json.dumps(words)))
    question = {"method": "elicitation/create", "params": {"message": "sure?"}}
    result = {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": STATE}
    send({"jsonrpc": "2.0", "id": id, "result": result})


def release():
    for id, args in held:
        answer(id, text(str(args.get("tag"))))
    held.clear()


TOOLS = {
    "echo": lambda id, args, params: answer(id, text(json.dumps(args))),
    "deploy": lambda id, args, params: answer(id, text("deployed")),
    "hold": lambda id, args, params: held.append((id, args)),
    "release": lambda id, args, params: (release(), answer(id, text("released"))),
    "progress": progress,
    "say": say,
    "ask": lambda id, args, params: ask(id, params),
    "change": lambda id, args, params: (change(args["kind"]), answer(id, text("changed"))),
    "touch": lambda id, args, params: (touch(args["uri"]), answer(id, text("touched"))),
    "exit": lambda id, args, params: os._exit(0),
}


def list_tools(id, params):
    names = [name for name in TOOLS if name != "deploy"] + STRANGE
    if os.path.exists(OPTIONS["extra"]):
        names += open(OPTIONS["extra"]).read().split()
    tools = [HEADER_TOOL] + [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    answer(id, {"tools": tools}, ttlMs=500, cacheScope="public")


def call(id, params):
    name = params["name"]
    if name in TOOLS:
        TOOLS[name](id, params["arguments"], params)
    else:
        answer(id, text("this is " + name))


def read(id, params):
    uri = params["uri"]
    if uri == "ask:///":
        return ask(id, params)
    if uri.startswith("mem:///no"):
        return fail(id, -32002, "no such resource", data={"uri": uri})
    answer(id, {"contents": [{"uri": uri, "text": "content"}]}, ttlMs=1234, cacheScope="public")


def get_prompt(id, params):
    if params["name"] == "ask":
        return ask(id, params)
    message = {"role": "user", "content": {"type": "text", "text": json.dumps(params)}}
    answer(id, {"messages": [message]})


def listen(id, params):
    listeners[id] = params["notifications"]
    meta = {META + "subscriptionId": id}
    tell("subscriptions/acknowledged", notifications=params["notifications"], _meta=meta)


def cancelled(id, params):
    listeners.pop(params["requestId"], None)


def subscribe(id, params):
    if params["uri"].startswith("mem:///no"):
        return fail(id, -32002, "no such resource")
    subscribed.add(params["uri"])
    answer(id, {})


CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}
INFO = {"name": "talker", "version": "1"}
CACHING = {"ttlMs": 7000, "cacheScope": "public"}

METHODS = {
    "tools/list": list_tools,
    "tools/call": call,
    "prompts/get": get_prompt,
    "prompts/list": lambda id, params: answer(
        id, {"prompts": [{"name": "greet"}, {"name": "a b"}, {"name": "ask"}]}, **CACHING
    ),
    "resources/read": read,
    "resources/list": lambda id, params: answer(
        id, {"resources": [{"uri": "mem:///a", "name": "a"}, {"uri": "odd uri/\u00e9", "name": "b"}]}, **CACHING
    ),
    "resources/templates/list": lambda id, params: answer(
        id, {"resourceTemplates": [{"uriTemplate": "mem:///{x}", "name": "x"}]}, **CACHING
    ),
    "completion/complete": lambda id, params: answer(
        id, {"completion": {"values": [json.dumps(params["ref"])]}}
    ),
    "subscriptions/listen": listen,
    "notifications/cancelled": cancelled,
}
if MODERN:
    METHODS["server/discover"] = lambda id, params: answer(
        id,
        {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": CAPABILITIES,
            "_meta": {META + "serverInfo": INFO},
            **CACHING,
        },
    )
else:
    METHODS["initialize"] = lambda id, params: answer(
        id, {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": INFO}
    )
    METHODS["resources/subscribe"] = subscribe
    METHODS["resources/unsubscribe"] = lambda id, params: (subscribed.discard(params["uri"]), answer(id, {}))


LOG.write("start %d\n" % os.getpid())
for line in sys.stdin.buffer:
    LOG.write("> " + line.decode().rstrip("\n") + "\n")
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if method in METHODS:
        METHODS[method](id, message.get("params", {}))
    elif method and id is not None:
        fail(id, -32601, "no such method")
