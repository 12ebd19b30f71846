"""The gateways that are compared: how each is installed, configured, started and called.

The child of all of them is `trunkline std`, which any MCP client can run.
"""

import json
import subprocess
import sys



class Gateway:
    """One row of the table. `command` is called with the port when it starts."""

    def __init__(self, name, command, path, body=None, tool="echo", sleep_path=None,
                 sleep_body=None, sleep_tool="sleep", files=None, env=None):
        self.name, self.command, self.files = name, command, files or (lambda port: {})
        self.path, self.body, self.tool, self.env = path, body, tool, env or {}
        self.sleep_path = sleep_path or path
        self.sleep_body, self.sleep_tool = sleep_body, sleep_tool

    def call(self, port):
        """The load program's arguments for calls of `echo`."""
        return self._arguments(port, self.path, self.body, self.tool)

    def sleep(self, port):
        """The same for calls that sleep for 100 ms."""
        arguments = self._arguments(port, self.sleep_path, self.sleep_body, self.sleep_tool)
        return [*arguments, "--arguments", '{"ms":100}', "--expect", "slept"]

    def _arguments(self, port, path, body, tool):
        url = ["--url", f"http://127.0.0.1:{port}{path}"]
        return [*url, "--body", body] if body else [*url, "--tool", tool]


def trunkline(program, child):
    def config(port):
        lines = [
            f'listen = "127.0.0.1:{port}"', "[auth]", 'anonymous_tenant = "local"',
            "[servers.bench]", f"command = {json.dumps(child[0])}",
            f"args = {json.dumps(child[1:])}",
            # A tenant alone has three quarters of the slots, so 64 connections do not wait.
            "max_in_flight = 1024",
        ]
        return {"trunkline.toml": "\n".join(lines) + "\n"}

    command = lambda port: [program, "serve"]
    rest = "/v1/servers/bench/tools"
    return [
        Gateway("trunkline", command, "/mcp/bench", files=config),
        Gateway("trunkline REST", command, f"{rest}/echo", body='{"text":"TEXT"}', files=config,
                sleep_path=f"{rest}/sleep", sleep_body='{"ms":100}'),
    ]


def peers(home, child):
    """The others, of the packages that `install` has put into `home`."""
    servers = {"mcpServers": {"bench": {"command": child[0], "args": child[1:]}}}
    venv = lambda name, program=None: str(home / "pypi" / name / "bin" / (program or name))
    node = lambda name: str(home / "npm" / "node_modules" / ".bin" / name)

    def crate_config(port):
        return {"proxy.toml": "\n".join([
            "[proxy]", 'name = "bench"', 'separator = "/"', "[proxy.listen]",
            'host = "127.0.0.1"', f"port = {port}", "[[backends]]", 'name = "bench"',
            'transport = "stdio"', f"command = {json.dumps(child[0])}",
            f"args = {json.dumps(child[1:])}", "",
        ])}

    hub = lambda tool, arguments: json.dumps(
        {"server_name": "bench", "tool": tool, "arguments": arguments})
    as_json = lambda name: lambda port: {name: json.dumps(servers)}
    gateway = lambda stateful: lambda port: [
        node("supergateway"), "--stdio", " ".join(child), "--outputTransport", "streamableHttp",
        *stateful, "--port", str(port), "--logLevel", "none"]
    return [
        Gateway("mcp-proxy (crate)",
                lambda port: [str(home / "cargo/bin/mcp-proxy"), "--config", "proxy.toml"],
                "/", tool="bench/echo", sleep_tool="bench/sleep", files=crate_config,
                env={"RUST_LOG": "error"}),
        Gateway("mcp-proxy (PyPI)",
                lambda port: [venv("mcp-proxy"), "--port", str(port), "--log-level", "ERROR", "--",
                              *child], "/mcp"),
        Gateway("fastmcp",
                lambda port: [venv("fastmcp"), "run", "mcp.json", "--transport", "http", "--port",
                              str(port), "--no-banner", "--log-level", "ERROR"],
                "/mcp", files=as_json("mcp.json")),
        Gateway("mcpo", lambda port: [venv("mcpo"), "--host", "127.0.0.1", "--port", str(port),
                                      "--log-level", "ERROR", "--", *child],
                "/echo", body='{"text":"TEXT"}', sleep_path="/sleep", sleep_body='{"ms":100}'),
        Gateway("supergateway", gateway(["--stateful"]), "/mcp"),
        Gateway("mcp-hub", lambda port: [node("mcp-hub"), "--port", str(port), "--config",
                                         "hub.json"],
                "/api/servers/tools", body=hub("echo", {"text": "TEXT"}),
                sleep_body=hub("sleep", {"ms": 100}), files=as_json("hub.json")),
    ]


def install(home, rows):
    """Installs the newest version of each package that these rows need, unless it is there."""
    older = ["mcp<2", "fastapi==0.116.*"]
    # mcpo 0.0.20 does not run with newer versions of these two.
    for row, name, others in [("mcp-proxy (PyPI)", "mcp-proxy", []), ("fastmcp", "fastmcp", []),
                              ("mcpo", "mcpo", older)]:
        if row in rows and not (home / "pypi" / name / "bin" / name).exists():
            subprocess.run([sys.executable, "-m", "venv", home / "pypi" / name], check=True)
            pip = home / "pypi" / name / "bin" / "pip"
            subprocess.run([pip, "install", "--quiet", name, *others], check=True)
    for name in ["supergateway", "mcp-hub"]:
        if name in rows and not (home / "npm/node_modules/.bin" / name).exists():
            (home / "npm").mkdir(parents=True, exist_ok=True)
            flags = ["--no-fund", "--no-audit", "--silent"]
            subprocess.run(["npm", "install", *flags, name], cwd=home / "npm", check=True)
    if "mcp-proxy (crate)" in rows and not (home / "cargo/bin/mcp-proxy").exists():
        subprocess.run(["cargo", "install", "--quiet", "--locked", "--root", home / "cargo",
                        "mcp-proxy"], check=True)
