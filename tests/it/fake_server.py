"""An MCP server that does what a test asks of it: options say how it greets, tools how it misbehaves.

Options are KEY=VALUE arguments:
  log=PATH           every start, every line received (>) and every line sent (<) is noted there
  extra=PATH         names of further tools, or their definitions, one per line, read whenever the tools are listed
  discover=WHAT      modern, slow (modern, after 3 s), ignore, or the code of an error; -32601 unless told
  eras=both          it answers `server/discover` and `initialize`, and speaks what came first
  initialize=WHAT    refuse, odd (an answer that is none), future (a version that nobody knows)
  pages=N            the tools are listed on N pages
  cursor=loop        the last page leads back to the first
  start=WHAT         fail (exit code 3, after a word on standard error), slow (1 s late), mute
  mute_after=N       as with start=mute, but the first N starts
  mute_while=PATH    as with start=mute, as long as there is such a file
  stubborn=yes       neither the end of its input nor SIGTERM ends it
  capabilities=JSON  what it says it can do, instead of tools alone
  about=PATH         further members of its answer to `initialize` or `server/discover`, as JSON text
  subscribe=refuse   no resource can be subscribed to; those whose names end in `hang` are never answered
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[1:])
MODERN = OPTIONS.get("discover") in ("modern", "slow")
BOTH = "eras" in OPTIONS
LOG = open(OPTIONS["log"], "a", buffering=1)
ONE_WRITER = threading.Lock()
ODD_RESULT = '{ "content" : [],  "n": 12345678901234567890123, "x":1.10,"z":0, "a":{"\\u00e9":"\\/ é"} ,"e":1E+2}'
ODD_TOOL = '{"name":"odd",  "inputSchema":{"type" : "object"}, "x-n": 1.10, "x-big":12345678901234567890123}'
CAPABILITIES = json.loads(OPTIONS.get("capabilities", '{"tools": {"listChanged": true}}'))
held = []
asking = {}
listener = None


def send(text):
    with ONE_WRITER:
        LOG.write("< " + text[:500] + "\n")
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def answer(id, result):
    send('{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(id), result))


def fail(id, code, message="no", **more):
    error = {"code": code, "message": message, **more}
    send(json.dumps({"jsonrpc": "2.0", "id": id, "error": error}))


def text(words):
    return json.dumps({"content": [{"type": "text", "text": words}]})


def release():
    for id, words in reversed(held):
        answer(id, text(words))
    held.clear()


def list_changed():
    params = {}
    if MODERN:
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": listener}}
    send(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": params}))


def start_others():
    """One child in the server's own group, one orphan in a session of its own."""
    child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
    orphan = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo $!"], start_new_session=True, stdout=subprocess.PIPE
    )
    return json.dumps([child.pid, int(orphan.stdout.readline())])


def say(messages):
    """Sends messages as they are, but for the members that each needs."""
    for message in messages:
        send(json.dumps({"jsonrpc": "2.0", **message}))


def burst(id, progress, lines):
    """Writes much at once: so many reports of progress, so many log lines, and the answer."""
    told = [("progress", {"progressToken": id, "progress": step}) for step in range(1, progress + 1)]
    told += [("message", {"level": "info", "data": line}) for line in range(lines)]
    messages = [{"jsonrpc": "2.0", "method": "notifications/" + name, "params": params} for name, params in told]
    messages.append({"jsonrpc": "2.0", "id": id, "result": json.loads(text("done"))})
    send("\n".join(json.dumps(message) for message in messages))


def progress(id, steps):
    """Tells how far a call is, whether that was asked for or not. The gateway's token is the id."""
    for step in steps:
        params = {"progressToken": id, "progress": step, "total": 10, "message": "step %d" % step}
        say([{"method": "notifications/progress", "params": params}])


def slowly(id, steps, ms):
    """Tells how far it is now and then, and answers at last."""
    for step in range(steps):
        time.sleep(ms / 1000)
        progress(id, [step])
    answer(id, text("done"))


def ask(id, question):
    """Puts a question to the client; the call is answered with whatever comes back, as text."""
    asking[json.dumps(question["id"])] = id
    say([question])


def asked(id, line):
    call = asking.pop(json.dumps(id), None)
    if call is not None:
        answer(call, text(line))


def empty_list(id, method):
    member = {"prompts/list": "prompts", "resources/list": "resources"}.get(method, "resourceTemplates")
    answer(id, json.dumps({member: []}))


def subscribe(id, uri):
    if uri.endswith("hang"):
        return
    if OPTIONS.get("subscribe") == "refuse":
        return fail(id, -32002, "no such resource", data={"why": "refused"})
    answer(id, "{}")


def step(id, steps):
    """Each call takes the next of the steps; the last one is for all that follow."""
    with open(OPTIONS["log"] + ".steps", "a+") as taken:
        taken.write(".")
        taken.flush()
        now = steps[min(taken.tell(), len(steps)) - 1]
    if now == "exit":
        os._exit(1)
    words = text("step %s of %d" % (now, os.getpid()))
    if now == "answer":
        answer(id, words)
    if now == "late":
        threading.Timer(1.2, answer, (id, words)).start()


def flood(lines, size):
    """Lines that are no messages."""
    with ONE_WRITER:
        for _ in range(lines):
            sys.stdout.write("x" * size + "\n")
        sys.stdout.flush()


def answer_endlessly(id, size):
    """One line, never held in memory as a whole."""
    chunk = "x" * (1 << 20)
    with ONE_WRITER:
        sys.stdout.write('{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"' % json.dumps(id))
        for _ in range(size >> 20):
            sys.stdout.write(chunk)
        sys.stdout.write('"}]}}\n')
        sys.stdout.flush()


def stand_still():
    while True:
        time.sleep(60)


TOOLS = {
    # What it was given, as text; its whole line; a result that no serializer would write so.
    "raw": lambda id, args, raw: answer(id, text(raw)),
    "odd": lambda id, args, raw: answer(id, ODD_RESULT),
    "pid": lambda id, args, raw: answer(id, text(str(os.getpid()))),
    "env": lambda id, args, raw: answer(id, text(os.environ.get(args["name"], ""))),
    # Answers that come later, or not at all.
    "hold": lambda id, args, raw: held.append((id, raw)),
    "release": lambda id, args, raw: (release(), answer(id, text("released"))),
    "later": lambda id, args, raw: threading.Timer(
        args["ms"] / 1000, answer, (id, text("later"))
    ).start(),
    "serial": lambda id, args, raw: (time.sleep(args["ms"] / 1000), answer(id, text("done"))),
    "deaf": lambda id, args, raw: stand_still(),
    "exit": lambda id, args, raw: os._exit(args.get("code", 0)),
    "close": lambda id, args, raw: (os.close(1), stand_still()),
    # What becomes of a call depends on how many there were before it, over all runs of the server.
    "steps": lambda id, args, raw: step(id, args["steps"]),
    "steps_once": lambda id, args, raw: step(id, args["steps"]),
    # Answers that are wrong.
    "error": lambda id, args, raw: fail(id, **args),
    "half_error": lambda id, args, raw: fail(id, 7, "no \ud800", data={"x": 1}),
    "bad_error": lambda id, args, raw: send('{"jsonrpc":"2.0","id":%d,"error":{"code":"x"}}' % id),
    "result": lambda id, args, raw: answer(id, json.dumps(args["value"])),
    "big": lambda id, args, raw: answer(id, text("x" * args["bytes"])),
    "big_unknown": lambda id, args, raw: send('{"x":"%s"}' % ("x" * args["bytes"])),
    "endless": lambda id, args, raw: answer_endlessly(id, args["bytes"]),
    "wrong_id": lambda id, args, raw: (
        answer(id + 1, text("forged")), answer(str(id), text("forged")), answer(id, text("right")),
    ),
    "twice": lambda id, args, raw: (answer(id, text("first")), answer(id, text("second"))),
    "garbage": lambda id, args, raw: (send("no JSON"), send("{}"), send(""), answer(id, text("ok"))),
    "garbage_flood": lambda id, args, raw: (
        flood(args["lines"], args.get("len", 20)), answer(id, text("flooded")),
    ),
    # What reaches beyond the protocol.
    "change": lambda id, args, raw: (list_changed(), answer(id, text("changed"))),
    "spawn": lambda id, args, raw: answer(id, text(start_others())),
    "stderr": lambda id, args, raw: (
        [os.write(2, b"x" * 1023 + b"\n") for _ in range(args["kib"])], answer(id, text("written")),
    ),
    "say": lambda id, args, raw: (say(args["messages"]), answer(id, text("said"))),
    "progress": lambda id, args, raw: (progress(id, args["steps"]), answer(id, text("done"))),
    "burst": lambda id, args, raw: burst(id, args.get("progress", 0), args.get("lines", 0)),
    "chatter": lambda id, args, raw: (
        say([
            {"method": "notifications/progress",
             "params": {"progressToken": id, "progress": line, "message": "x" * args["bytes"]}}
            for line in range(args["lines"])
        ]),
        answer(id, text("done")),
    ),
    "slowly": lambda id, args, raw: threading.Thread(
        target=slowly, args=(id, args["steps"], args["ms"]), daemon=True
    ).start(),
    "say_and_hold": lambda id, args, raw: (say(args["messages"]), held.append((id, "say_and_hold"))),
    "question": lambda id, args, raw: ask(id, args["question"]),
    "withdraw": lambda id, args, raw: (
        say([{"method": "notifications/cancelled", "params": {"requestId": args["id"]}}]),
        asked(args["id"], "withdrawn"), answer(id, text("withdrawn")),
    ),
    "ask": lambda id, args, raw: (
        held.append((id, "")),
        send('{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}'),
    ),
}


def definitions():
    names, whole = [name for name in TOOLS if name != "odd"], [ODD_TOOL]
    if os.path.exists(OPTIONS.get("extra", "")):
        lines = open(OPTIONS["extra"]).read().splitlines()
        names += [name for line in lines if not line.startswith("{") for name in line.split()]
        whole += [line for line in lines if line.startswith("{")]
    hints = {"steps": ',"annotations":{"readOnlyHint":true}'}
    plain = [
        '{"name":%s,"inputSchema":{"type":"object"}%s}' % (json.dumps(name), hints.get(name, ""))
        for name in names
    ]
    return whole + plain


def list_tools(id, cursor):
    tools, pages, page = definitions(), int(OPTIONS.get("pages", 1)), int(cursor or 0)
    size = -(-len(tools) // pages)
    following = page + 1 if page + 1 < pages else (0 if "cursor" in OPTIONS else None)
    cursor = "" if following is None else ',"nextCursor":"%d"' % following
    kind = ',"resultType":"complete","ttlMs":0,"cacheScope":"private"' if MODERN else ""
    shown = ",".join(tools[page * size : (page + 1) * size])
    answer(id, '{"tools":[%s]%s%s}' % (shown, cursor, kind))


def call(id, params, line):
    # The text of the arguments as it came over the wire.
    start = line.index('"arguments":') + len('"arguments":')
    raw = line[start : json.JSONDecoder().raw_decode(line, start)[1]]
    name = params["name"]
    if name in TOOLS:
        TOOLS[name](id, params["arguments"], raw)
    else:
        answer(id, text(name))


def discover(id):
    global MODERN
    MODERN = MODERN or BOTH
    how = OPTIONS.get("discover", "-32601")
    if how == "ignore":
        return
    if not MODERN:
        return fail(id, int(how))
    if how == "slow":
        time.sleep(3)
    info = {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}}
    result = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "_meta": info}
    answer(id, described({**result, "capabilities": CAPABILITIES}))


def initialize(id):
    if MODERN:
        return fail(id, -32601, "no such method")
    how = OPTIONS.get("initialize")
    if how == "refuse":
        return fail(id, -32000, "not today")
    if how == "odd":
        return answer(id, "{}")
    info = {"name": "fake", "version": "1"}
    version = "2999-01-01" if how == "future" else "2025-11-25"
    result = {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": info}
    answer(id, described(result))


def described(result):
    """What it says of itself, in the words of a test."""
    about = json.loads(open(OPTIONS["about"]).read()) if "about" in OPTIONS else {}
    return json.dumps({**result, **about})


def take(line):
    global listener
    message = json.loads(line)
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "server/discover":
        discover(id)
    elif method == "initialize":
        initialize(id)
    elif method == "tools/list":
        list_tools(id, params.get("cursor"))
    elif method == "tools/call":
        call(id, params, line)
    elif method == "subscriptions/listen":
        listener = id
    elif method in ("prompts/list", "resources/list", "resources/templates/list"):
        empty_list(id, method)
    elif method == "resources/subscribe":
        subscribe(id, params["uri"])
    elif method in ("ping", "resources/unsubscribe", "logging/setLevel"):
        answer(id, "{}")
    elif method == "notifications/roots/list_changed":
        say([{"id": "roots", "method": "roots/list"}])
    elif method is None and id != "q":
        asked(id, line)
    elif id == "q":
        # The answer to `ask` is what the gateway answered.
        answer(held.pop()[0], text(line))


def main():
    own = "start %d\n" % os.getpid()
    LOG.write(own)
    # Several may be started at once.
    starts = [line for line in open(OPTIONS["log"]) if line.startswith("start ")].index(own)
    if OPTIONS.get("start") == "fail":
        print("cannot find my bearings", file=sys.stderr)
        sys.exit(3)
    if OPTIONS.get("start") == "slow":
        time.sleep(1)
    if OPTIONS.get("start") == "mute" or starts >= int(OPTIONS.get("mute_after", starts + 1)):
        stand_still()
    if os.path.exists(OPTIONS.get("mute_while", "")):
        stand_still()
    if "stubborn" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        line = line.decode().rstrip("\n")
        LOG.write("> " + line + "\n")
        take(line)
    if "stubborn" in OPTIONS:
        stand_still()


main()
