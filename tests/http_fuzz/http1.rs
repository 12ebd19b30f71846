//! Scripts of HTTP/1.1: requests, whole and broken.

use std::time::Duration;

use memchr::memmem;
use rand::RngExt;
use rand::rngs::SmallRng;

use crate::hunt::{Script, Step, noise, pick};

const METHODS: &[&str] =
    &["GET", "POST", "POST", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "get", "P\u{1}"];
pub const PATHS: &[&str] = &[
    "/v1/servers/std/tools/echo",
    "/v1/servers/std/tools/sleep",
    "/v1/servers/std/tools/no_such_tool",
    "/v1/servers/std/tools/%00",
    "/v1/servers/%2e%2e/tools",
    "/v1/servers/std/secrets/A",
    "/v1/servers",
    "/v1/usage?by=minute&from=x",
    "/mcp",
    "/mcp/std",
    "/admin/v1/tenants/a%00b",
    "/healthz",
    "/readyz",
    "/metrics",
    "/%ff%fe",
    "*",
    "",
];
pub const NAMES: &[&str] = &[
    "authorization",
    "x-api-key",
    "content-type",
    "accept",
    "origin",
    "trunkline-timeout-ms",
    "traceparent",
    "idempotency-key",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "last-event-id",
    "expect",
    "upgrade",
    "x-other",
];
pub const VALUES: &[&str] = &[
    "",
    "Bearer tl_x",
    "application/json",
    "application/json, text/event-stream",
    "0",
    "-1",
    "100",
    "99999999999999999999",
    "2025-11-25",
    "2026-07-28",
    "tools/call",
    "tools/list",
    "echo",
    "http://localhost",
    "null",
    "100-continue",
    "h2c",
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "\u{e9}",
];
const BODIES: &[&str] = &[
    "",
    "{}",
    r#"{"text":"x"}"#,
    r#"{"ms":20}"#,
    r#"{"text":"x"#,
    "[]",
    "null",
    "{\"a\":{\"a\":{\"a\":{}}}}",
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call",
        "params":{"name":"echo","arguments":{"text":"x"}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
        "capabilities":{},"clientInfo":{"name":"f","version":"1"}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
    r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
];

pub fn script(rng: &mut SmallRng) -> Script {
    let mut steps = vec![];
    for _ in 0..rng.random_range(1..5) {
        let mut request = request(rng);
        mutate(rng, &mut request);
        send_in_pieces(rng, request, &mut steps);
        match rng.random_range(0..10) {
            0 => steps.push(Step::Pause(Duration::from_millis(rng.random_range(0..30)))),
            1 => steps.push(Step::Abort),
            2..7 => steps.push(Step::Read),
            _ => {}
        }
    }
    Script { steps, has_status_500: |bytes| memmem::find(bytes, b"HTTP/1.1 500").is_some() }
}

fn request(rng: &mut SmallRng) -> Vec<u8> {
    let (method, path) = (pick(rng, METHODS), pick(rng, PATHS));
    let version = pick(rng, &["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/3.7", ""]);
    let mut request = format!("{method} {path} {version}\r\n").into_bytes();
    for _ in 0..pick(rng, &[1, 1, 1, 1, 0, 2]) {
        let host = pick(rng, &["localhost", "localhost", "127.0.0.1:1", "evil.example", "\t", "["]);
        request.extend(format!("host: {host}\r\n").bytes());
    }
    for _ in 0..pick(rng, &[0, 1, 2, 4, 200]) {
        request.extend(format!("{}: {}\r\n", pick(rng, NAMES), pick(rng, VALUES)).bytes());
    }
    let body = body(rng);
    match rng.random_range(0..8) {
        0 => request.extend(b"\r\n"),
        1 => {
            let wrong = pick(rng, &["-1", "0", "1", "18446744073709551616", "7, 7", "2\r\nx"]);
            request.extend(format!("content-length: {wrong}\r\n\r\n").bytes());
            request.extend(body);
        }
        2 => {
            let len = body.len();
            request.extend(
                format!("content-length: {len}\r\ntransfer-encoding: chunked\r\n\r\n").bytes(),
            );
            request.extend(chunked(rng, &body));
        }
        3 | 4 => {
            request.extend(b"transfer-encoding: chunked\r\n\r\n");
            request.extend(chunked(rng, &body));
        }
        _ => {
            request.extend(format!("content-length: {}\r\n\r\n", body.len()).bytes());
            request.extend(body);
        }
    }
    request
}

/// Returns a body: a message, noise, something deep, or something long.
pub fn body(rng: &mut SmallRng) -> Vec<u8> {
    match rng.random_range(0..12) {
        0 => noise(rng, 300),
        1 => vec![b'['; rng.random_range(1..5000)],
        2 => format!("{{\"text\":\"{}\"}}", "x".repeat(rng.random_range(0..200_000))).into_bytes(),
        _ => pick(rng, BODIES).as_bytes().to_vec(),
    }
}

/// Returns the body in chunks, some of them with a wrong size.
fn chunked(rng: &mut SmallRng, body: &[u8]) -> Vec<u8> {
    let mut chunks = vec![];
    for piece in body.chunks(rng.random_range(1..64)).take(200) {
        let size = match rng.random_range(0..200) {
            0 => "ffffffffffffffffff".to_owned(),
            1 => "-1".to_owned(),
            2 => format!("{:x};x=\"y", piece.len()),
            _ => format!("{:x}", piece.len()),
        };
        chunks.extend(size.bytes().chain(*b"\r\n"));
        chunks.extend(piece);
        chunks.extend(b"\r\n");
    }
    chunks.extend(pick(rng, &["0\r\n\r\n", "0\r\n\r\n", "0\r\nx: y\r\n\r\n", "0\r\n", ""]).bytes());
    chunks
}

/// Changes, removes or repeats some bytes of one request in three.
fn mutate(rng: &mut SmallRng, request: &mut Vec<u8>) {
    if rng.random_ratio(2, 3) || request.is_empty() {
        return;
    }
    for _ in 0..rng.random_range(1..4) {
        let at = rng.random_range(0..request.len());
        match rng.random_range(0..4) {
            0 => request[at] = rng.random(),
            1 => request.truncate(at.max(1)),
            2 => request.insert(at, pick(rng, b"\0\r\n :\xff")),
            _ => {
                let end = (at + rng.random_range(0..50)).min(request.len());
                let piece = request[at..end].to_vec();
                request.splice(at..at, piece);
            }
        }
    }
}

fn send_in_pieces(rng: &mut SmallRng, request: Vec<u8>, steps: &mut Vec<Step>) {
    if rng.random_ratio(2, 3) {
        return steps.push(Step::Send(request));
    }
    let len = rng.random_range(1..=request.len().max(2) / 2 + 1);
    for piece in request.chunks(len) {
        steps.push(Step::Send(piece.to_vec()));
        steps.push(Step::Pause(Duration::from_millis(rng.random_range(0..4))));
    }
}
