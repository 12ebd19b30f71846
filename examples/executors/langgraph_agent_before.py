"""Does what `langgraph_agent.py` does, without the client."""

import asyncio
import json
import os
import sys
import time
from uuid import uuid4

import httpx
from langchain_core.messages import AIMessage, ToolMessage
from langchain_mcp_adapters.client import MultiServerMCPClient
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy
from mcp.types import CallToolResult

URL, KEY = os.environ["TRUNKLINE_URL"], os.environ["TRUNKLINE_KEY"]
http = httpx.AsyncClient(base_url=URL, headers={"Authorization": f"Bearer {KEY}"})


class GatewayError(Exception):
    def __init__(self, message, executed):
        super().__init__(message)
        self.executed = executed


async def request(method, path, **options):
    deadline = time.monotonic() + 60
    pause = 0.2
    while True:
        wait = pause
        try:
            response = await http.request(method, path, timeout=90, **options)
        except httpx.TransportError as error:
            failure = GatewayError(str(error), "unknown")
        else:
            if response.status_code < 400:
                return response.json()
            try:
                problem = response.json()
            except ValueError:
                problem = {}
            message = f"{problem.get('code', response.status_code)}: {problem.get('detail', '')}"
            failure = GatewayError(message, problem.get("executed", "unknown"))
            if not problem.get("retryable"):
                raise failure
            wait += problem.get("retry_after_ms", 0) / 1000
        if time.monotonic() + wait > deadline:
            raise failure
        await asyncio.sleep(wait)
        pause = min(pause * 2, 10)


async def call_once(request_, handler):
    """Calls a tool under a key, in place of the adapter's own call over MCP."""
    call = request_.runtime.tool_call_id
    key = f"{request_.runtime.config['configurable']['thread_id']}-{call}"
    path = f"/v1/servers/{request_.server_name}/tools/{request_.name}"
    headers = {"Idempotency-Key": key}
    try:
        result = await request("POST", path, json=request_.args, headers=headers)
    except GatewayError as error:
        if error.executed == "no":
            raise
        return ToolMessage(f"unknown, do not repeat: {error}", tool_call_id=call, status="error")
    return CallToolResult.model_validate(result)


def is_of_the_worker(error):
    return not isinstance(error, GatewayError)


async def tools():
    """Returns the tools. A graph that is built while a server is down would lack them silently."""
    for server in (await request("GET", "/v1/servers"))["servers"]:
        if server["state"] not in ("ready", "idle"):
            raise RuntimeError(f"{server['id']} is {server['state']}: {server.get('reason')}")
    server = {"transport": "streamable_http", "url": f"{URL}/mcp/ledger",
              "headers": {"Authorization": f"Bearer {KEY}"}}
    return await MultiServerMCPClient(
        {"ledger": server}, tool_interceptors=[call_once]
    ).get_tools()


def model(entries):
    """Stands for a language model: it posts all entries, and then closes the books."""

    def answer(state):
        done = [message.name for message in state["messages"] if isinstance(message, ToolMessage)]
        if not done:
            calls = [("post", {"entry": entry}) for entry in entries]
        else:
            calls = [] if "close" in done else [("close", {"ms": 3000})]
        tool_calls = [{"name": name, "args": args, "id": str(uuid4())} for name, args in calls]
        return {"messages": [AIMessage("", tool_calls=tool_calls)]}

    return answer


def is_over(state):
    return "tools" if state["messages"][-1].tool_calls else END


async def main(thread, entries):
    graph = StateGraph(MessagesState)
    graph.add_node("model", model(entries))
    retry = RetryPolicy(max_attempts=3, retry_on=is_of_the_worker)
    graph.add_node("tools", ToolNode(await tools(), handle_tool_errors=False), retry_policy=retry)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", is_over)
    graph.add_edge("tools", "model")
    config = {"configurable": {"thread_id": thread}}
    async with AsyncSqliteSaver.from_conn_string(os.environ["CHECKPOINTS"]) as saver:
        agent = graph.compile(checkpointer=saver)
        is_new = not (await agent.aget_state(config)).next
        # The tool calls are in the checkpoint before the first of them is made.
        start = {"messages": []} if is_new else None
        state = await agent.ainvoke(start, config, durability="sync")
    calls = {call["id"]: call for message in state["messages"]
             for call in getattr(message, "tool_calls", [])}
    outcomes = {}
    for message in state["messages"]:
        if isinstance(message, ToolMessage):
            call, text = calls[message.tool_call_id], str(message.text)
            outcome = "unknown" if text.startswith("unknown") else "failed"
            if call["name"] == "close":
                outcomes["close"] = text
            else:
                outcomes[call["args"]["entry"]] = outcome if message.status == "error" else "booked"
    print(json.dumps(outcomes))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
