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
use crate::backend::{Ready, State as ServerState, pool};
use crate::gateway::{CallError, Caller};
use crate::registry::Server;

/// One server as callers see it.
#[derive(Default, Serialize)]
pub(super) struct ServerView<'a> {
    id: &'a str,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    era: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<usize>,
    /// Copies that are ready, and copies that there should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instances: Option<usize>,
    /// Every copy, for those who see everything.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    copies: Vec<CopyView>,
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

impl<'a> ServerView<'a> {
    /// As a caller sees it, or as those do who see everything.
    pub(super) fn of(server: &'a Server, caller: Option<&Caller>) -> Self {
        let id = server.id().as_str();
        let backend = match server {
            Server::Shared(backend) => backend,
            Server::PerSession(_) => return Self { id, state: "per_session", ..Self::default() },
        };
        let (state, copies) = (backend.state(), backend.copies());
        let is_ready = |copy: &&pool::View| matches!(copy.state, ServerState::Ready(_));
        let same = copies.iter().filter(|copy| copy.state.as_str() == state.as_str());
        let view = Self {
            id,
            state: state.as_str(),
            since: same.map(|copy| copy.since).min(),
            ready: Some(copies.iter().filter(is_ready).count()),
            instances: Some(copies.len()),
            copies: match caller {
                Some(_) => vec![],
                None => copies.iter().map(CopyView::of).collect(),
            },
            ..Self::default()
        };
        match state {
            ServerState::Backoff { reason, .. } | ServerState::Quarantined { reason, .. } => {
                Self { reason: Some(reason.to_string()), ..view }
            }
            ServerState::Ready(ready) => {
                let version = ready.dialect.version();
                Self {
                    protocol_version: Some(version.as_str()),
                    era: Some(version.era().to_string()),
                    tools: Some(match caller {
                        Some(caller) => granted(caller, id, &ready).count(),
                        None => ready.tools.len(),
                    }),
                    ..view
                }
            }
            _ => view,
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
