//! A server with a `url` that refuses one tenant's calls, as if their arguments met a quota.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::{Router, routing};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::gateway::again;
use super::neighbour::Neighbour;
use super::{Aim, Row};

/// The tool takes so long.
const WORK: Duration = Duration::from_millis(4);
/// The server asks to be left alone for so many seconds.
const RETRY_AFTER_S: &str = "10";

pub const ROWS: &[Row] = &[Row {
    name: "upstream-429",
    does: "calls that its upstream refuses (429)",
    settings: |_| Ok(format!("[servers.web]\nurl = \"http://127.0.0.1:{}/mcp\"\n", port()?)),
    hostile: |gateway| {
        let tenant = gateway.tenant("hostile");
        again(tenant, 4, &tenant.call("web", "work", "", r#"{"quota":true}"#))
    },
    neighbour: Neighbour {
        callers: 4,
        request: |tenant| tenant.call("web", "work", "", "{}"),
        answer: "worked",
    },
    aim: Aim::USUAL,
}];

/// Returns the port of the server, which is started once.
fn port() -> Result<u16> {
    static PORT: OnceLock<u16> = OnceLock::new();
    if let Some(port) = PORT.get() {
        return Ok(*port);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, Router::new().route("/mcp", routing::post(answer))).await
        })
    });
    Ok(*PORT.get_or_init(|| port))
}

/// Speaks as much of modern MCP as the row needs.
async fn answer(body: Bytes) -> Response<Body> {
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match message["method"].as_str().unwrap_or_default() {
        "server/discover" => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "public",
        }),
        "tools/list" => json!({
            "tools": [{"name": "work", "inputSchema": {"type": "object"}}],
            "ttlMs": 3_600_000, "cacheScope": "public",
        }),
        _ if message["params"]["arguments"]["quota"] == true => {
            let refusal = Response::builder().status(429).header(RETRY_AFTER, RETRY_AFTER_S);
            return refusal.body(Body::empty()).expect("its parts are valid");
        }
        _ => {
            sleep(WORK).await;
            json!({"content": [{"type": "text", "text": "worked"}]})
        }
    };
    let mut answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    answer["result"]["resultType"] = json!("complete");
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    response.body(answer.to_string().into()).expect("its parts are valid")
}
