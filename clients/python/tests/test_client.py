"""Every case runs with the client that blocks and with the one for asyncio."""

from __future__ import annotations

import threading
import time
from typing import Callable

import pytest
from conftest import Both, Gateway

from trunkline_client import (
    BatchCall,
    Call,
    GatewayUnreachable,
    NotExecuted,
    OutcomeUnknown,
    ProblemError,
    RetryPolicy,
    ToolError,
    reference,
)


def test_results(make: Callable[..., Both]) -> None:
    result = make().call("std", "echo", {"text": "hello"}, timeout=10)
    assert (result.text, result.is_error, result.replayed) == ("hello", False, False)
    assert result.call_id
    assert make().call("std", "echo", {"text": "a"}, keyed=False).text == "a"


def test_a_key_runs_once(make: Callable[..., Both]) -> None:
    client, key = make(), f"once-{time.time_ns()}"
    first = client.call("std", "uuid", key=key)
    again = client.call("std", "uuid", key=key)
    assert (first.text, again.replayed) == (again.text, True)
    assert client.call("std", "uuid").text != client.call("std", "uuid").text
    with pytest.raises(NotExecuted) as refused:
        client.call("std", "echo", {"text": "x"}, key=key)
        client.call("std", "echo", {"text": "y"}, key=key)
    assert refused.value.code == "idempotency_mismatch"


def test_a_tool_that_fails(make: Callable[..., Both]) -> None:
    with pytest.raises(ToolError, match="no luck") as failed:
        make().call("std", "fail", {"message": "no luck"})
    assert failed.value.result.is_error


def test_problems_say_what_happened(make: Callable[..., Both]) -> None:
    client = make(retry=RetryPolicy(attempts=1))
    for server, tool, code in [
        ("std", "nope", "tool_not_found"),
        ("nope", "echo", "server_not_found"),
        ("down", "echo", "server_unavailable"),
    ]:
        with pytest.raises(NotExecuted) as refused:
            client.call(server, tool)
        assert refused.value.code == code
    with pytest.raises(NotExecuted) as misfit:
        client.call("std", "echo", {"text": 5})
    assert (misfit.value.code, misfit.value.pointer) == ("invalid_arguments", "/text")
    with pytest.raises(OutcomeUnknown) as late:
        client.call("std", "sleep", {"ms": 5000}, timeout=0.1, keyed=False)
    assert late.value.code == "deadline_exceeded"
    with pytest.raises(ProblemError) as unknown:
        make(key="tl_no_key").call("std", "echo")
    assert unknown.value.status == 401


def test_limits(make: Callable[..., Both], gateway: Gateway) -> None:
    client = make(key=gateway.new_key("narrow"), retry=RetryPolicy(attempts=1))
    with pytest.raises(NotExecuted) as refused:
        for _ in range(5):
            client.call("std", "uuid", keyed=False)
    assert refused.value.code == "rate_limited"
    assert refused.value.limit and refused.value.limit["rate"] == "2/min"
    assert refused.value.retry_after and refused.value.retry_after > 1
    rates = [limit for limit in client.limits() if limit["name"] == "rate"]
    assert rates[0]["used"] == 2


def test_lists(make: Callable[..., Both]) -> None:
    client = make()
    states = {server["id"]: server["state"] for server in client.servers()}
    assert states["std"] == "ready" and states["down"] != "ready"
    assert "echo" in [tool["name"] for tool in client.tools("std")]


def test_asynchronous_calls(make: Callable[..., Both]) -> None:
    client = make()
    kept = client.submit(Call("std", "sleep", {"ms": 300}, labels={"run": "7"}))
    assert client.show(kept).state in ("accepted", "running")
    with pytest.raises(TimeoutError):
        client.wait(kept, timeout=0)
    assert not client.wait(kept, timeout=20).is_error
    shown = client.show(kept)
    assert (shown.state, shown.raw["labels"]) == ("ended", ["run=7"])
    long = client.submit(Call("std", "sleep", {"ms": 60000}))
    assert client.cancel(long).id == long.id
    with pytest.raises(ProblemError) as cancelled:
        client.wait(long, timeout=20)
    assert cancelled.value.code == "cancelled"


CALLS = [
    BatchCall("q", "std", "json_query", {"json": {"a": "x"}, "pointer": "/a"}),
    BatchCall("e", "std", "echo", {"text": reference("q", "/content/0/text")}),
    BatchCall("f", "std", "fail", {"message": "no luck"}),
    BatchCall("n", "std", "uuid", depends_on=("f",)),
]


def test_batches(make: Callable[..., Both]) -> None:
    client = make()
    for outcomes in (client.batch(CALLS, timeout=20), client.stream("batch_stream", CALLS)):
        by_id = {outcome.id: outcome for outcome in outcomes}
        assert by_id["e"].result().text == '"x"'
        with pytest.raises(ToolError):
            by_id["f"].result()
        with pytest.raises(NotExecuted) as refused:
            by_id["n"].result()
        assert refused.value.code == "dependency_failed"
    with pytest.raises(NotExecuted):
        client.stream("batch_stream", [])


def test_a_restart_in_the_middle(make: Callable[..., Both], gateway: Gateway) -> None:
    client = make(retry=RetryPolicy(attempts=20, budget=60))
    kept = client.submit(Call("std", "echo", {"text": "kept"}))

    def restart() -> None:
        gateway.stop()
        gateway.start()

    restarting = threading.Thread(target=restart)
    restarting.start()
    for number in range(20):
        assert client.call("std", "echo", {"text": str(number)}).text == str(number)
        time.sleep(0.05)
    restarting.join()
    assert client.wait(kept, timeout=20).text == "kept"


def test_nobody_there(make: Callable[..., Both]) -> None:
    client = make("http://127.0.0.1:1", retry=RetryPolicy(attempts=2, first_pause=0.01))
    with pytest.raises(GatewayUnreachable) as failed:
        client.call("std", "echo", keyed=False)
    assert failed.value.executed == "no"
