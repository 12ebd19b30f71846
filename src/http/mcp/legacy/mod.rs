//! The legacy era (up to 2025-11-25): `initialize` opens a session, and every later message names
//! it. A call goes on when its client disconnects. The call ends early by
//! `notifications/cancelled`, with its session, or after a minute without the client.

pub(super) mod batch;
mod log_level;
mod notices;
mod opening;
mod outliving;
mod questions;
mod resources;
pub(crate) mod session_stream;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::log_level::set_log_level;
use self::opening::initialize;
use self::outliving::Outliving;
use self::resources::{subscribe, unsubscribe};
use self::session_stream::SessionStream;
use super::forward::ForwardedCall;
use super::lists::{self, ListKind};
use super::response::CallResponse;
use super::rpc::{self, RpcError};
use super::session::forward_to_owner::{KeepAlives, PROMPT};
use super::session::sessions::SessionInUse;
use super::session::{QuestionId, Session};
use super::{HttpRequest, McpRequest, SESSION_ID, is_modern, text_header, toolset};
use crate::backend::changes::recipients::SessionClient;
use crate::backend::{Backend, RunState};
use crate::config;
use crate::gateway::{CallError, Caller, Executed};
use crate::http::AppState;
use crate::http::headers::{asked_timeout, refuse_key};
use crate::http::sse;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::extensions::notified;
use crate::protocol::mcp::params::{Params, text_of};
use crate::protocol::mcp::{Era, method};
use crate::registry::{Server, SessionOwner};
use crate::tenants::limits::Admission;

/// The result of a request that has nothing to say.
const EMPTY: &str = "{}";

pub(super) async fn answer(
    request: McpRequest<'_>,
    admission: Option<Admission>,
) -> Response<Body> {
    let id = request.id;
    let answered = match request.method {
        method::INITIALIZE => initialize(request).await,
        _ => answer_in_session(request, admission).await,
    };
    answered.unwrap_or_else(|error| error.respond(Era::Legacy, Some(id)))
}

async fn answer_in_session(
    request: McpRequest<'_>,
    mut admission: Option<Admission>,
) -> Result<Response<Body>, RpcError> {
    let http = request.http;
    let in_use = session_of(http).await.map_err(|error| error.charged(admission.as_mut()))?;
    let session = &in_use.session;
    let caller = in_session(request.caller, session);
    let request = &McpRequest { caller: &caller, session: Some(session), ..request };
    if let Some(method) = request.forwarded()
        && let Some(mut admission) = admission.take()
    {
        if let Some(found) = toolset::search_tools(request, method).await {
            return found.map_err(|error| error.charged(Some(&mut admission)));
        }
        return forward(request, session, method, admission).await;
    }
    if let Some(owner) = http.remote_owner(session) {
        if needs_owner(request) {
            // The owner counts the request among the calls in flight.
            drop(admission);
            return http.forward_to(owner, latest_deadline(request)?, Some(request.id)).await;
        }
        http.keep_alives(owner, session).send_if_due();
    }
    let result = match (request.method, admission) {
        (method::PING, _) => EMPTY.to_owned(),
        (method::SET_LOG_LEVEL, _) => set_log_level(request, session).await?,
        (method::RESOURCES_SUBSCRIBE, Some(admission)) => {
            subscribe(request, session, admission).await?
        }
        (method::RESOURCES_UNSUBSCRIBE, _) => unsubscribe(request, session)?,
        (other, admission) => {
            let kind = ListKind::of(other).zip(admission);
            let (kind, admission) = kind.ok_or_else(|| RpcError::method_not_found(other))?;
            if let Some(server) = http.scope.server() {
                check_process(session, &*http.app.gateway.server(request.caller, server)?)?;
            }
            return lists::respond(request, kind, admission).await;
        }
    };
    Ok(rpc::respond_result(request.id, &result))
}

/// Returns the session that a message names.
async fn session_of(http: &HttpRequest) -> Result<SessionInUse<'_>, RpcError> {
    http.app.session(&http.caller.tenant, &http.scope, session_token(http)?).await
}

fn session_token(http: &HttpRequest) -> Result<&str, RpcError> {
    text_header(&http.headers, &SESSION_ID).ok_or_else(|| {
        let message = "`Mcp-Session-Id` is missing: send `initialize` first, and the id it gives \
                       with every request";
        RpcError::invalid_request(StatusCode::BAD_REQUEST, message)
    })
}

/// Makes the client open a new session.
pub(super) fn session_not_found() -> RpcError {
    let message = "there is no such session, or it has ended: send `initialize` again";
    RpcError::invalid_request(StatusCode::NOT_FOUND, message)
}

/// Returns the caller within its session. Only in the session's owner does it have processes of its
/// own.
fn in_session(caller: &Caller, session: &Arc<Session>) -> Caller {
    let tenant = caller.tenant.id.clone();
    let owner = SessionOwner { tenant, session: session.id.clone(), client: session.clone() };
    Caller { session: session.is_owned_here().then_some(owner), ..caller.clone() }
}

/// Returns whether only the owner of the session can answer a request that is not forwarded to a
/// server.
fn needs_owner(request: &McpRequest<'_>) -> bool {
    match request.method {
        method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE => true,
        other => ListKind::of(other).is_some() && shows_per_session(request),
    }
}

/// Returns whether the endpoint shows a server of which each session has its own process.
fn shows_per_session(request: &McpRequest<'_>) -> bool {
    let mut servers = request.http.app.gateway.servers(request.caller);
    let scope = &request.http.scope;
    servers.any(|server| is_per_session(&server) && scope.shows(server.id()))
}

/// Returns when the slowest server of the endpoint must have answered.
fn latest_deadline(request: &McpRequest<'_>) -> Result<Instant, CallError> {
    let http = request.http;
    refuse_key(&http.headers)?;
    let asked = asked_timeout(&http.headers)?;
    let longest = |server: &config::ServerConfig| match asked {
        Some(asked) => asked.min(server.max_deadline()),
        None => server.usual_call(),
    };
    let servers = http.app.gateway.servers(request.caller);
    let shown = servers.filter(|server| http.scope.shows(server.id()));
    Ok(http.arrived + shown.map(|server| longest(server.config())).max().unwrap_or(PROMPT))
}

async fn forward(
    request: &McpRequest<'_>,
    session: &Arc<Session>,
    method: &'static str,
    mut admission: Admission,
) -> Result<Response<Body>, RpcError> {
    let http = request.http;
    let forwarded = ForwardedCall::read(request, method, session.log_level())
        .map_err(|error| error.charged(Some(&mut admission)))?;
    let ForwardedCall { call, translation, notifications, .. } = forwarded;
    let mut keep_alives = None;
    if let Some(owner) = http.remote_owner(session) {
        if is_per_session(&call.server) {
            // The owner counts the call among those in flight.
            drop(admission);
            let deadline = call.deadline_max.unwrap_or(call.deadline);
            return http.forward_to(owner, deadline, Some(request.id)).await;
        }
        keep_alives = Some(http.keep_alives(owner, session));
    }
    check_process(session, &call.server)?;
    let (id, notifications) = (call.id, notifications.expect("legacy calls have a listener"));
    let cancelled = CancellationToken::new();
    let running = session.register(request.id, call.listener.clone(), cancelled.clone());
    let (app, caller) = (http.app.clone(), request.caller.clone());
    // Copied for a client alone that can be asked.
    let asked = call.meta.capabilities.is_some().then(|| session.clone());
    let outcome = Outliving::new(async move {
        let outcome = async {
            match &asked {
                None => app.gateway.call(&caller, admission, &call).await,
                Some(session) => {
                    Box::pin(questions::call(&app, session, &caller, admission, call)).await
                }
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = outcome => Some(outcome),
            () = cancelled.cancelled() => None,
            never = KeepAlives::run(keep_alives) => match never {},
        };
        drop(running);
        outcome
    });
    match CallResponse::new(outcome, notifications, translation).respond(id).await {
        Some(response) => Ok(response),
        None if session.has_ended() => {
            let reason = "its session has ended".to_owned();
            Err(CallError::BackendExited { reason, executed: Executed::Unknown }.into())
        }
        // A cancelled request gets no response.
        None => Ok(sse::respond_empty()),
    }
}

/// Rejects a request for a process of the session's own, unless the session was opened here. After
/// a restart of its owner the client must open a new session.
fn check_process(session: &Session, server: &Server) -> Result<(), RpcError> {
    let is_missing = !session.is_owned_here() && is_per_session(server);
    if is_missing { Err(session_not_found()) } else { Ok(()) }
}

/// Returns whether each session has its own process of a server.
fn is_per_session(server: &Server) -> bool {
    server.is_per_session()
}

/// Accepts a client's notification.
pub(super) async fn accept_notification(
    http: &HttpRequest,
    method: &str,
    params: Option<&RawValue>,
) -> Result<Response<Body>, RpcError> {
    let in_use = match method {
        // A session that is unknown here runs no request here, so the store need not be asked.
        method::CANCELLED if http.is_forwarded => {
            let token = session_token(http)?;
            http.app.sessions.acquire(&http.caller.tenant, &http.scope, token)?
        }
        _ => session_of(http).await?,
    };
    let session = &in_use.session;
    match method {
        method::CANCELLED => {
            if let Ok(params) = Params::parse(params)
                && let Some(id) = params.get("requestId")
                && !session.cancel(id)
            {
                let notified = http.notify_cancel(session, id).await;
                notified.map_err(|error| with_rate_status(error, &http.caller))?;
            }
        }
        method::ROOTS_CHANGED => {
            if let Some(owner) = http.remote_owner(session) {
                return http.forward_to(owner, Instant::now() + PROMPT, None).await;
            }
            for backend in own_backends(http, session) {
                if let RunState::Ready(ready) = backend.state() {
                    ready.connection.notify(Frame::notification(method::ROOTS_CHANGED, EMPTY));
                }
            }
        }
        other if notified(other).is_some() => {
            return notices::forward(http, session, other, params).await;
        }
        _ => {}
    }
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Accepts a client's response to a server's request.
pub(super) async fn accept_response(
    http: &HttpRequest,
    id: &RawValue,
    outcome: Result<&RawValue, &RawValue>,
) -> Result<Response<Body>, RpcError> {
    let session = &session_of(http).await?.session;
    let text = text_of(id);
    if let Some(question) = text.and_then(|id| QuestionId::open(&http.app.sealer, session, &id)) {
        let cluster = http.app.cluster.as_ref();
        match question.replica.and_then(|it| it.other(cluster)).filter(|_| !http.is_forwarded) {
            // If that replica has gone, so has the call.
            Some(peer) => _ = http.forward_to(&peer, Instant::now() + PROMPT, None).await,
            None => session.take_answer(question.number, outcome, http.held.clone()),
        }
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    if let Some(owner) = http.remote_owner(session) {
        return http.forward_to(owner, Instant::now() + PROMPT, None).await;
    }
    session.respond_to_server(id, outcome);
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Returns the processes that belong to a session.
fn own_backends(http: &HttpRequest, session: &Session) -> Vec<Arc<Backend>> {
    http.app.gateway.registry().of_session(&session.id)
}

/// Answers `GET`: opens the stream of a session.
pub(crate) async fn open_session_stream(http: HttpRequest) -> Result<Response<Body>, RpcError> {
    if !names_session(&http) {
        return Ok(not_allowed());
    }
    let session = &session_of(&http).await?.session;
    match http.remote_owner(session) {
        Some(owner) => http.forward_to(owner, Instant::now() + PROMPT, None).await,
        None => Ok(sse::respond(SessionStream::open(&http, session)?)),
    }
}

/// Answers `DELETE`: ends a session.
pub(crate) async fn delete_session(http: HttpRequest) -> Result<Response<Body>, RpcError> {
    if !names_session(&http) {
        return Ok(not_allowed());
    }
    let (tenant, token) = (&http.caller.tenant, session_token(&http)?);
    // The replica that forwards it has asked.
    let may_ask = !http.is_forwarded;
    let in_use = http.app.session_to_end(tenant, &http.scope, token, may_ask).await?;
    let session = &in_use.session;
    end_session(&http.app, session);
    http.notify_end(session).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn names_session(http: &HttpRequest) -> bool {
    !is_modern(&http.headers) && http.headers.contains_key(&SESSION_ID)
}

fn not_allowed() -> Response<Body> {
    let message = "only POST is allowed, except GET and DELETE of a session (`Mcp-Session-Id`)";
    let error = RpcError::invalid_request(StatusCode::METHOD_NOT_ALLOWED, message);
    ([(header::ALLOW, "POST")], error).into_response()
}

fn end_session(app: &AppState, session: &Session) {
    app.sessions.end(session);
    app.gateway.registry().end_session(&session.id);
}

/// Adds the tenant's rates to an error about what is no call.
fn with_rate_status(error: CallError, caller: &Caller) -> RpcError {
    RpcError::from(error).with_rate_status(caller.tenant.limits.rate_status())
}
