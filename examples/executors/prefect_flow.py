"""Books entries with Prefect, and closes the books.

The client retries what the gateway refuses. Prefect retries a task whose worker failed. Either way
the key is the same: the flow run, and what is booked.
"""

import json
import os
import sys

from prefect import flow, task
from prefect.runtime import flow_run
from trunkline_client import Call, Client, OutcomeUnknown, ToolError, TrunklineError

gateway = Client(os.environ["TRUNKLINE_URL"], os.environ["TRUNKLINE_KEY"])


def is_of_the_worker(task, run, state):
    return not isinstance(state.result(raise_on_failure=False), TrunklineError)


@task(retries=3, retry_delay_seconds=1, retry_condition_fn=is_of_the_worker)
def post(entry):
    return gateway.call("ledger", "post", {"entry": entry}, key=f"{flow_run.id}-{entry}").text


@task(retries=3, retry_delay_seconds=1, retry_condition_fn=is_of_the_worker)
def close():
    kept = gateway.submit(Call("ledger", "close", {"ms": 3000}, key=f"{flow_run.id}-close"))
    return gateway.wait(kept, timeout=600).text


@flow
def month_end(entries):
    posted = [(entry, post.submit(entry)) for entry in entries]
    outcomes = {}
    for entry, future in posted:
        match future.result(raise_on_failure=False):
            case ToolError():
                outcomes[entry] = "failed"
            case OutcomeUnknown():
                outcomes[entry] = "unknown"
            case Exception() as error:
                raise error
            case _:
                outcomes[entry] = "booked"
    return outcomes | {"close": close()}


if __name__ == "__main__":
    print(json.dumps(month_end(sys.argv[1:])))
