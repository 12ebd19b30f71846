//! Pinned tools: the approved definitions, those held back, and how they differ.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Request;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{ok, read};
use crate::common::ids::ServerId;
use crate::common::keys::KeyId;
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::pins::{Hash, views};
use crate::store::Actor;

/// The definitions to approve, by their hashes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approval {
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
    ok(&json!({"pins": views(&pins, &held)}))
}

pub(super) async fn approve(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
    request: Request<Body>,
) -> HttpResult {
    let server = server_id(&server)?;
    let Approval { approve } = read(&app, request).await?;
    let hashes: Result<Vec<Hash>, _> = approve.iter().map(|text| text.parse()).collect();
    let hashes = hashes.map_err(|error| HttpError::invalid(format!("`approve`: {error}")))?;
    if hashes.is_empty() {
        return Err(HttpError::invalid("`approve` must name at least one hash"));
    }
    let tools = app.store.approve(&Actor::key(key), &server, &hashes).await?;
    ok(&json!({"server": server.as_str(), "approved": tools}))
}

pub(super) async fn forget_all(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
) -> HttpResult {
    forget(&app, key, &server, None).await
}

pub(super) async fn forget_one(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path((server, tool)): Path<(String, String)>,
) -> HttpResult {
    forget(&app, key, &server, Some(&tool)).await
}

async fn forget(app: &AppState, key: KeyId, server: &str, tool: Option<&str>) -> HttpResult {
    let server = server_id(server)?;
    let forgotten = app.store.forget_pins(&Actor::key(key), &server, tool).await?;
    ok(&json!({"server": server.as_str(), "forgotten": forgotten}))
}

pub(super) fn server_id(text: &str) -> Result<ServerId, HttpError> {
    ServerId::parse(text).map_err(HttpError::invalid)
}
