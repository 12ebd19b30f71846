//! Lists the servers and tools that a caller may use: `GET /v1/servers` and below.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

pub(crate) use super::server_view::ServerView;
use super::server_view::Viewer;
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, Ready};
use crate::gateway::Caller;
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::headers::SESSION_ID;
use crate::http::state::AppState;

pub(crate) async fn list_servers(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
) -> HttpResult {
    #[derive(Serialize)]
    struct List {
        servers: Vec<ServerView>,
    }
    let (registry, viewer) = (app.gateway.registry(), viewer(&app, &caller, &headers));
    let servers = app.gateway.servers(&caller);
    let servers = servers.map(|server| ServerView::for_caller(registry, &server, &viewer));
    Ok(json(&List { servers: servers.collect() }))
}

pub(crate) async fn show_server(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let Path(server) = path?;
    let server = app.gateway.server(&caller, &server)?;
    let (registry, viewer) = (app.gateway.registry(), viewer(&app, &caller, &headers));
    Ok(json(&ServerView::for_caller(registry, &server, &viewer)))
}

/// Returns the viewer: a request that names its session sees the session's own processes.
fn viewer<'a>(app: &AppState, caller: &'a Caller, headers: &HeaderMap) -> Viewer<'a> {
    let token = headers.get(&SESSION_ID).and_then(|token| token.to_str().ok());
    let session = token.and_then(|token| app.sessions.id_in(&caller.tenant.id, token));
    Viewer { caller, session }
}

/// Lists one server's tools, as the server defines them.
pub(crate) async fn list_tools(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    #[derive(Serialize)]
    struct List<'a> {
        tools: Vec<&'a RawValue>,
    }
    let Path(server) = path?;
    let server = app.gateway.server(&caller, &server)?;
    let until = |backend: &Backend| Instant::now() + backend.timeout();
    let (backend, ready) = app.gateway.ready(&caller, server, until).await?;
    let tools = granted(&caller, backend.id().as_str(), &ready);
    Ok(json(&List { tools: tools.map(Tool::definition).collect() }))
}

/// Returns the tools that a caller may call.
pub(crate) fn granted<'a>(
    caller: &'a Caller,
    server: &'a str,
    ready: &'a Ready,
) -> impl Iterator<Item = &'a Tool> {
    ready.tools.iter().filter(move |tool| caller.tenant.may_call(server, tool.name()))
}

fn json(body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
