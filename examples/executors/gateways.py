"""Gateways for the check: one, or two replicas on PostgreSQL behind a load balancer."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Callable

HERE = Path(__file__).parent
LIMIT = 240
CONFIG = """
listen = "127.0.0.1:{port}"
drain_timeout = "15s"
{more}
[tenants.acme]
rate = "10/s"
burst = 5
servers = ["*"]
[servers.ledger]
command = "{python}"
args = ["{ledger}"]
env = {{ LEDGER = "{book}" }}
"""
OF_REPLICAS = """
session_keys = ["0123456789abcdef0123456789abcdef"]
[auth]
hash_key = "0123456789abcdef0123456789abcdef"
[store]
url = "{database}"
[replicas]
listen = "127.0.0.1:{port}"
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not is_there():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {LIMIT} s")
        time.sleep(0.02)


class Postgres:
    """A server with data of its own. PostgreSQL refuses to be run by root."""

    def __init__(self, directory: Path) -> None:
        installed = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not installed:
            raise SystemExit("two replicas need PostgreSQL: install `postgresql`")
        programs = Path(installed[-1])
        self.data, port = directory / "postgres", free_port()
        self.data.mkdir()
        self.become: list[str] = []
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.data, user.pw_uid, user.pw_gid)
            directory.chmod(0o755)
            self.become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}",
                           "--clear-groups"]
        self.control = str(programs / "pg_ctl")
        self.run(str(programs / "initdb"), "-U", "trunkline", "--auth=trust", "-N")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        self.run(self.control, "-w", "-o", options, "-l", str(self.data / "log"), "start")
        self.url = f"postgres://trunkline:x@127.0.0.1:{port}/postgres"

    def run(self, *command: str) -> None:
        whole = [*self.become, command[0], "-D", str(self.data), *command[1:]]
        subprocess.run(whole, check=True, cwd="/", stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        self.run(self.control, "-w", "-m", "immediate", "stop")


class Balancer:
    """Gives each connection to the next gateway that listens."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            caller, _ = self.listener.accept()
            self.ports = [*self.ports[1:], self.ports[0]]
            for port in self.ports:
                try:
                    gateway = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    continue
                for ends in ((caller, gateway), (gateway, caller)):
                    threading.Thread(target=self.pass_on, args=ends, daemon=True).start()
                break
            else:
                caller.close()

    @staticmethod
    def pass_on(from_end: socket.socket, to_end: socket.socket) -> None:
        try:
            while piece := from_end.recv(65536):
                to_end.sendall(piece)
            to_end.shutdown(socket.SHUT_WR)
        except OSError:
            to_end.close()


class Replica:
    def __init__(self, binary: str, directory: Path, book: Path, database: str | None) -> None:
        directory.mkdir()
        self.port = free_port()
        more = ""
        if database:
            more = OF_REPLICAS.format(database=database, port=free_port())
        self.config, self.log = directory / "trunkline.toml", directory / "log"
        self.config.write_text(CONFIG.format(
            port=self.port, more=more, python=sys.executable, ledger=HERE / "ledger.py", book=book
        ))
        self.binary = binary
        self.start()

    def start(self) -> None:
        serve = [self.binary, "serve", "--config", str(self.config)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(serve, stderr=log)
        wait_for(self.is_ready, "the gateway")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz") as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


class Gateways:
    """One gateway, or several replicas, and the ledger behind them."""

    def __init__(self, binary: str, directory: Path, replicas: int) -> None:
        self.directory, self.book = directory, directory / "ledger"
        self.postgres = Postgres(directory) if replicas > 1 else None
        database = self.postgres.url if self.postgres else None
        self.replicas = [
            Replica(binary, directory / f"replica-{number}", self.book, database)
            for number in range(replicas)
        ]
        ports = [replica.port for replica in self.replicas]
        port = Balancer(ports).port if replicas > 1 else ports[0]
        self.url = f"http://127.0.0.1:{port}"
        create = [binary, "key", "create", "acme", "--config", str(self.replicas[0].config)]
        made = subprocess.run(create, check=True, capture_output=True, text=True)
        self.key = made.stdout.strip()

    def restart(self) -> None:
        """Restarts the gateways, one after the other."""
        for replica in self.replicas:
            replica.stop()
            replica.start()

    def stop(self) -> None:
        for replica in self.replicas:
            replica.stop()
        if self.postgres:
            self.postgres.stop()
            shutil.rmtree(self.postgres.data)

    def booked(self) -> Counter[str]:
        return Counter(self.book.read_text().split() if self.book.exists() else [])
