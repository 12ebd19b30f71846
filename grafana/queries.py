"""Evaluates every query of the board and of the rules in a real Prometheus.

Starts a gateway with servers that work, fail and are pinned, and with tenants that call and are
refused; has Prometheus scrape it; and fails if a query is wrong, or empty though it should not be.
"""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
# The metrics appear after this many seconds at the latest, on a busy machine.
LIMIT = 60

# Without series until it happens.
MAY_BE_EMPTY = ["trunkline_evicted_connections_total", "trunkline_held_bytes_refusals_total"]

CONFIG = """
listen = "127.0.0.1:{callers}"
ops_listen = "127.0.0.1:{ops}"
[auth]
anonymous_tenant = "local"
[store]
url = "sqlite://{dir}/trunkline.db"
[tenants.local]
servers = ["*"]
limits = {{ "std/uuid" = {{ rate = "1/h" }} }}
[servers.std]
command = "trunkline"
args = ["std"]
[servers.broken]
command = "false"
[servers.pinned]
command = "trunkline"
args = ["std"]
pin = true
"""

SCRAPES = """
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: trunkline
    static_configs: [{{ targets: ["127.0.0.1:{ops}"] }}]
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def call(callers, tool, arguments):
    url = f"http://127.0.0.1:{callers}/v1/servers/std/tools/{tool}"
    try:
        urllib.request.urlopen(url, json.dumps(arguments).encode(), timeout=10).read()
    except urllib.error.HTTPError:
        pass  # The refusals are wanted.


def queries_of_board():
    """Yields the title of each panel, and its query as Grafana would send it."""
    board = json.loads((HERE / "board.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], filled_in(target["expr"])


def filled_in(query):
    for name, value in [
        ("$__rate_interval", "30s"),
        ("$server", ".*"),
        ("$tenant", ".*"),
        ("$job", "trunkline"),
    ]:
        query = query.replace(name, value)
    return query


def evaluate(prometheus, query):
    quoted = urllib.parse.quote(query)
    return get(f"http://127.0.0.1:{prometheus}/api/v1/query?query={quoted}")["data"]["result"]


def is_condition(query):
    """Tells whether a query has a result only when its comparison holds."""
    return re.search(r" (==|>|<) ", query) and "or vector" not in query


def wait_for(what, look):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            if look():
                return
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"after {LIMIT} s still not: {what}")


def check(prometheus):
    """Returns what is wrong with the queries."""
    wrong, count = [], 0
    for title, query in queries_of_board():
        count += 1
        may_be_empty = is_condition(query) or any(name in query for name in MAY_BE_EMPTY)
        try:
            if not evaluate(prometheus, query) and not may_be_empty:
                wrong.append(f"panel `{title}` is empty: {query}")
        except urllib.error.HTTPError as error:
            wrong.append(f"panel `{title}`: {error.read().decode()}")
    rules = get(f"http://127.0.0.1:{prometheus}/api/v1/rules")["data"]["groups"][0]["rules"]
    for rule in rules:
        if rule["health"] != "ok":
            wrong.append(f"rule {rule['name']}: {rule['health']} {rule.get('lastError')}")
    states = {rule["name"]: rule["state"] for rule in rules}
    # The one thing that is wrong on purpose. It fires after two minutes.
    if states["TrunklineServerDown"] != "pending":
        wrong.append(f"TrunklineServerDown is {states['TrunklineServerDown']}, not pending")
    others = [name for name, state in states.items() if state != "inactive"]
    others = set(others) - {"TrunklineServerDown", "TrunklineServerRestarts", "TrunklineToolsHeld"}
    # These are reported while the calls of a tenant are refused.
    if others - {"TrunklineTenantRefused"}:
        wrong.append(f"alerts without a cause: {sorted(others)}")
    print(f"{count} queries of the board, {len(rules)} rules")
    return wrong


def main(program):
    with tempfile.TemporaryDirectory() as directory:
        callers, ops, prometheus = free_port(), free_port(), free_port()
        config, scrapes = Path(directory, "trunkline.toml"), Path(directory, "prometheus.yml")
        config.write_text(CONFIG.format(callers=callers, ops=ops, dir=directory))
        scrapes.write_text(SCRAPES.format(ops=ops, rules=HERE.resolve() / "alerts.yml"))
        log = open(Path(directory, "log"), "w")
        processes = []
        try:
            start = lambda *command: processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, cwd=directory)
            )
            start(program, "serve", "--config", config)
            ready = f"http://127.0.0.1:{ops}/readyz"
            wait_for("a gateway", lambda: urllib.request.urlopen(ready).status == 200)
            start(
                "prometheus",
                f"--config.file={scrapes}",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{prometheus}",
            )
            scraped = lambda: evaluate(prometheus, "count_over_time(trunkline_build_info[1m]) > 2")
            wait_for("scraped", scraped)
            seen = 'sum(rate(trunkline_tenant_refusals_total{tenant="local"}[30s])) > 0'

            def calls_are_seen():
                for tool, arguments in [("echo", {"text": "hello"}), ("uuid", {}), ("nosuch", {})]:
                    call(callers, tool, arguments)
                return evaluate(prometheus, seen)

            wait_for("calls", calls_are_seen)
            wrong = check(prometheus)
            if wrong:
                sys.exit("\n".join(wrong))
        except SystemExit:
            print(Path(directory, "log").read_text()[-4000:])
            raise
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


main(*sys.argv[1:])
