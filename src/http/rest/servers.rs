//! What there is to call: `GET /v1/servers` and below.

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
use crate::gateway::{CallError, Caller};
use crate::http::Front;
use crate::http::auth::Authenticated;
use crate::http::mcp::SESSION_ID;

/// Every server the caller may use.
pub(crate) async fn list_servers(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
) -> Result<Response<Body>, CallError> {
    #[derive(Serialize)]
    struct List {
        servers: Vec<ServerView>,
    }
    let (registry, viewer) = (front.gateway.registry(), viewer(&front, &caller, &headers));
    let servers = front.gateway.servers(&caller);
    let servers = servers.map(|server| ServerView::for_caller(registry, &server, &viewer));
    Ok(json(&List { servers: servers.collect() }))
}

/// One server.
pub(crate) async fn show_server(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response<Body>, CallError> {
    let server = front.gateway.server(&caller, &named(path)?)?;
    let (registry, viewer) = (front.gateway.registry(), viewer(&front, &caller, &headers));
    Ok(json(&ServerView::for_caller(registry, &server, &viewer)))
}

/// Who looks. Whoever shows the session that it calls in sees the processes that are its own.
fn viewer<'a>(front: &Front, caller: &'a Caller, headers: &HeaderMap) -> Viewer<'a> {
    let token = headers.get(SESSION_ID).and_then(|token| token.to_str().ok());
    let session = token.and_then(|token| front.sessions.id_in(&caller.tenant.id, token));
    Viewer { caller, session }
}

/// One server's tools, as the server defines them.
pub(crate) async fn list_tools(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, CallError> {
    #[derive(Serialize)]
    struct List<'a> {
        tools: Vec<&'a RawValue>,
    }
    let until = |server: &Backend| Instant::now() + server.timeout();
    let (server, ready) = front.gateway.ready(&caller, &named(path)?, until).await?;
    let tools = granted(&caller, server.id().as_str(), &ready);
    Ok(json(&List { tools: tools.map(Tool::definition).collect() }))
}

/// The tools of a server that a caller may call.
pub(crate) fn granted<'a>(
    caller: &'a Caller,
    server: &'a str,
    ready: &'a Ready,
) -> impl Iterator<Item = &'a Tool> {
    ready.tools.iter().filter(move |tool| caller.tenant.may_call(server, tool.name()))
}

fn named(path: Result<Path<String>, PathRejection>) -> Result<String, CallError> {
    let Path(server) = path.map_err(|error| CallError::InvalidRequest(error.body_text()))?;
    Ok(server)
}

fn json(body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
