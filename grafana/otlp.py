"""Has the program export to a real OpenTelemetry collector, and reads what that one passes on.

The collector is Rotel. It takes traces, metrics and logs over HTTP, and sends them on to this
script, which decodes them by the official definitions:

    grafana/otlp [target/debug/trunkline]
"""

import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LIMIT = 60
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

CONFIG = """
listen = "127.0.0.1:{port}"
[auth]
anonymous_tenant = "local"
[store]
url = "sqlite://{dir}/trunkline.db"
[log]
calls = "all"
[servers.std]
command = "trunkline"
args = ["std"]
"""

received = {"traces": [], "metrics": [], "logs": []}


class Sink(BaseHTTPRequestHandler):
    """Takes what the collector passes on."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.endswith("/traces"):
            request = ExportTraceServiceRequest.FromString(body)
            scopes = [scope for it in request.resource_spans for scope in it.scope_spans]
            received["traces"] += [(it.resource, span) for it in request.resource_spans
                                   for scope in it.scope_spans for span in scope.spans]
        elif self.path.endswith("/metrics"):
            request = ExportMetricsServiceRequest.FromString(body)
            received["metrics"] += [metric for it in request.resource_metrics
                                    for scope in it.scope_metrics for metric in scope.metrics]
        else:
            request = ExportLogsServiceRequest.FromString(body)
            received["logs"] += [log for it in request.resource_logs
                                 for scope in it.scope_logs for log in scope.log_records]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, look):
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        try:
            if found := look():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"{what}: not within {LIMIT} s")


def connects(port):
    socket.create_connection(("127.0.0.1", port), 1).close()
    return True


def attributes(pairs):
    return {it.key: getattr(it.value, it.value.WhichOneof("value")) for it in pairs}


def call(port, tool, arguments):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/servers/std/tools/{tool}",
        json.dumps(arguments).encode(),
        {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
    )
    try:
        urllib.request.urlopen(request, timeout=LIMIT).read()
    except urllib.error.HTTPError as error:
        error.read()


def check(gateway):
    wait_for("the gateway", lambda: connects(gateway))
    wait_for("ready", lambda: urllib.request.urlopen(f"http://127.0.0.1:{gateway}/readyz"))
    call(gateway, "echo", {"text": "hunter2"})
    call(gateway, "nope", {})
    spans = wait_for("spans", lambda: received["traces"] if len(received["traces"]) >= 3 else None)
    resource, _ = spans[0]
    assert attributes(resource.attributes)["service.name"] == "trunkline", resource
    by_name = {(span.name, span.kind): span for _, span in spans}
    server, client = by_name["tools/call echo", 2], by_name["tools/call echo", 3]
    assert server.trace_id.hex() == TRACE and client.trace_id == server.trace_id
    assert client.parent_span_id == server.span_id
    assert attributes(client.attributes)["gen_ai.tool.name"] == "echo", client
    assert attributes(client.attributes)["network.transport"] == "pipe", client
    assert attributes(by_name["tools/call", 2].attributes)["error.type"] == "tool_not_found"
    names = lambda: {metric.name for metric in received["metrics"]}
    wait_for("metrics", lambda: {"trunkline_calls_total", "trunkline_call_seconds"} <= names())
    logs = wait_for("log", lambda: received["logs"] if len(received["logs"]) >= 2 else None)
    assert {log.severity_text for log in logs} == {"INFO", "WARN"}, logs
    assert all(log.trace_id.hex() == TRACE for log in logs), logs
    assert "hunter2" not in f"{spans}{logs}"
    count = {signal: len(items) for signal, items in received.items()}
    print(f"the collector passed on {count}")


def main():
    program, collector = Path(sys.argv[1]).resolve(), sys.argv[2]
    sink = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    to, otlp, gateway, grpc = sink.server_address[1], free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as dir:
        config = Path(dir) / "trunkline.toml"
        config.write_text(CONFIG.format(port=gateway, dir=dir))
        running = []
        try:
            running.append(subprocess.Popen([
                collector, "start", "--otlp-http-endpoint", f"127.0.0.1:{otlp}",
                "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--exporter", "otlp",
                "--otlp-exporter-protocol", "http", "--batch-timeout", "100ms",
                "--otlp-exporter-endpoint", f"http://127.0.0.1:{to}",
                "--pid-file", f"{dir}/pid", "--log-file", f"{dir}/log",
            ]))
            wait_for("the collector", lambda: connects(otlp))
            env = {name: value for name, value in os.environ.items() if name[:5] != "OTEL_"}
            env |= {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{otlp}",
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "RUST_LOG": "warn",
            }
            running.append(subprocess.Popen([program, "serve", "--config", config], env=env))
            check(gateway)
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(10)


main()
