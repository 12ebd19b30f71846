"""A real gateway for the tests."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Iterator

import httpx
import pytest

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
"""


class Gateway:
    """A gateway that can be killed and started again, on one port."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.config = directory / "trunkline.toml"
        self.config.write_text(CONFIG.format(port=port))
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

    def new_key(self, tenant: str) -> str:
        command = [BINARY, "key", "create", tenant, "--config", str(self.config)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path_factory.mktemp("gateway"))
    yield gateway
    gateway.stop()
