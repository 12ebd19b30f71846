//! What there is to call: `GET /v1/servers` and below.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Response, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Front;
use super::auth::Authenticated;
use crate::backend::tools::Tool;
use crate::backend::{Ready, State as ServerState};
use crate::gateway::{CallError, Caller};
use crate::registry::Server;

/// One server as callers see it.
#[derive(Serialize)]
pub(super) struct ServerView<'a> {
    id: &'a str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<usize>,
}

impl<'a> ServerView<'a> {
    /// As a caller sees it, or as those do who see everything.
    pub(super) fn of(server: &'a Server, caller: Option<&Caller>) -> Self {
        let id = server.id().as_str();
        let view = |state| Self {
            id,
            state,
            reason: None,
            protocol_version: None,
            era: None,
            tools: None,
        };
        let running = match (server, caller) {
            (Server::Shared(backend), _) => Some(backend.clone()),
            (_, Some(caller)) => server.running(&caller.tenant.id),
            (_, None) => None,
        };
        let Some(backend) = running else {
            let is_of_tenants = matches!(server, Server::PerTenant(_));
            return view(if is_of_tenants { "per_tenant" } else { "per_session" });
        };
        match backend.state() {
            ServerState::Idle => view("idle"),
            ServerState::Starting => view("starting"),
            ServerState::Backoff { reason, .. } => {
                Self { reason: Some(reason.to_string()), ..view("backoff") }
            }
            ServerState::Stopped => view("stopped"),
            ServerState::Ready(ready) => {
                let version = ready.dialect.version();
                Self {
                    protocol_version: Some(version.as_str()),
                    era: Some(version.era().to_string()),
                    tools: Some(match caller {
                        Some(caller) => granted(caller, id, &ready).count(),
                        None => ready.tools.len(),
                    }),
                    ..view("ready")
                }
            }
        }
    }
}

/// Every server the caller may use.
pub(super) async fn list_servers(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
) -> Result<Response<Body>, CallError> {
    #[derive(Serialize)]
    struct List<'a> {
        servers: Vec<ServerView<'a>>,
    }
    let servers = front.gateway.servers(&caller);
    Ok(json(&List {
        servers: servers.map(|server| ServerView::of(server, Some(&caller))).collect(),
    }))
}

/// One server.
pub(super) async fn show_server(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, CallError> {
    let server = front.gateway.server(&caller, &named(path)?)?;
    Ok(json(&ServerView::of(server, Some(&caller))))
}

/// One server's tools, as the server defines them.
pub(super) async fn list_tools(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, CallError> {
    #[derive(Serialize)]
    struct List<'a> {
        tools: Vec<&'a RawValue>,
    }
    let server = front.gateway.backend(&caller, &named(path)?)?;
    let ready = server.ready(Instant::now() + server.timeout()).await?;
    let tools = granted(&caller, server.id().as_str(), &ready);
    Ok(json(&List { tools: tools.map(Tool::definition).collect() }))
}

/// The tools of a server that a caller may call.
pub(super) fn granted<'a>(
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
