"""A server that declares extensions: skills, tasks, a page of an app, and one that nobody knows.

Arguments are KEY=VALUE: `log=PATH`, `era=legacy` (modern unless told), `events=yes`, `skill=PATH`: the digest of its
skill, read whenever that is asked for. Its tasks have
ids that anybody can guess, from task-1 in each process.
"""

import json
import os
import sys
import time

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[1:])
LOG = open(OPTIONS["log"], "a", buffering=1)
MODERN = OPTIONS.get("era") != "legacy"
META = "io.modelcontextprotocol/clientCapabilities"
TASKS = "io.modelcontextprotocol/tasks"
UI = "ui://clock/page.html"
SKILL = "skill://git/SKILL.md"
CAPABILITIES = {
    "tools": {},
    "resources": {},
    "extensions": {
        "io.modelcontextprotocol/skills": {"directoryRead": True},
        TASKS: {},
        "io.modelcontextprotocol/ui": {},
        "com.example/x": {"y": 1},
    },
    **({"events": {}} if "events" in OPTIONS else {}),
}
TOOLS = [
    {"name": "slow", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
    {"name": "clock", "inputSchema": {"type": "object"}, "_meta": {"ui": {"resourceUri": UI}}},
    {"name": "end", "inputSchema": {"type": "object"}},
    {"name": "nap", "inputSchema": {"type": "object"}},
    {"name": "tell", "inputSchema": {"type": "object"}},
]
ENTRY = {
    "uri": SKILL,
    "frontmatter": {"name": "git", "description": "d"},
    "resources": [{"uri": SKILL, "digest": "sha256:" + "0" * 64, "size": 1}],
}
tasks = {}


def entry():
    if not os.path.exists(OPTIONS.get("skill", "")):
        return ENTRY
    digest = open(OPTIONS["skill"]).read().strip()
    return {**ENTRY, "resources": [{**ENTRY["resources"][0], "digest": digest}]}


class Refused(Exception):
    pass


def task(id):
    if id not in tasks:
        raise Refused(-32602, "no task " + id)
    about = {"taskId": id, "status": "working", "createdAt": "2026-01-01T00:00:00Z",
             "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None}
    return {**about, **tasks[id]}


def call(params):
    name, arguments = params["name"], params.get("arguments", {})
    if name == "slow":
        if TASKS not in params.get("_meta", {}).get(META, {}).get("extensions", {}):
            required = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise Refused(-32021, "Missing required client capability", required)
        id = "task-%d" % (len(tasks) + 1)
        tasks[id] = {"statusMessage": json.dumps(arguments)}
        return {"resultType": "task", **task(id)}
    if name == "end":
        os._exit(3)
    if name == "tell":
        for told in arguments["messages"]:
            print(json.dumps({"jsonrpc": "2.0", **told}), flush=True)
    time.sleep(arguments.get("ms", 0) / 1000)
    return {"content": [{"type": "text", "text": json.dumps(arguments)}], "isError": "fail" in arguments}


def answer(method, params):
    if method == "server/discover":
        if not MODERN:
            raise Refused(-32601, "Method not found")
        return {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "ttlMs": 0, "cacheScope": "private"}
    if method == "initialize":
        info = {"name": "extending", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        return call(params)
    if method == "resources/list":
        return {"resources": [{"uri": UI, "name": "page"}, {"uri": "file:///secret", "name": "secret"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": "read " + params["uri"]}]}
    if method == "skills/list":
        return {"skills": [entry()]}
    if method == "skills/get":
        if params["uri"] != SKILL:
            raise Refused(-32602, "no such skill")
        return {"skill": entry()}
    if method == "resources/directory/read":
        return {"resources": [{"uri": params["uri"] + "/SKILL.md", "name": "SKILL.md"}]}
    if method == "tasks/get":
        return task(params["taskId"])
    if method == "tasks/update":
        task(params["taskId"])
        tasks[params["taskId"]]["statusMessage"] = json.dumps(params["inputResponses"])
        return {}
    if method == "tasks/cancel":
        task(params["taskId"])
        tasks[params["taskId"]]["status"] = "cancelled"
        return {}
    if method.startswith("x/") or method.startswith("events/"):
        return {"method": method, "said": {name: value for name, value in params.items() if name != "_meta"}}
    raise Refused(-32601, "Method not found")


for line in sys.stdin:
    LOG.write("> " + line)
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        told = {"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {}, "_meta": meta}}
        print(json.dumps({"jsonrpc": "2.0", **told}), flush=True)
        continue
    try:
        result = answer(message["method"], message.get("params", {}))
        if MODERN:
            result = {"resultType": "complete", **result}
        said = {"result": result}
    except Refused as refused:
        code, words, *data = refused.args
        said = {"error": {"code": code, "message": words, **({"data": data[0]} if data else {})}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
