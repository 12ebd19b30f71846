"""The checks that both Python clients run, in the order of all the other clients.

A client is a function `connect(url)` that is an async context manager of a session: `version`, `tools`, `call`,
`call_and_cancel`, `resources`, `templates`, `read`, `prompts`, `prompt` and `complete`.
"""

import json
import sys
import time

import anyio

BASE, EXPECTED_FILE, *REST = sys.argv[1:]
ERA, CHECKS = REST + ["legacy", "all"][len(REST) :]
EXPECTED = json.load(open(EXPECTED_FILE, encoding="utf-8"))

# Longer than any check should take: a check that hangs fails.
CHECK_S_MAX = 30

failed = 0


def run(connect):
    anyio.run(run_all, connect)
    sys.exit(1 if failed else 0)


async def run_all(connect):
    if CHECKS == "connects":
        return await run_connects(connect)
    for endpoint in EXPECTED["endpoints"]:
        try:
            async with connect(BASE + endpoint["path"]) as session:
                await Endpoint(endpoint, session).check_all()
            report(endpoint, "close")
        except BaseException as error:  # a session that dies cancels everything in it
            report(endpoint, "session", error)


async def run_connects(connect):
    """Connects again and again and lists each time, as a tenant that may call once a second. Then it calls."""
    endpoint = EXPECTED["connects"]
    for n in range(endpoint["times"]):
        async with connect(BASE + endpoint["path"]) as session:
            checks = Endpoint(endpoint, session)
            await checks.check(f"connect {n} and list", checks.tools)
            if n + 1 == endpoint["times"]:
                await checks.check("call", lambda: checks.echo("one"))


def report(endpoint, name, error=None):
    global failed
    if error is None:
        print(f"ok {endpoint['path']} {name}", flush=True)
    else:
        failed += 1
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"FAIL {endpoint['path']} {name}: {type(error).__name__} {error}"[:300], flush=True)


class Endpoint:
    def __init__(self, endpoint, session):
        self.endpoint, self.session = endpoint, session
        self.prefixed = endpoint.get("prefixed", False)

    async def check(self, name, work):
        try:
            with anyio.fail_after(CHECK_S_MAX):
                await work()
            report(self.endpoint, name)
        except Exception as error:
            report(self.endpoint, name, error)

    def has(self, server):
        return server in self.endpoint["servers"]

    def named(self, server, name):
        return f"{server}__{name}" if self.prefixed else name

    def located(self, server, uri):
        return f"trunkline:{server}/{uri}" if self.prefixed else uri

    async def call(self, server, tool, arguments, **options):
        return await self.session.call(self.named(server, tool), arguments, **options)

    async def echo(self, text):
        answer, _ = await self.call("std", "echo", {"text": text})
        assert answer == text, f"{answer[:100]!r} is not {text[:100]!r}"

    async def check_all(self):
        await self.check("connect", self.connect)
        await self.check("tools", self.tools)
        for it in EXPECTED["calls"]:
            if self.has(it["server"]):
                await self.check(f"call {it['server']} {it['tool']}", lambda: self.plain_call(it))
        if self.has("std"):
            await self.check("unicode", lambda: self.echo(EXPECTED["unicode"]))
            await self.check("tool error", self.tool_error)
        await self.check("unknown tool", self.unknown_tool)
        if self.has(EXPECTED["progress"]["server"]):
            await self.check("progress", self.progress)
        if self.has("std"):
            await self.check("cancel", self.cancel)
            await self.check("large", self.large)
            await self.check("parallel", self.parallel)
        if self.has(EXPECTED["resource"]["server"]):
            await self.check("resources", self.resources)
            await self.check("templates", self.templates)
        if self.has(EXPECTED["prompt"]["server"]):
            await self.check("prompt", self.prompt)
            await self.check("complete", self.complete)

    async def connect(self):
        wanted = EXPECTED["versions"][ERA]
        assert self.session.version == wanted, f"{self.session.version} is not {wanted}"

    async def tools(self):
        names = await self.session.tools()
        wanted = [self.named(server, tool) for server in self.endpoint["servers"] for tool in EXPECTED["tools"][server]]
        assert not set(wanted) - set(names), f"missing {set(wanted) - set(names)} in {names}"

    async def plain_call(self, it):
        text, is_error = await self.call(it["server"], it["tool"], it["arguments"])
        assert not is_error and it["says"] in text, text

    async def tool_error(self):
        text, is_error = await self.call("std", "fail", {"message": "no luck"})
        assert is_error and "no luck" in text, text

    async def unknown_tool(self):
        try:
            result = await self.call(self.endpoint["servers"][0], "no_such_tool", {})
        except self.session.Error as error:
            assert error.error.code == EXPECTED["unknown_tool_code"], error.error
        else:
            raise AssertionError(f"no error, but {result}")

    async def progress(self):
        it, seen = EXPECTED["progress"], []

        async def on_progress(progress, total, message):
            seen.append(progress)

        await self.call(it["server"], it["tool"], it["arguments"], progress_callback=on_progress)
        assert len(seen) >= 2 and all(a < b for a, b in zip(seen, seen[1:])), f"progress was {seen}"

    async def cancel(self):
        it, began = EXPECTED["cancel"], time.monotonic()
        await self.session.call_and_cancel(self.named(it["server"], it["tool"]), it["arguments"], after=0.2)
        assert time.monotonic() - began < 5, "it took too long"
        await self.echo("still here")

    async def large(self):
        await self.echo("0123456789abcdef" * (EXPECTED["large_bytes"] // 16))

    async def parallel(self):
        async with anyio.create_task_group() as tasks:
            for i in range(EXPECTED["parallel"]):
                tasks.start_soon(self.echo, f"number {i}")

    async def resources(self):
        it = EXPECTED["resource"]
        uri = self.located(it["server"], it["uri"])
        assert uri in await self.session.resources()
        assert it["says"] in await self.session.read(uri)

    async def templates(self):
        it = EXPECTED["resource"]
        assert self.located(it["server"], it["template"]) in await self.session.templates()
        assert it["expanded_says"] in await self.session.read(self.located(it["server"], it["expanded"]))

    async def prompt(self):
        it = EXPECTED["prompt"]
        name = self.named(it["server"], it["name"])
        assert name in await self.session.prompts()
        assert it["says"] in await self.session.prompt(name, it["arguments"])

    async def complete(self):
        for it in EXPECTED["complete"]:
            ref = {"type": "ref/prompt", "name": self.named(it["server"], it["prompt"])}
            values = await self.session.complete(ref, it["argument"], it["value"], it.get("context"))
            assert values == it["values"], values
        it = EXPECTED["complete_template"]
        ref = {"type": "ref/resource", "uri": self.located(it["server"], EXPECTED["resource"]["template"])}
        values = await self.session.complete(ref, it["argument"], it["value"])
        assert values == it["values"], values
