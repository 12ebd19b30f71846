"""Runs the examples with the real engines, and counts what the ledger has booked.

Usage: check.py BINARY ENGINE… [--all], with the engines' environments in target/executors. In each
run a worker fails once, the tenant's rate is too low for all calls at once, and the gateway is
restarted twice: while entries are booked, and during the long call. With `--all` there are two
replicas, restarted one after the other; the examples without the client run too, and LangGraph's
worker is killed and started again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from gateways import HERE, LIMIT, Gateways, wait_for

ROOT = HERE.parent.parent
PROGRAMS = {"prefect": "prefect_flow", "langgraph": "langgraph_agent", "dagster": "dagster_job"}
ENTRIES = [f"entry-{number}" for number in range(20)] + ["bad-1", "lost-1"]


def run(gateway: Gateways, engine: str, program: str, *, with_kill: bool) -> dict[str, str]:
    """Runs an example, and returns what it says became of its entries."""
    work = gateway.directory
    environment = os.environ | {
        "TRUNKLINE_URL": gateway.url,
        "TRUNKLINE_KEY": gateway.key,
        "CHECKPOINTS": str(work / "checkpoints"),
        "PYTHONPATH": str(ROOT / "clients/python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PREFECT_HOME": str(ROOT / "target/executors/prefect/home"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "DO_NOT_TRACK": "1",
    }
    python = ROOT / f"target/executors/{engine}/bin/python"
    arguments = ["thread-1", *ENTRIES] if engine == "langgraph" else ENTRIES
    command = [str(python), str(HERE / "faults.py"), str(HERE / f"{program}.py"), *arguments]

    def start() -> subprocess.Popen[str]:
        log = (work / f"{engine}.log").open("a")
        return subprocess.Popen(
            command, env=environment, cwd=work, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def until(is_there: Callable[[], bool], what: str) -> None:
        wait_for(lambda: is_there() or worker.poll() is not None, what)

    worker = start()
    until(lambda: len(gateway.booked()) >= 5, "five entries")
    if with_kill:
        worker.kill()
        worker.wait()
        worker = start()
    for is_there, what in [
        (lambda: len(gateway.booked()) >= 10, "ten entries"),
        (lambda: "close" in gateway.booked(), "the long call"),
    ]:
        until(is_there, what)
        assert worker.poll() is None, f"{program} ended before the restart at {what}"
        gateway.restart()
    output, _ = worker.communicate(timeout=LIMIT)
    if worker.returncode != 0:
        print((work / f"{engine}.log").read_text()[-4000:])
        raise SystemExit(f"{program} ended with {worker.returncode}")
    outcomes: dict[str, str] = json.loads(output.strip().splitlines()[-1])
    return outcomes


def check(
    binary: str, engine: str, program: str, *, replicas: int = 1, with_kill: bool = False
) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        gateway = Gateways(binary, Path(directory), replicas)
        try:
            outcomes = run(gateway, engine, program, with_kill=with_kill)
            booked = gateway.booked()
        finally:
            gateway.stop()
    expected = {entry: "booked" for entry in ENTRIES} | {"bad-1": "failed", "lost-1": "unknown"}
    expected["close"] = "the books are closed"
    assert outcomes == expected, f"{program} says {outcomes}"
    twice = {entry: count for entry, count in booked.items() if count > 1}
    assert not twice, f"{program} has booked twice: {twice}"
    lost = {*ENTRIES, "close"} - set(booked)
    assert not lost, f"{program} has lost: {lost}"
    killed = ", its worker killed once" if with_kill else ""
    seconds = time.monotonic() - began
    print(f"{program}: {len(booked)} of {len(booked)} booked once, replicas: {replicas}{killed} "
          f"({seconds:.0f} s)", flush=True)


def lines_of_code(program: str) -> int:
    """Counts the lines that are neither empty nor a comment nor the docstring at the top."""
    text = (HERE / f"{program}.py").read_text().split('"""', 2)[2]
    lines = [line.strip() for line in text.splitlines()]
    return sum(1 for line in lines if line and not line.startswith("#"))


def check_guide() -> None:
    """Checks the parts of examples that the guide shows, and the lines of code that it names."""
    guide = (ROOT / "docs/guide/executors.md").read_text()
    for block in guide.split('```python skip="a part of ')[1:]:
        name, rest = block.split('"', 1)
        code = rest.split("```")[0].removeprefix("\n")
        assert code in (HERE / name).read_text(), f"docs/guide/executors.md: not in {name}: {code}"
    for program in PROGRAMS.values():
        before, after = lines_of_code(f"{program}_before"), lines_of_code(program)
        row = f"[`{program}.py`](../../examples/executors/{program}.py) | {before} | {after} |"
        assert row in guide, f"docs/guide/executors.md: the row should be `{row}`"


def main() -> None:
    binary, *engines = sys.argv[1:]
    check_guide()
    if "--all" not in engines:
        for engine in engines:
            check(binary, engine, PROGRAMS[engine])
        return
    for engine, program in PROGRAMS.items():
        if engine in engines:
            check(binary, engine, program, replicas=2)
            check(binary, engine, f"{program}_before", replicas=2)
    if "langgraph" in engines:
        check(binary, "langgraph", PROGRAMS["langgraph"], with_kill=True)


main()
