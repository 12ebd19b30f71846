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
use crate::backend::{Backend, Ready, State as ServerState};
use crate::gateway::{CallError, Caller};
use crate::ids::ServerId;
use crate::registry::{Registry, Server};

/// One server as callers see it.
#[derive(Serialize)]
pub(super) struct ServerView {
    id: String,
    #[serde(flatten)]
    state: StateView,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<usize>,
    /// What takes its place as soon as it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<StateView>,
}

/// Where a server stands.
#[derive(Serialize)]
struct StateView {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl ServerView {
    /// As a caller sees it, or as those do who see everything.
    pub(super) fn of(registry: &Registry, server: &Server, caller: Option<&Caller>) -> Self {
        let id = server.id();
        let Server::Shared(backend) = server else {
            let state = StateView { state: "per_session", reason: None };
            return Self::in_state(id, state);
        };
        let state = backend.state();
        let view = Self {
            replacement: registry.replacement(id).as_ref().map(StateView::of),
            ..Self::in_state(id, StateView::of(&state))
        };
        let ServerState::Ready(ready) = state else { return view };
        let version = ready.dialect.version();
        Self {
            protocol_version: Some(version.as_str()),
            era: Some(version.era().to_string()),
            tools: Some(match caller {
                Some(caller) => granted(caller, id.as_str(), &ready).count(),
                None => ready.tools.len(),
            }),
            ..view
        }
    }

    fn in_state(id: &ServerId, state: StateView) -> Self {
        let (protocol_version, era, tools) = (None, None, None);
        Self { id: id.to_string(), state, protocol_version, era, tools, replacement: None }
    }
}

impl StateView {
    fn of(state: &ServerState) -> Self {
        let (state, reason) = match state {
            ServerState::Idle => ("idle", None),
            ServerState::Starting => ("starting", None),
            ServerState::Ready(_) => ("ready", None),
            ServerState::Backoff { reason, .. } => ("backoff", Some(reason.to_string())),
            ServerState::Stopped => ("stopped", None),
        };
        Self { state, reason }
    }
}

/// Every server the caller may use.
pub(super) async fn list_servers(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
) -> Result<Response<Body>, CallError> {
    #[derive(Serialize)]
    struct List {
        servers: Vec<ServerView>,
    }
    let registry = front.gateway.registry();
    let servers = front.gateway.servers(&caller);
    Ok(json(&List {
        servers: servers.map(|server| ServerView::of(registry, &server, Some(&caller))).collect(),
    }))
}

/// One server.
pub(super) async fn show_server(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, CallError> {
    let server = front.gateway.server(&caller, &named(path)?)?;
    Ok(json(&ServerView::of(front.gateway.registry(), &server, Some(&caller))))
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
    let until = |server: &Backend| Instant::now() + server.timeout();
    let (server, ready) = front.gateway.ready(&caller, &named(path)?, until).await?;
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
