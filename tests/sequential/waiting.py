"""A server that does one call after another, and waits rather than computes, as for a database elsewhere."""

import time

from mcp.server.fastmcp import FastMCP

server = FastMCP("waiting")


@server.tool()
def wait() -> str:
    time.sleep(0.03)
    return "waited"


server.run()
