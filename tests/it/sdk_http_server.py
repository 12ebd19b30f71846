"""A server over Streamable HTTP, made with the Python SDK (mcp 2): sdk_http_server.py PORT"""

import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("sdk")


@server.tool()
async def add(a: int, b: int) -> int:
    return a + b


@server.tool()
async def count(steps: int, pause: float, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
        await anyio.sleep(pause)
    return f"{steps} steps"


server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
