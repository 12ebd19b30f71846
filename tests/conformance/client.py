"""What the suite's client scenarios run: a gateway before the scenario's server, used as a user would.

    client.py TRUNKLINE URL

The suite names the scenario by MCP_CONFORMANCE_SCENARIO. Its server watches what the gateway sends to it.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

VERSION = "2026-07-28"
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Gateway:
    """A gateway with one server, `target`."""

    def __init__(self, program, url, settings, top="", tables="", anonymous=True):
        self.dir = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.base = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.program, self.config = program, os.path.join(self.dir.name, "trunkline.toml")
        with open(self.config, "w") as file:
            file.write(f'listen = "{self.base.removeprefix("http://")}"\n')
            file.write(top.replace("{base}", self.base))
            file.write('[auth]\nanonymous_tenant = "local"\n' if anonymous else "")
            file.write(f'[store]\nurl = "sqlite://{self.dir.name}/trunkline.db"\n')
            file.write(f'[servers.target]\nurl = "{url}"\n{settings}\n{tables}')
        self.process = subprocess.Popen([program, "serve", "--config", self.config])

    def __enter__(self):
        self.become_ready()
        return self

    def __exit__(self, *_):
        self.stop()

    def key(self, tenant):
        """A new API key of a tenant."""
        command = [self.program, "key", "create", tenant, "--config", self.config]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def become_ready(self):
        deadline = time.monotonic() + 20
        while self.send("/readyz")[0] != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit("the gateway did not become ready")
            time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=10)
        self.dir.cleanup()

    def send(self, path, body=None, headers=None):
        """The status and the body of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers or {})
        try:
            with HTTP.open(request, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            return 0, str(error)

    def tools(self):
        """What the gateway lists, by name."""
        status, answer = self.send("/v1/servers/target/tools")
        expect(status == 200, answer)
        return {tool["name"]: tool for tool in json.loads(answer)["tools"]}

    def call(self, name, arguments):
        """Runs a tool by the plain API."""
        status, answer = self.send(f"/v1/servers/target/tools/{name}", arguments)
        expect(status == 200, answer)

    def ask(self, method, params, capabilities=None):
        """A request of a modern MCP client."""
        key = "io.modelcontextprotocol/"
        meta = {key + "protocolVersion": VERSION, key + "clientCapabilities": capabilities or {}}
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        name = params.get("name", params.get("uri"))
        if name is not None:
            headers["Mcp-Name"] = name
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        status, answer = self.send("/mcp/target", body, headers)
        expect(status == 200, answer)
        return json.loads(answer)["result"]


class Session:
    """A legacy MCP client in a session of its own, which accepts whatever a server asks, with the defaults."""

    def __init__(self, gateway):
        self.url, self.headers = gateway.base + "/mcp/target", {}
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"elicitation": {"form": {"applyDefaults": True}}},
            "clientInfo": {"name": "conformance", "version": "1"},
        }
        with self.post({"id": 0, "method": "initialize", "params": params}) as answer:
            self.headers = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        self.post({"method": "notifications/initialized"}).close()

    def post(self, message):
        kinds = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return HTTP.open(urllib.request.Request(self.url, data, {**kinds, **self.headers}), timeout=20)

    def call(self, name):
        with self.post({"id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}) as answer:
            for line in answer:
                message = json.loads(line.removeprefix(b"data: ")) if line.startswith((b"data: ", b"{")) else {}
                if message.get("method") == "elicitation/create":
                    asked = message["params"]["requestedSchema"]["properties"]
                    content = {key: schema["default"] for key, schema in asked.items() if "default" in schema}
                    self.post({"id": message["id"], "result": {"action": "accept", "content": content}}).close()
                elif message.get("id") == 1:
                    return expect("result" in message, message)
        expect(False, "no answer")


def expect(truth, answer):
    if not truth:
        sys.exit(f"unexpected: {answer}")


def tools_call(gateway):
    gateway.call("add_numbers", {"a": 5, "b": 3})


def sse_retry(gateway):
    gateway.call("test_reconnection", {})


def standard_headers(gateway):
    for name in gateway.tools():
        gateway.call(name, {})
    for resource in gateway.ask("resources/list", {})["resources"]:
        gateway.ask("resources/read", {"uri": resource["uri"]})
    for prompt in gateway.ask("prompts/list", {})["prompts"]:
        gateway.ask("prompts/get", {"name": prompt["name"]})


def custom_headers(gateway):
    for call in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        gateway.call(call["name"], call["arguments"])


def invalid_tool_headers(gateway):
    for name in gateway.tools():
        gateway.call(name, {"region": "here"})


def elicitation_defaults(gateway):
    Session(gateway).call("test_client_elicitation_defaults")


def preserved_schema(gateway):
    schema = gateway.tools()["json_schema_2020_12_tool"]["inputSchema"]
    gateway.call("json_schema_echo", {"schema": schema})


def request_state(gateway):
    """Tools that ask back; what they ask is answered, and what they remember is handed back."""
    for name in ["test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"]:
        params = {"name": name, "arguments": {}}
        while True:
            result = gateway.ask("tools/call", params, {"elicitation": {}})
            if result.get("resultType") != "input_required":
                break
            answer = {"action": "accept", "content": {"confirmed": True}}
            params["inputResponses"] = {key: answer for key in result["inputRequests"]}
            if "requestState" in result:
                params["requestState"] = result["requestState"]
            else:
                params.pop("requestState", None)


SCENARIOS = {
    # What they watch is done when the gateway is ready.
    "initialize": lambda gateway: None,
    "request-metadata": lambda gateway: None,
    "json-schema-ref-no-deref": Gateway.tools,
    "tools_call": tools_call,
    "elicitation-sep1034-client-defaults": elicitation_defaults,
    "sse-retry": sse_retry,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": invalid_tool_headers,
    "json-schema-2020-12-preservation": preserved_schema,
    "sep-2322-client-request-state": request_state,
}


def main():
    program, url = sys.argv[1:]
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    # A server asks only a client that has it to itself.
    sharing = "session" if scenario.startswith("elicitation") else "shared"
    with Gateway(program, url, f'sharing = "{sharing}"') as gateway:
        SCENARIOS[scenario](gateway)


if __name__ == "__main__":
    main()
