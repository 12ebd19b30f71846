//! Requests of MCP clients.

use std::io::{Error, ErrorKind, Result};

use trunkline::protocol::mcp::{ProtocolVersion, meta};

use crate::client::Client;
use crate::target::Tenant;

const TYPES: &str = "content-type: application/json\r\n\
                     accept: application/json, text/event-stream\r\n";
const SESSION: &str = "mcp-session-id";

/// Returns a whole request of the modern era. `name` is the tool or resource that it is about.
/// `params` are members, each with a comma after it.
pub fn modern(
    tenant: &Tenant,
    path: &str,
    method: &str,
    name: Option<&str>,
    params: &str,
) -> Vec<u8> {
    let version = ProtocolVersion::LATEST.as_str();
    let name = name.map(|name| format!("mcp-name: {name}\r\n")).unwrap_or_default();
    let headers =
        format!("{TYPES}mcp-protocol-version: {version}\r\nmcp-method: {method}\r\n{name}");
    let about = format!(
        r#""{}":"{version}","{}":{{"name":"fairness","version":"1"}},"{}":{{}}"#,
        meta::PROTOCOL_VERSION,
        meta::CLIENT_INFO,
        meta::CLIENT_CAPABILITIES,
    );
    let params = format!(r#"{{{params}"_meta":{{{about}}}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    tenant.send(&format!("POST {path}"), &headers, &body)
}

/// Returns a whole request for a session of the legacy era.
pub fn initialize(tenant: &Tenant, path: &str) -> Vec<u8> {
    let version = ProtocolVersion::LATEST_LEGACY.as_str();
    let client = r#"{"name":"fairness","version":"1"}"#;
    let params =
        format!(r#"{{"protocolVersion":"{version}","capabilities":{{}},"clientInfo":{client}}}"#);
    let body = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
    tenant.send(&format!("POST {path}"), TYPES, &body)
}

/// Opens a session and its stream, and waits until the stream ends. Returns an error if the session
/// is refused.
pub async fn keep_session(tenant: &Tenant, path: &str) -> Result<()> {
    let mut client = Client::connect(tenant.address).await?;
    let answer = client.call(&initialize(tenant, path)).await?;
    let refused = || Error::new(ErrorKind::PermissionDenied, "no session");
    let session = session_of(answer.head).ok_or_else(refused)?.to_owned();
    let headers = format!("accept: text/event-stream\r\n{SESSION}: {session}\r\n");
    client.drain(&tenant.send(&format!("GET {path}"), &headers, "")).await
}

fn session_of(head: &[u8]) -> Option<&str> {
    let lines = std::str::from_utf8(head).ok()?.lines();
    let mut headers = lines.filter_map(|line| line.split_once(": "));
    headers.find(|(name, _)| name.eq_ignore_ascii_case(SESSION)).map(|(_, value)| value)
}
