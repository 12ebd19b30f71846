"""The 2.x line of the Python SDK. It is never told to be modern: it asks the server, as is its default.

python v2.py BASE_URL EXPECTED_JSON legacy|modern
"""

from contextlib import asynccontextmanager

import anyio
from mcp import Client, MCPError, types

from checks import ERA, run


@asynccontextmanager
async def connect(url):
    async with Client(url, mode="auto" if ERA == "modern" else "legacy") as client:
        yield Session(client)


class Session:
    Error = MCPError

    def __init__(self, client):
        self.client, self.version = client, client.protocol_version

    async def tools(self):
        return [it.name for it in (await self.client.list_tools()).tools]

    async def call(self, name, arguments, **options):
        result = await self.client.call_tool(name, arguments, **options)
        return text(result.content), result.is_error

    async def call_and_cancel(self, name, arguments, after):
        with anyio.move_on_after(after):
            await self.client.call_tool(name, arguments)
            raise AssertionError("it was not cancelled")

    async def resources(self):
        return [it.uri for it in (await self.client.list_resources()).resources]

    async def templates(self):
        return [it.uri_template for it in (await self.client.list_resource_templates()).resource_templates]

    async def read(self, uri):
        return text((await self.client.read_resource(uri)).contents)

    async def prompts(self):
        return [it.name for it in (await self.client.list_prompts()).prompts]

    async def prompt(self, name, arguments):
        return text([it.content for it in (await self.client.get_prompt(name, arguments)).messages])

    async def complete(self, ref, argument, value, context=None):
        kind = types.PromptReference if ref["type"] == "ref/prompt" else types.ResourceTemplateReference
        named = {"name": argument, "value": value}
        return (await self.client.complete(kind(**ref), named, context)).completion.values


def text(contents):
    return "".join(getattr(it, "text", "") for it in contents)


if __name__ == "__main__":
    run(connect)
