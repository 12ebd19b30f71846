"""Extensions as the 2.x line of the official Python SDK sees them: requests, skills, notifications.

python extensions.py BASE_URL legacy|modern     The server is tests/it/extending_server.py, at /mcp/ext.
"""

import sys

import anyio
from mcp import Client, types
from mcp.client.extension import ClientExtension, NotificationBinding

BASE, ERA = sys.argv[1:]
SKILL = "skill://git/SKILL.md"
failed = 0


class Anything(types.Result):
    model_config = {"extra": "allow"}


class Moved(types.NotificationParams):
    n: int


class Moving(ClientExtension):
    identifier = "com.example/x"

    def __init__(self):
        self.moved = anyio.Event()

    def notifications(self):
        async def moved(params):
            assert params.n == 7, params
            self.moved.set()

        return [NotificationBinding(method="notifications/x/moved", params_type=Moved, handler=moved)]


async def check(path, name, work, extensions=()):
    global failed
    try:
        mode = "auto" if ERA == "modern" else "legacy"
        with anyio.fail_after(30):
            async with Client(BASE + path, mode=mode, extensions=list(extensions)) as client:
                await work(client)
        print(f"ok python-v2 {ERA} {path} {name}", flush=True)
    except BaseException as error:
        failed += 1
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"FAIL python-v2 {ERA} {path} {name}: {type(error).__name__} {error}"[:300], flush=True)


async def ask(client, method, **params):
    result = await client.session.send_request(types.Request[dict, str](method=method, params=params), Anything)
    return result.model_dump(by_alias=True)


async def request(client):
    said = await ask(client, "x/do", a=1.5)
    assert said["said"] == {"a": 1.5}, said


def skills(uri):
    async def work(client):
        listed = await ask(client, "skills/list")
        assert [it["uri"] for it in listed["skills"]] == [uri], listed
        got = await ask(client, "skills/get", uri=uri)
        assert got["skill"]["resources"][0]["uri"] == uri, got
        read = await client.read_resource(uri)
        assert read.contents[0].text == "read " + SKILL, read

    return work


async def notified():
    extension = Moving()
    messages = [{"method": "notifications/x/moved", "params": {"n": 7}}]

    async def work(client):
        await client.call_tool("clock", {})
        if ERA == "modern":
            async with client.listen(tools_list_changed=True):
                await client.call_tool("tell", {"messages": messages})
                await extension.moved.wait()
        else:
            await anyio.sleep(0.5)  # the stream for changes is opened in the background, and nothing says when
            await client.call_tool("tell", {"messages": messages})
            await extension.moved.wait()

    await check("/mcp/ext", "a notification", work, [extension])


async def main():
    await check("/mcp/ext", "a request", request, [Moving()])
    await check("/mcp/ext", "skills", skills(SKILL))
    await check("/mcp", "skills of all servers", skills("skill://ext/git/SKILL.md"))
    await notified()


anyio.run(main)
sys.exit(1 if failed else 0)
