//! The server: one tool, which writes down the key that it was called with and then answers.

use std::fs::OpenOptions;
use std::io::{BufRead, Write, stdin, stdout};
use std::process::ExitCode;

use serde_json::{Value, json};

/// `child FILE`: the file gets a line for each execution.
pub fn run(file: &str) -> ExitCode {
    let mut file = OpenOptions::new().append(true).create(true).open(file).unwrap();
    for line in stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let Some(id) = message.get("id") else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "keyed", "version": "1"},
            }),
            Some("tools/list") => json!({
                "tools": [{"name": "count", "inputSchema": {"type": "object"}}],
            }),
            Some("tools/call") => {
                let key = &message["params"]["arguments"]["key"];
                // One write to a file that is open for appending is whole.
                file.write_all(format!("{key}\n").as_bytes()).unwrap();
                json!({"content": [{"type": "text", "text": format!("counted {key}")}]})
            }
            _ => json!({}),
        };
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        let mut out = stdout().lock();
        if writeln!(out, "{answer}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
