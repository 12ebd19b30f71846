//! Definitions of tools: what was approved, what is held back, and how that differs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, json as answer, object};
use crate::common::ids::ServerId;
use crate::http::Front;
use crate::http::auth::Administrator;
use crate::pins::{Hash, views};
use crate::store::Actor;

/// What shall be approved: definitions, by their hashes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Approval {
    approve: Vec<String>,
}

pub(super) async fn list(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path(server): Path<String>,
) -> Answer {
    let server = server_id(&server)?;
    let (pins, held) = front.store.pins(Some(&server)).await?;
    // A server that has left the configuration may have left pins.
    let is_known = front.gateway.registry().get(server.as_str()).is_some();
    if !is_known && pins.is_empty() && held.is_empty() {
        return Err(AdminError::NotFound(format!("server `{server}`")));
    }
    Ok(answer(StatusCode::OK, &json!({"pins": views(&pins, &held)})))
}

pub(super) async fn approve(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
    request: Request<Body>,
) -> Answer {
    let server = server_id(&server)?;
    let body = Value::Object(object(&front, request).await?);
    let approval: Approval =
        serde_json::from_value(body).map_err(|error| AdminError::Invalid(error.to_string()))?;
    let parsed = approval.approve.iter().map(|text| text.parse());
    let hashes: Vec<Hash> = parsed
        .collect::<Result<_, _>>()
        .map_err(|error| AdminError::Invalid(format!("`approve`: {error}")))?;
    if hashes.is_empty() {
        return Err(AdminError::Invalid("`approve` must name at least one hash".to_owned()));
    }
    let tools = front.store.approve(&Actor::key(key), &server, &hashes).await?;
    Ok(answer(StatusCode::OK, &json!({"server": server.as_str(), "approved": tools})))
}

pub(super) async fn forget_all(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(server): Path<String>,
) -> Answer {
    let server = server_id(&server)?;
    let forgotten = front.store.forget_pins(&Actor::key(key), &server, None).await?;
    Ok(answer(StatusCode::OK, &json!({"server": server.as_str(), "forgotten": forgotten})))
}

pub(super) async fn forget_one(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path((server, tool)): Path<(String, String)>,
) -> Answer {
    let server = server_id(&server)?;
    let forgotten = front.store.forget_pins(&Actor::key(key), &server, Some(&tool)).await?;
    Ok(answer(StatusCode::OK, &json!({"server": server.as_str(), "forgotten": forgotten})))
}

fn server_id(text: &str) -> Result<ServerId, AdminError> {
    ServerId::parse(text).map_err(|error| AdminError::Invalid(error.to_string()))
}
