//! Published servers over HTTP: one of each era. They are looked for as in `real_servers`.

use std::path::Path;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::real_servers::servers;
use crate::support::mcp_legacy::{Session, messages, request};
use crate::support::{Answer, Gateway, Setup, eventually, failed};

/// A program that listens on a port. It ends with this.
struct Program {
    port: u16,
    child: Child,
}

impl Program {
    async fn everything(dir: &Path, port: u16) -> Self {
        Self::everything_over(dir, "streamableHttp", port).await
    }

    async fn everything_over(dir: &Path, transport: &str, port: u16) -> Self {
        let program =
            dir.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
        let mut command = Command::new("node");
        command.arg(program).arg(transport).env("PORT", port.to_string());
        Self::start(command, port).await
    }

    async fn sdk(dir: &Path, port: u16) -> Self {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sdk_http_server.py");
        let mut command = Command::new(dir.join("venv/bin/python"));
        command.arg(program).arg(port.to_string());
        Self::start(command, port).await
    }

    async fn start(mut command: Command, port: u16) -> Self {
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let child = command.kill_on_drop(true).spawn().unwrap();
        eventually("listening", async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
        Self { port, child }
    }

    async fn gateway(&self) -> Gateway {
        self.gateway_at("/mcp").await
    }

    async fn gateway_at(&self, path: &str) -> Gateway {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        Setup::new().http("web", &url, "").start().await
    }
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// The progress that a legacy client hears during a call.
async fn progress_of(gateway: &Gateway, tool: &str, arguments: Value) -> Vec<Value> {
    let session = Session::open(gateway, "/mcp/web").await;
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "mine"}});
    let answer = Answer::of(session.post(request(1, "tools/call", params))).await;
    let mut messages = messages(&answer);
    let last = messages.pop().unwrap();
    assert!(last["result"]["content"][0]["text"].is_string(), "{last}");
    assert!(messages.iter().all(|message| message["params"]["progressToken"] == "mine"));
    messages.into_iter().map(|message| message["params"]["progress"].clone()).collect()
}

#[tokio::test]
async fn a_published_legacy_server_is_used_and_found_again_after_a_restart() {
    let Some(dir) = servers() else { return };
    let program = Program::everything(&dir, free_port().await).await;
    let gateway = program.gateway().await;
    assert_eq!(gateway.server("web").await.json()["era"], "legacy");
    let answer = gateway.call("web", "echo", json!({"message": "hello"})).await;
    assert_eq!(answer.tool_text(), "Echo: hello");
    let long = json!({"duration": 0.4, "steps": 2});
    let progress = progress_of(&gateway, "trigger-long-running-operation", long).await;
    assert_eq!(progress, [json!(1), json!(2)]);
    let long = json!({"duration": 30, "steps": 2});
    let late =
        gateway.call_within_ms(300, "web", "trigger-long-running-operation", long.clone()).await;
    assert_eq!(late.problem(), failed(504, "deadline_exceeded"));

    let under_way = gateway.spawn_call("web", "trigger-long-running-operation", long);
    gateway.has_in_flight("web", 1.0).await;
    let Program { port, mut child } = program;
    child.kill().await.unwrap();
    assert_eq!(under_way.await.unwrap().problem(), failed(502, "backend_exited"));
    // The new one does not know the session of the old one.
    let program = Program::everything(&dir, port).await;
    let answer = gateway.call("web", "echo", json!({"message": "again"})).await;
    assert_eq!(answer.tool_text(), "Echo: again");
    gateway.stop().await;
    drop(program);
}

#[tokio::test]
async fn a_published_server_over_the_older_transport_is_used_and_found_again_after_a_restart() {
    let Some(dir) = servers() else { return };
    let program = Program::everything_over(&dir, "sse", free_port().await).await;
    let gateway = program.gateway_at("/sse").await;
    assert_eq!(gateway.server("web").await.json()["era"], "legacy");
    let answer = gateway.call("web", "echo", json!({"message": "hello"})).await;
    assert_eq!(answer.tool_text(), "Echo: hello");
    let long = json!({"duration": 0.4, "steps": 2});
    let progress = progress_of(&gateway, "trigger-long-running-operation", long).await;
    assert_eq!(progress, [json!(1), json!(2)]);

    let long = json!({"duration": 30, "steps": 2});
    let under_way = gateway.spawn_call("web", "trigger-long-running-operation", long);
    gateway.has_in_flight("web", 1.0).await;
    let Program { port, mut child } = program;
    child.kill().await.unwrap();
    assert_eq!(under_way.await.unwrap().problem(), failed(502, "backend_exited"));
    let program = Program::everything_over(&dir, "sse", port).await;
    eventually("called again", async || {
        let answer = gateway.call("web", "echo", json!({"message": "again"})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
    drop(program);
}

#[tokio::test]
async fn a_published_modern_server_is_used() {
    let Some(dir) = servers() else { return };
    let program = Program::sdk(&dir, free_port().await).await;
    let gateway = program.gateway().await;
    assert_eq!(gateway.server("web").await.json()["era"], "modern");
    assert_eq!(gateway.call("web", "add", json!({"a": 2, "b": 3})).await.tool_text(), "5");
    let progress = progress_of(&gateway, "count", json!({"steps": 3, "pause": 0.05})).await;
    assert_eq!(progress.len(), 3, "{progress:?}");
    let slow = json!({"steps": 1, "pause": 30});
    let late = gateway.call_within_ms(300, "web", "count", slow).await;
    assert_eq!(late.problem(), failed(504, "deadline_exceeded"));
    assert_eq!(gateway.call("web", "add", json!({"a": 1, "b": 1})).await.tool_text(), "2");
    gateway.stop().await;
    drop(program);
}
