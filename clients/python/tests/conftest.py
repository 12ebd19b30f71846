"""A real gateway for the tests, and both clients."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Iterator

import httpx
import pytest

from trunkline_client import AsyncClient, Client

BINARY = os.environ["TRUNKLINE"]
CONFIG = """
listen = "127.0.0.1:{port}"
drain_timeout = "5s"
[auth]
anonymous_tenant = "local"
[tenants.local]
servers = ["*"]
[tenants.narrow]
servers = ["std"]
rate = "2/min"
[servers.std]
command = "trunkline"
args = ["std"]
validate = true
[servers.down]
command = "/no/such/program"
[servers.ledger]
command = "{python}"
args = ["{server}"]
env = {{ LEDGER = "{ledger}" }}
"""
# A server that tells its progress and counts its executions.
SERVER = Path(__file__).parents[3] / "examples/executors/ledger.py"


class Gateway:
    """A gateway that can be killed and started again, on one port."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.config = directory / "trunkline.toml"
        self.ledger = directory / "ledger"
        self.config.write_text(CONFIG.format(port=port, python=sys.executable, server=SERVER,
                                             ledger=self.ledger))
        self.start()

    def start(self) -> None:
        command = [BINARY, "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        for _ in range(200):
            try:
                if httpx.get(self.url + "/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise RuntimeError("the gateway does not get ready")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def booked(self, entry: str) -> int:
        """Returns how often the ledger has booked an entry."""
        return self.ledger.read_text().splitlines().count(entry) if self.ledger.exists() else 0

    def new_key(self, tenant: str) -> str:
        command = [BINARY, "key", "create", tenant, "--config", str(self.config)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.stop()


class Both:
    """Either client, as one that blocks."""

    def __init__(self, url: str, is_async: bool, **options: Any) -> None:
        self.is_async = is_async
        self.loop = asyncio.new_event_loop()
        self.client: Any = AsyncClient(url, **options) if is_async else Client(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.client, name)
        if not self.is_async:
            return method  # type: ignore[no-any-return]
        return lambda *args, **options: self.loop.run_until_complete(method(*args, **options))

    def pieces(self, pieces: list[bytes]) -> Any:
        """Returns the pieces of a response, as the client wants them."""
        if not self.is_async:
            return iter(pieces)

        async def yield_all() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return yield_all()

    def stream(self, method: str, *args: Any, **options: Any) -> list[Any]:
        """Collects all that a method yields."""
        stream = getattr(self.client, method)(*args, **options)
        if not self.is_async:
            return list(stream)

        async def collect() -> list[Any]:
            return [told async for told in stream]

        return self.loop.run_until_complete(collect())


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, gateway: Gateway) -> Iterator[Callable[..., Both]]:
    made: list[Both] = []

    def make(url: str = gateway.url, **options: Any) -> Both:
        made.append(Both(url, request.param == "async", **options))
        return made[-1]

    yield make
    for client in made:
        client.close()
        client.loop.close()
