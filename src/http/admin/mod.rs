//! `/admin/v1`: tenants, keys, secrets, usage, pins, the audit log and servers, for administrators.
//!
//! Changes are written to the store. All gateways that use the store follow within two seconds.

mod call_as;
pub(super) mod calls;
pub(super) mod keys;
pub(super) mod live;
mod operate;
pub(super) mod pins;
mod replicas;
pub(super) mod reports;
pub(super) mod running;
mod secrets;
mod tenants;
mod toolsets;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

pub(super) use self::reports::{ADMIN_REPORTS_MAX, TENANT_REPORTS_MAX, own_usage};
use super::body;
use super::error::{HttpError, HttpResult};
use super::state::AppState;

pub(super) fn routes() -> Router<Arc<AppState>> {
    let secret = put(secrets::set).delete(secrets::remove);
    let call_as = post(call_as::call_tool_as);
    let tenant = get(tenants::show).patch(tenants::change).delete(tenants::remove);
    let pins = get(pins::list).post(pins::approve).delete(pins::forget_all);
    Router::new()
        .route("/admin/v1/tenants", get(tenants::list).post(tenants::add))
        .route("/admin/v1/tenants/{tenant}", tenant)
        .route("/admin/v1/tenants/{tenant}/keys", get(keys::list).post(keys::create))
        .route("/admin/v1/tenants/{tenant}/servers/{server}/secrets", get(secrets::list))
        .route("/admin/v1/tenants/{tenant}/servers/{server}/secrets/{name}", secret)
        .route("/admin/v1/tenants/{tenant}/servers/{server}/tools/{tool}", call_as)
        .route("/admin/v1/admin-keys", get(keys::list_admin).post(keys::create_admin))
        .route("/admin/v1/keys/{key}", delete(keys::revoke))
        .route("/admin/v1/usage", get(reports::usage))
        .route("/admin/v1/audit", get(reports::audit))
        .route("/admin/v1/servers", get(running::servers))
        .route("/admin/v1/servers/{server}/tools", get(running::tools))
        .route("/admin/v1/toolsets", get(toolsets::list))
        .route("/admin/v1/toolsets/{toolset}/tools", get(toolsets::tools))
        .route("/admin/v1/calls", get(running::calls))
        .route("/admin/v1/calls/recent", get(calls::recent))
        .route("/admin/v1/servers/{server}/instances/{instance}/replace", post(operate::replace))
        .route("/admin/v1/tenants/{tenant}/limits", get(tenants::limits))
        .route("/admin/v1/history", get(live::history))
        .route("/admin/v1/history/{second}", get(live::second))
        .route("/admin/v1/shares", get(live::shares))
        .merge(forwarded_routes())
        .route("/admin/v1/servers/{server}/pins", pins)
        .route("/admin/v1/servers/{server}/pins/{tool}", delete(pins::forget_one))
}

/// Returns the routes that other replicas are asked for, too.
pub(super) fn forwarded_routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/admin/v1/calls/{id}", get(calls::show).delete(operate::cancel))
        .route("/admin/v1/calls/{id}/explain", get(calls::explain))
        .route("/admin/v1/live", get(live::stream))
        .route("/admin/v1/servers/{server}/pause", post(operate::pause))
        .route("/admin/v1/servers/{server}/resume", post(operate::resume))
}

/// Reads the JSON object of a request; an empty body is an empty object.
async fn object(app: &AppState, request: Request<Body>) -> Result<Map<String, Value>, HttpError> {
    let deadline = Instant::now() + body::TIMEOUT;
    let body = body::read(request.into_body(), app.max_body, deadline).await?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&body)
        .map_err(|error| HttpError::invalid(format!("the body must be a JSON object: {error}")))
}

/// Reads a request whose members are those of `T`.
async fn read<T: DeserializeOwned>(app: &AppState, request: Request<Body>) -> Result<T, HttpError> {
    let members = Value::Object(object(app, request).await?);
    serde_json::from_value(members).map_err(HttpError::invalid)
}

pub(super) fn ok(body: &impl Serialize) -> HttpResult {
    respond(StatusCode::OK, body)
}

fn created(body: &impl Serialize) -> HttpResult {
    respond(StatusCode::CREATED, body)
}

fn respond(status: StatusCode, body: &impl Serialize) -> HttpResult {
    let body = serde_json::to_vec(body).expect("views are plain data");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((status, headers, body).into_response())
}
