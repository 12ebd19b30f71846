//! The messages of an MCP client.

use serde_json::{Value, json};
use trunkline::protocol::mcp::{ProtocolVersion, meta, method};

use crate::tally::Outcome;

pub const MODERN: ProtocolVersion = ProtocolVersion::LATEST;
pub const LEGACY: ProtocolVersion = ProtocolVersion::LATEST_LEGACY;

pub fn initialize() -> Value {
    let client = json!({"name": "soak", "version": "1"});
    let params =
        json!({"protocolVersion": LEGACY.as_str(), "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 0, "method": method::INITIALIZE, "params": params})
}

/// Returns a call; all clients use the same id.
pub fn legacy_call(mark: &str) -> Value {
    let params = json!({"name": "echo", "arguments": {"text": mark}});
    json!({"jsonrpc": "2.0", "id": 1, "method": method::TOOLS_CALL, "params": params})
}

/// Returns a call that says all about itself, as modern ones do.
pub fn modern_call(mark: &str) -> Value {
    let mut call = legacy_call(mark);
    call["params"]["_meta"] = json!({
        meta::PROTOCOL_VERSION: MODERN.as_str(),
        meta::CLIENT_INFO: {"name": "soak", "version": "1"},
        meta::CLIENT_CAPABILITIES: {},
    });
    call
}

/// Reads a response: JSON, or a stream of events whose last one is the response.
pub fn read(content_type: &str, body: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(body);
    let message = match content_type {
        "text/event-stream" => text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .next_back()
            .unwrap_or_default(),
        _ => &text,
    };
    let message: Value = serde_json::from_str(message).unwrap_or_default();
    let error = &message["error"];
    match message["result"]["content"][0]["text"].as_str() {
        Some(text) => Outcome::Text(text.to_owned()),
        None => {
            let code = error["data"]["code"].as_str().unwrap_or("no code");
            let detail =
                if error.is_null() { &text } else { error["message"].as_str().unwrap_or("") };
            Outcome::Error(code.to_owned(), detail.to_owned())
        }
    }
}
