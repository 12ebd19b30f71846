"""The 1.x line of the Python SDK, which speaks the legacy era only.

python v1.py BASE_URL EXPECTED_JSON [legacy | sse]      sse: over the transport of 2024-11-05
"""

from contextlib import asynccontextmanager

import anyio
from mcp import ClientSession, McpError, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from checks import ERA, run


@asynccontextmanager
async def connect(url):
    transport = sse_client(url.replace("/mcp", "/sse", 1)) if ERA == "sse" else streamable_http_client(url)
    async with transport as (read, write, *_), ClientSession(read, write) as client:
        initialized = await client.initialize()
        yield Session(client, initialized.protocolVersion)


class Session:
    Error = McpError

    def __init__(self, client, version):
        self.client, self.version = client, version

    async def tools(self):
        return [it.name for it in (await self.client.list_tools()).tools]

    async def call(self, name, arguments, **options):
        result = await self.client.call_tool(name, arguments, **options)
        return text(result.content), result.isError

    async def call_and_cancel(self, name, arguments, after):
        """This line of the SDK leaves it to its user to tell the server."""
        request_id = self.client._request_id  # that of the next request
        with anyio.move_on_after(after):
            await self.client.call_tool(name, arguments)
            raise AssertionError("it was not cancelled")
        cancelled = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=request_id))
        await self.client.send_notification(types.ClientNotification(cancelled))

    async def resources(self):
        return [str(it.uri) for it in (await self.client.list_resources()).resources]

    async def templates(self):
        return [it.uriTemplate for it in (await self.client.list_resource_templates()).resourceTemplates]

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
