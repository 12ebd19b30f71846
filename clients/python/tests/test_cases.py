"""The same thirty calls with our client, and with one that openapi-python-client generates from
the gateway's own `/openapi.json`."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import httpx
import pytest
from cases import CASES, Case
from conftest import Gateway

from trunkline_client import Client, ProblemError, RetryPolicy, ToolError

# What happened, the text, the pointer, and whether the tool ran.
Outcome = tuple[str, str, "str | None", str]
Caller = Callable[[Case], Outcome]


def with_ours(gateway: Gateway) -> Caller:
    client = Client(gateway.url, retry=RetryPolicy(attempts=1))

    def call(case: Case) -> Outcome:
        timeout = None if case.timeout_ms is None else case.timeout_ms / 1000
        try:
            result = client.call(case.server, case.tool, case.arguments, timeout=timeout,
                                 key=case.key, keyed=case.key is not None)
            return ("ok", result.text, None, "yes")
        except ToolError as failed:
            return ("tool_error", failed.result.text, None, "yes")
        except ProblemError as error:
            return (error.code, error.detail, error.pointer, error.executed)

    return call


def with_generated(gateway: Gateway, directory: Path) -> Caller:
    document, package = directory / "openapi.json", directory / "generated_client"
    document.write_bytes(httpx.get(gateway.url + "/openapi.json").content)
    config = directory / "config.yaml"
    config.write_text("package_name_override: generated_client\npost_hooks: []\n")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none",
               "--path", str(document), "--config", str(config), "--output-path", str(package)]
    subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(directory))
    generated = importlib.import_module("generated_client")
    call_tool: Any = importlib.import_module("generated_client.api.tools.call_tool")
    models: Any = importlib.import_module("generated_client.models")
    client = generated.Client(base_url=gateway.url)

    def call(case: Case) -> Outcome:
        headers: dict[str, Any] = {}
        if case.key is not None:
            headers["idempotency_key"] = case.key
        if case.timeout_ms is not None:
            headers["trunkline_timeout_ms"] = case.timeout_ms
        body = models.CallToolBody.from_dict(case.arguments)
        answer = call_tool.sync_detailed(case.server, case.tool, client=client, body=body, **headers)
        raw = json.loads(answer.content)
        if answer.status_code >= 400:
            return (raw["code"], raw["detail"], raw.get("pointer"), raw["executed"])
        text = "\n".join(part.get("text", "") for part in raw["content"])
        return ("tool_error" if raw["isError"] else "ok", text, None, "yes")

    return call


@pytest.fixture(scope="module", params=["ours", "generated"])
def caller(
    request: pytest.FixtureRequest, gateway: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Caller:
    if request.param == "ours":
        return with_ours(gateway)
    return with_generated(gateway, tmp_path_factory.mktemp("generated"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(caller: Caller, case: Case) -> None:
    outcome, text, pointer, executed = caller(case)
    assert (outcome, pointer, executed) == (case.outcome, case.pointer, case.executed), text
    assert case.text in text
