//! Published servers, run as they are. They are looked for in the directory that `MCP_TEST_SERVERS`
//! names, which has `node_modules/@modelcontextprotocol/server-everything` and
//! `venv/bin/mcp-server-time`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{Answer, Setup, missing, trunkline};

/// The directory; without one the test is skipped, except where it must not be.
pub fn servers() -> Option<PathBuf> {
    let dir = std::env::var_os("MCP_TEST_SERVERS");
    if dir.is_none() {
        missing("MCP_TEST_SERVERS is not set");
    }
    dir.map(PathBuf::from)
}

fn setup(dir: &std::path::Path) -> Setup {
    let everything = dir.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let time = dir.join("venv/bin/mcp-server-time");
    Setup::new()
        .server("everything", "node", &[everything.display().to_string(), "stdio".into()], "")
        .server("time", time.to_str().unwrap(), &[], "")
}

#[tokio::test]
async fn published_servers_of_both_eras_are_recognised() {
    let Some(dir) = servers() else { return };
    let setup = setup(&dir);
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{table}");
    // The rows are in the order in which the checks end.
    let row = |server: &str| -> Vec<&str> {
        let mut rows = table.lines().map(|line| line.split_whitespace().take(4).collect());
        rows.find(|row: &Vec<&str>| row.first() == Some(&server)).unwrap_or_default()
    };
    assert_eq!(row("everything"), ["everything", "ok", "2025-11-25", "legacy"], "{table}");
    assert_eq!(row("time"), ["time", "ok", "2026-07-28", "modern"], "{table}");
}

#[tokio::test]
async fn published_servers_are_called_through_the_gateway() {
    let Some(dir) = servers() else { return };
    let gateway = setup(&dir).start().await;
    let answer = gateway.call("everything", "echo", json!({"message": "hello"})).await;
    assert_eq!(answer.tool_text(), "Echo: hello");
    let answer = gateway.call("time", "get_current_time", json!({"timezone": "UTC"})).await;
    assert!(answer.tool_text().contains("\"timezone\""), "{answer:?}");

    let long = json!({"duration": 2, "steps": 2});
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        let tool = "trigger-long-running-operation";
        calls.spawn(Answer::of(gateway.post("everything", tool, &long)));
    }
    for answer in calls.join_all().await {
        assert!(answer.tool_text().contains("completed"), "{answer:?}");
    }
    // One after another would be 8 s.
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    gateway.stop().await;
}
