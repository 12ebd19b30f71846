"""Toolsets with overrides, and questions of servers of both eras, as the official Python SDKs see them.

python toolsets.py BASE_URL RELOAD v1|v2 legacy|modern     RELOAD WORD: see ../typescript/toolsets.mjs
"""

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import mcp

BASE, RELOAD, LINE, ERA = sys.argv[1:]
# The SHA-256 of `x`.
OF_X = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
ANSWER = {"username": "Ada", "email": "a@example.com"}
Refusal = mcp.McpError if LINE == "v1" else mcp.MCPError
failed = 0


async def elicit(context, params):
    return mcp.types.ElicitResult(action="accept", content=ANSWER)


@asynccontextmanager
async def connect(path, on_message):
    async def handler(message):
        on_message(message)

    if LINE == "v1":
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(BASE + path) as (read, write, *_):
            session = mcp.ClientSession(read, write, elicitation_callback=elicit, message_handler=handler)
            async with session as client:
                await client.initialize()
                yield client
    else:
        mode = "auto" if ERA == "modern" else "legacy"
        async with mcp.Client(BASE + path, mode=mode, elicitation_callback=elicit, message_handler=handler) as client:
            yield client


async def check(path, name, work, on_message=lambda message: None):
    global failed
    try:
        with anyio.fail_after(30):
            async with connect(path, on_message) as client:
                await work(client)
        print(f"ok {LINE} {ERA} {path} {name}", flush=True)
    except BaseException as error:
        failed += 1
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(f"FAIL {LINE} {ERA} {path} {name}: {type(error).__name__} {error}"[:300], flush=True)


def text(result):
    return "".join(getattr(it, "text", "") for it in result.content)


def plain(tool):
    """The definition as it is on the wire, whatever this line of the SDK calls its members."""
    return tool.model_dump(mode="json", by_alias=True, exclude_none=True)


async def refused(call, part):
    try:
        result = await call
    except Refusal as error:
        assert part in str(error), error
    else:
        raise AssertionError(f"no error, but {result}")


async def definitions(client):
    tools = [plain(it) for it in (await client.list_tools()).tools]
    assert [it["name"] for it in tools] == ["digest", "std__uuid", "std__echo"], tools
    assert tools[0]["description"] == "Computes a digest."
    properties = tools[0]["inputSchema"]["properties"]
    assert list(properties) == ["text"] and properties["text"]["description"] == "Any text", properties
    assert "outputSchema" not in tools[0]


async def fixed(client):
    assert text(await client.call_tool("digest", {"text": "x"})) == OF_X
    for name in ("algorithm", "Algorithm"):
        await refused(client.call_tool("digest", {"text": "x", name: "sha512"}), name)


async def hidden(client):
    await refused(client.call_tool("std__hash", {"text": "x", "algorithm": "sha512"}), "no tool")
    await refused(client.call_tool("hash", {"text": "x"}), "no tool")


async def cut(client):
    result = await client.call_tool("std__echo", {"text": "0123456789abcdef" * 100})
    assert len(result.content[0].text) == 1024 and "`max_bytes`" in result.content[1].text, result.content
    assert result.meta["trunkline/cut"]["by"] == "max_bytes", result.meta


async def searched(client):
    assert [it.name for it in (await client.list_tools()).tools] == ["search_tools", "call_tool"]
    found = json.loads(text(await client.call_tool("search_tools", {"query": "hash digest", "limit": 1})))
    assert [it["name"] for it in found] == ["std__hash"], found
    called = await client.call_tool("call_tool", {"name": "std__echo", "arguments": {"text": "hi"}})
    assert text(called) == "hi", called


async def reloaded():
    """The client hears that the list has changed, and finds the new description in it."""
    changed, word = anyio.Event(), f"word{os.getpid()}"

    def on_message(message):
        message = getattr(message, "root", message)
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            changed.set()

    async def renewed(client):
        tools = (await client.list_tools()).tools
        assert word in tools[0].description, tools

    async def change():
        await anyio.to_thread.run_sync(lambda: subprocess.run([RELOAD, word], check=True))

    async def work(client):
        await client.list_tools()
        if ERA == "modern":
            async with client.listen(tools_list_changed=True) as events:
                await change()
                async for _ in events:
                    break
        else:
            await anyio.sleep(0.5)  # the stream for changes is opened in the background, and nothing says when
            await change()
            await changed.wait()
        await renewed(client)

    await check("/mcp/t/live", "a reload is told of", work, on_message)


async def asked(client):
    assert "Ada" in text(await client.call_tool("test_elicitation", {"message": "Who?"}))


async def main():
    await check("/mcp/t/agent", "names, descriptions, arguments", definitions)
    await check("/mcp/t/agent", "a fixed argument and a pointer", fixed)
    await check("/mcp/t/agent", "no tool by its name at the server", hidden)
    await check("/mcp/t/agent", "a result that is cut says so", cut)
    await check("/mcp/t/searched", "search and call", searched)
    await reloaded()
    for path in ("/mcp/modern", "/mcp/legacy"):
        await check(path, "a question", asked)


anyio.run(main)
sys.exit(1 if failed else 0)
