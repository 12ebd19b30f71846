//! Pinned tools: the approved definitions, those held back, and how they differ.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::request::{object, respond};
use crate::common::ids::ServerId;
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::pins::{Hash, views};
use crate::store::Actor;

/// The definitions to approve, by their hashes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: Vec<String>,
}

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    Path(server): Path<String>,
) -> HttpResult {
    let server = server_id(&server)?;
    let (pins, held) = app.store.pins(Some(&server)).await?;
    // A server that was removed from the configuration may have pins left.
    let is_known = app.gateway.registry().get(server.as_str()).is_some();
    if !is_known && pins.is_empty() && held.is_empty() {
        return Err(HttpError::NotFound(format!("server `{server}`")));
    }
    Ok(respond(StatusCode::OK, &json!({"pins": views(&pins, &held)})))
}

pub(super) async fn approve(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
    request: Request<Body>,
) -> HttpResult {
    let server = server_id(&server)?;
    let body = Value::Object(object(&app, request).await?);
    let approval: Approval = serde_json::from_value(body)
        .map_err(|error| HttpError::InvalidRequest(error.to_string()))?;
    let parsed = approval.approve.iter().map(|text| text.parse());
    let hashes: Vec<Hash> = parsed
        .collect::<Result<_, _>>()
        .map_err(|error| HttpError::InvalidRequest(format!("`approve`: {error}")))?;
    if hashes.is_empty() {
        return Err(HttpError::InvalidRequest("`approve` must name at least one hash".to_owned()));
    }
    let tools = app.store.approve(&Actor::key(key), &server, &hashes).await?;
    Ok(respond(StatusCode::OK, &json!({"server": server.as_str(), "approved": tools})))
}

pub(super) async fn forget_all(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
) -> HttpResult {
    let server = server_id(&server)?;
    let forgotten = app.store.forget_pins(&Actor::key(key), &server, None).await?;
    Ok(respond(StatusCode::OK, &json!({"server": server.as_str(), "forgotten": forgotten})))
}

pub(super) async fn forget_one(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path((server, tool)): Path<(String, String)>,
) -> HttpResult {
    let server = server_id(&server)?;
    let forgotten = app.store.forget_pins(&Actor::key(key), &server, Some(&tool)).await?;
    Ok(respond(StatusCode::OK, &json!({"server": server.as_str(), "forgotten": forgotten})))
}

pub(super) fn server_id(text: &str) -> Result<ServerId, HttpError> {
    ServerId::parse(text).map_err(|error| HttpError::InvalidRequest(error.to_string()))
}
