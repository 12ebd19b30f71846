//! What there is to call: `GET /v1/servers` and below.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Response, header};
use axum::response::IntoResponse;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::Front;
use super::auth::Authenticated;
use crate::backend::tools::Tool;
use crate::backend::{Backend, Ready, State as ServerState, pool};
use crate::gateway::{CallError, Caller};
use crate::registry::{Registry, Server};

/// One server as callers see it.
#[derive(Default, Serialize)]
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
    /// Of a pinned server, how many more are held back; for those who see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<usize>,
    /// Copies that are ready, and copies that there should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instances: Option<usize>,
    /// Every copy, for those who see everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copies: Vec<CopyView>,
    /// What takes its place as soon as it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    replacement: Option<StateView>,
}

/// One copy of a server, as the operator sees it.
#[derive(Serialize)]
struct CopyView {
    state: &'static str,
    since: Timestamp,
    starts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<FailureView>,
}

/// What went wrong last.
#[derive(Serialize)]
struct FailureView {
    at: Timestamp,
    detail: String,
    stderr: Vec<String>,
}

impl CopyView {
    fn of(copy: &pool::View) -> Self {
        let last_failure = copy.trouble.as_ref().map(|trouble| FailureView {
            at: trouble.at,
            detail: trouble.detail.to_string(),
            stderr: trouble.stderr.to_vec(),
        });
        Self {
            state: copy.state.as_str(),
            since: copy.since,
            starts: copy.starts,
            in_flight: copy.in_flight.map(|(now, _)| now),
            limit: copy.in_flight.map(|(_, limit)| limit),
            last_failure,
        }
    }
}

/// Where a server stands.
#[derive(Default, Serialize)]
struct StateView {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
}

impl ServerView {
    /// As a caller sees it, or as those do who see everything.
    pub(super) fn of(registry: &Registry, server: &Server, caller: Option<&Caller>) -> Self {
        let id = server.id();
        let running = match caller {
            Some(caller) => server.running(&caller.tenant.id),
            None => server.shared().cloned(),
        };
        let Some(backend) = running else {
            let is_of_tenants = matches!(server, Server::PerTenant(_));
            let state = if is_of_tenants { "per_tenant" } else { "per_session" };
            let state = StateView { state, ..StateView::default() };
            return Self { id: id.to_string(), state, ..Self::default() };
        };
        let (state, copies) = (backend.state(), backend.copies());
        let is_ready = |copy: &&pool::View| matches!(copy.state, ServerState::Ready(_));
        let alike = copies.iter().filter(|copy| copy.state.as_str() == state.as_str());
        let replacement = registry.replacement(server, caller.map(|caller| &caller.tenant.id));
        let view = Self {
            id: id.to_string(),
            state: StateView { since: alike.map(|copy| copy.since).min(), ..StateView::of(&state) },
            ready: Some(copies.iter().filter(is_ready).count()),
            instances: Some(copies.len()),
            copies: match caller {
                Some(_) => vec![],
                None => copies.iter().map(CopyView::of).collect(),
            },
            replacement: replacement.as_ref().map(StateView::of),
            ..Self::default()
        };
        let ServerState::Ready(ready) = state else { return view };
        let version = ready.dialect.version();
        Self {
            protocol_version: Some(version.as_str()),
            era: Some(version.era().to_string()),
            tools: Some(match caller {
                Some(caller) => granted(caller, id.as_str(), &ready).count(),
                None => ready.tools.iter().count(),
            }),
            held: (caller.is_none() && server.config().pin).then(|| ready.tools.held_len()),
            ..view
        }
    }
}

impl StateView {
    fn of(state: &ServerState) -> Self {
        let reason = match state {
            ServerState::Backoff { reason, .. } | ServerState::Quarantined { reason, .. } => {
                Some(reason.to_string())
            }
            _ => None,
        };
        Self { state: state.as_str(), reason, since: None }
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
