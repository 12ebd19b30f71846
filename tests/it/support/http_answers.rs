//! The answers of the MCP server that a test plays over HTTP.

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

pub fn reply(status: u16) -> axum::http::response::Builder {
    Response::builder().status(status)
}

pub fn status(status: u16) -> Response<Body> {
    reply(status).body(Body::empty()).unwrap()
}

pub fn tool_result(text: &str) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
}

pub fn result_of(id: &Value, result: Value) -> Response<Body> {
    let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    reply(200).header("content-type", "application/json").body(body.into()).unwrap()
}

pub fn error(status: u16, id: &Value, code: i64, message: &str) -> Response<Body> {
    let error = json!({"code": code, "message": message});
    let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
    reply(status).header("content-type", "application/json").body(body.into()).unwrap()
}

pub fn event(message: &Value) -> String {
    format!("data: {message}\n\n")
}
