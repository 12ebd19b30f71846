#!/usr/bin/env python3
"""The server behind the gateway in the conformance runs: all tools, prompts and resources that the official MCP
conformance suite calls, on standard input and output, in both eras of the protocol. It needs Python 3.10 alone.

    fixture_server.py [--era legacy|modern|both]

legacy  initialize, then 2025-11-25; asks its client by requests of its own
modern  2026-07-28; no handshake, asks by `input_required` results
both    each request in the era it shows by its `_meta`
"""

import argparse
import asyncio
import sys

sys.dont_write_bytecode = True

from fixture.server import Server  # noqa: E402, after the line that keeps the source tree clean


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--era", choices=["legacy", "modern", "both"], default="both")
    asyncio.run(Server(options.parse_args().era).run())


main()
