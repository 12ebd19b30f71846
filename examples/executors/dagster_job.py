"""Books entries with Dagster, and closes the books.

Dagster retries, after the time that the gateway names; the client sends each request once. The key
is the same over all retries: the first run, and what is booked.
"""

import json
import os
import sys

from dagster import DynamicOut, DynamicOutput, RetryPolicy, RetryRequested, job, op
from trunkline_client import Call, Client, GatewayUnreachable, OutcomeUnknown
from trunkline_client import ProblemError, ToolError
from trunkline_client import RetryPolicy as ClientRetries

gateway = Client(
    os.environ["TRUNKLINE_URL"], os.environ["TRUNKLINE_KEY"], retry=ClientRetries(attempts=1)
)
OF_THE_WORKER = RetryPolicy(max_retries=3, delay=1)


def key_of(context, what):
    return f"{context.run.root_run_id or context.run.run_id}-{what}"


def retried(make):
    """Makes a call; has Dagster make it again later if that can help."""
    try:
        return make()
    except (ProblemError, GatewayUnreachable) as error:
        if isinstance(error, ProblemError) and not error.retryable:
            raise
        pause = getattr(error, "retry_after", None) or 1
        raise RetryRequested(max_retries=60, seconds_to_wait=pause) from error


@op(out=DynamicOut(str), config_schema=[str])
def entries(context):
    for entry in context.op_config:
        yield DynamicOutput(entry, mapping_key=entry.replace("-", "_"))


@op(retry_policy=OF_THE_WORKER)
def post(context, entry):
    key = key_of(context, entry)
    try:
        retried(lambda: gateway.call("ledger", "post", {"entry": entry}, key=key))
    except ToolError:
        return entry, "failed"
    except OutcomeUnknown:
        return entry, "unknown"
    return entry, "booked"


@op(retry_policy=OF_THE_WORKER)
def begin_close(context, outcomes):
    call = Call("ledger", "close", {"ms": 3000}, key=key_of(context, "close"))
    return retried(lambda: gateway.submit(call)).id


@op(retry_policy=OF_THE_WORKER)
def close(context, outcomes, call_id):
    return dict(outcomes) | {"close": retried(lambda: gateway.wait(call_id, timeout=600)).text}


@job
def month_end():
    outcomes = entries().map(post).collect()
    close(outcomes, begin_close(outcomes))


if __name__ == "__main__":
    config = {"ops": {"entries": {"config": sys.argv[1:]}}}
    print(json.dumps(month_end.execute_in_process(config).output_for_node("close")))
