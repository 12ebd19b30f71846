"""The tools that the suite's scenarios of the tasks extension call, over stdio, in the modern era."""

import json
import sys
import threading
import time

TASKS = "io.modelcontextprotocol/tasks"
CLIENT = "io.modelcontextprotocol/clientCapabilities"
# Always tasks, and tasks for clients that take them.
REQUIRED = {"failing_job", "test_tool_with_task"}
OPTIONAL = {"slow_compute", "protocol_error_job", "confirm_delete", "multi_input"}
SCHEMA = {"type": "object"}
TOOLS = [
    {"name": name, "description": name, "inputSchema": SCHEMA,
     **({"execution": {"taskSupport": "required"}} if name in REQUIRED else {})}
    for name in ["greet", *sorted(OPTIONAL | REQUIRED)]
]
tasks = {}
lock = threading.Lock()


class Refused(Exception):
    pass


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def text(words, failed=False):
    return {"resultType": "complete", "content": [{"type": "text", "text": words}], "isError": failed}


def question(words):
    schema = {"type": "object", "properties": {"value": {"type": "string"}, "user_name": {"type": "string"}}}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": words, "requestedSchema": schema}}


class Task:
    def __init__(self, work, questions=()):
        self.id, self.status, self.more, self.at = "task-%d" % len(tasks), "working", {}, now()
        self.waiting = {key: question(key) for key in questions}
        self.answers, self.given, self.cancelled = {}, threading.Event(), threading.Event()
        if self.waiting:
            self.status = "input_required"
        tasks[self.id] = self
        threading.Thread(target=self.run, args=[work], daemon=True).start()

    def run(self, work):
        if self.waiting:
            self.given.wait()
        try:
            end = ("completed", {"result": work(self)})
        except Refused as refused:
            end = ("failed", {"error": {"code": refused.args[0], "message": refused.args[1]}})
        with lock:
            if self.status != "cancelled":
                self.status, self.more = end

    def update(self, answers):
        with lock:
            for key in [key for key in answers if key in self.waiting]:
                self.answers[key] = answers[key]
                del self.waiting[key]
            if self.status == "input_required" and not self.waiting:
                self.status = "working"
                self.given.set()

    def cancel(self):
        with lock:
            if self.status in ("working", "input_required"):
                self.status, self.more = "cancelled", {}
        self.cancelled.set()

    def told(self, kind):
        with lock:
            asked = {"inputRequests": self.waiting} if self.status == "input_required" and kind != "task" else {}
            return {"resultType": kind, "taskId": self.id, "status": self.status, "createdAt": self.at,
                    "lastUpdatedAt": now(), "ttlMs": 600000, "pollIntervalMs": 100, **asked, **self.more}


def compute(seconds):
    def work(task):
        task.cancelled.wait(seconds)
        return text("computed for %s s" % seconds)
    return work


def fail_badly(_):
    raise Refused(-32603, "the job broke")


def call(params):
    name, arguments = params["name"], params.get("arguments", {})
    takes_tasks = TASKS in params["_meta"][CLIENT].get("extensions", {})
    if name in REQUIRED and not takes_tasks:
        needs = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise Refused(-32021, "Missing required client capability", needs)
    if name == "greet":
        return text("Hello, %s!" % arguments.get("name"))
    if name == "test_tool_with_task":
        answer = params.get("inputResponses", {}).get("user_name")
        if answer is None:
            return {"resultType": "input_required", "inputRequests": {"user_name": question("Your name?")},
                    "requestState": "asked"}
        given = json.dumps(answer)
        return Task(lambda _: text("Hello " + given)).told("task")
    work, questions = {
        "slow_compute": (compute(arguments.get("seconds", 0)), ()),
        "failing_job": (lambda task: task.cancelled.wait(1) or text("failed", True), ()),
        "protocol_error_job": (fail_badly, ()),
        "confirm_delete": (lambda task: text("deleted: " + json.dumps(task.answers)), ("confirm",)),
        "multi_input": (lambda task: text("given: " + json.dumps(task.answers)), ("first", "second")),
    }[name]
    if takes_tasks:
        return Task(work, questions).told("task")
    return compute(0)(type("Untold", (), {"cancelled": threading.Event()}))


def task_of(params):
    if params["taskId"] not in tasks:
        raise Refused(-32602, "there is no such task")
    return tasks[params["taskId"]]


def answer(method, params):
    if method == "server/discover":
        capabilities = {"tools": {}, "extensions": {TASKS: {}}}
        return {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
                "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/list":
        return {"resultType": "complete", "tools": TOOLS, "ttlMs": 0, "cacheScope": "private"}
    if method == "tools/call":
        return call(params)
    if method == "tasks/get":
        return task_of(params).told("complete")
    if method == "tasks/update":
        task_of(params).update(params.get("inputResponses", {}))
        return {"resultType": "complete"}
    if method == "tasks/cancel":
        task_of(params).cancel()
        return {"resultType": "complete"}
    raise Refused(-32601, "Method not found")


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or message["method"] == "subscriptions/listen":
        continue
    try:
        said = {"result": answer(message["method"], message.get("params", {}))}
    except Refused as refused:
        code, words, *data = refused.args
        said = {"error": {"code": code, "message": words, **({"data": data[0]} if data else {})}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)
