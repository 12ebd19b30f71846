//! Lists the servers and tools that a caller may use: `GET /v1/servers` and below.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse;
use serde::Serialize;
use tokio::time::Instant;

use super::server_view::{ServerView, Viewer};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, Ready};
use crate::gateway::{CallError, Caller};
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::headers::{SESSION_ID, add_rate_status};
use crate::http::state::AppState;
use crate::tenants::limits::{Cost, RateStatus};

pub(crate) async fn list_servers(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
) -> HttpResult {
    let rate_status = admit(&caller).await?;
    let (registry, viewer) = (app.gateway.registry(), viewer(&app, &caller, &headers));
    let servers = app.gateway.servers(&caller);
    let views = servers.map(|server| ServerView::new(registry, server, &viewer));
    Ok(json(&BTreeMap::from([("servers", views.collect::<Vec<_>>())]), &rate_status))
}

pub(crate) async fn show_server(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let Path(server) = path?;
    let rate_status = admit(&caller).await?;
    let server = app.gateway.server(&caller, &server)?;
    let (registry, viewer) = (app.gateway.registry(), viewer(&app, &caller, &headers));
    Ok(json(&ServerView::new(registry, server, &viewer), &rate_status))
}

/// Charges a list to its tenant.
async fn admit(caller: &Caller) -> Result<RateStatus, CallError> {
    Ok(caller.tenant.admit(Cost::List).await?.take_rate_status())
}

/// Returns the viewer: a request that names its session sees the session's own processes.
fn viewer<'a>(app: &AppState, caller: &'a Caller, headers: &HeaderMap) -> Viewer<'a> {
    let token = headers.get(&SESSION_ID).and_then(|token| token.to_str().ok());
    let session = token.and_then(|token| app.sessions.id_in(&caller.tenant.id, token));
    Viewer::Caller { caller, session }
}

/// Lists one server's tools, as the server defines them.
pub(crate) async fn list_tools(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    let rate_status = admit(&caller).await?;
    let server = app.gateway.server(&caller, &server)?;
    let until = |backend: &Backend| Instant::now() + backend.timeout();
    let (backend, ready) = app.gateway.ready(&caller, server, until).await?;
    let tools = granted(&caller, backend.id().as_str(), &ready);
    let tools = BTreeMap::from([("tools", tools.map(Tool::definition).collect::<Vec<_>>())]);
    Ok(json(&tools, &rate_status))
}

/// Returns the tools that a caller may call.
pub(crate) fn granted<'a>(
    caller: &'a Caller,
    server: &'a str,
    ready: &'a Ready,
) -> impl Iterator<Item = &'a Tool> {
    ready.tools.iter().filter(move |tool| caller.tenant.may_call(server, tool.name()))
}

fn json(body: &impl Serialize, rate_status: &RateStatus) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body).into_response();
    add_rate_status(response.headers_mut(), rate_status);
    response
}
