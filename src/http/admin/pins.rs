//! Pinned tools: the approved definitions, those held back, and how they differ.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{ok, read};
use crate::common::ids::ServerId;
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::pins::{Hash, views};
use crate::store::Actor;

/// The definitions to approve, by their hashes.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approval {
    #[schemars(length(min = 1), inner(regex(pattern = "^sha256:[0-9a-f]{64}$")))]
    approve: Vec<String>,
}

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
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
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path(server) = path?;
    let server = server_id(&server)?;
    let Approval { approve } = read(&app, request).await?;
    let hashes: Result<Vec<Hash>, _> = approve.iter().map(|text| text.parse()).collect();
    let hashes = hashes.map_err(|error| HttpError::invalid(format!("`approve`: {error}")))?;
    if hashes.is_empty() {
        return Err(HttpError::invalid("`approve` must name at least one hash"));
    }
    let tools = app.store.approve(&actor, &server, &hashes).await?;
    ok(&json!({"server": server.as_str(), "approved": tools}))
}

pub(super) async fn forget_all(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    forget(&app, &actor, &server, None).await
}

pub(super) async fn forget_one(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<(String, String)>, PathRejection>,
) -> HttpResult {
    let Path((server, tool)) = path?;
    forget(&app, &actor, &server, Some(&tool)).await
}

async fn forget(app: &AppState, actor: &Actor, server: &str, tool: Option<&str>) -> HttpResult {
    let server = server_id(server)?;
    let forgotten = app.store.forget_pins(actor, &server, tool).await?;
    ok(&json!({"server": server.as_str(), "forgotten": forgotten}))
}

pub(super) fn server_id(text: &str) -> Result<ServerId, HttpError> {
    ServerId::parse(text).map_err(HttpError::invalid)
}
