//! The legacy era (up to 2025-11-25): `initialize` opens a session, and everything after it names that session. A
//! request goes on when its client hangs up; only `notifications/cancelled` ends it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::about::Introduction;
use super::exchange::Exchange;
use super::forward::{self, Forward, carried_capabilities};
use super::listen::{StandingStream, WATCHED_MAX, not_watched};
use super::lists::{self, Kind};
use super::rpc::{self, RpcError};
use super::session::Session;
use super::sessions::{CAPABILITIES_LEN_MAX, Entered};
use super::{Asking, SESSION_ID, Scope, is_modern, sse, text_header};
use crate::backend::client::Client;
use crate::backend::{Backend, State};
use crate::gateway::{Ask, Call, CallError, Caller};
use crate::http::Front;
use crate::http::rest::asked_timeout;
use crate::ids::CallId;
use crate::jsonrpc::{Frame, INVALID_REQUEST};
use crate::mcp::params::{Params, ParamsError};
use crate::mcp::requests::CallMeta;
use crate::mcp::{Era, LogLevel, ProtocolVersion, method, names};
use crate::registry::{Owner, Server};

/// How long a call goes on after its client has hung up.
const LEFT_ALONE_MAX: Duration = Duration::from_secs(60);
/// What is answered where there is nothing to say.
const EMPTY: &str = "{}";

/// Answers a request.
pub(super) async fn answer(asking: &Asking<'_>, caller: Caller) -> Response<Body> {
    let outcome = match asking.method {
        method::INITIALIZE => initialize(asking, caller).await,
        _ => match enter(asking.front, &caller, asking.scope, asking.headers) {
            Ok(entered) => dispatch(asking, caller, &entered.session).await,
            Err(error) => Err(error),
        },
    };
    outcome.unwrap_or_else(|error| error.respond(Era::Legacy, Some(asking.id)))
}

/// The session that a request names.
fn enter<'f>(
    front: &'f Front,
    caller: &Caller,
    scope: &Scope,
    headers: &HeaderMap,
) -> Result<Entered<'f>, RpcError> {
    let Some(token) = text_header(headers, SESSION_ID) else {
        let message = "`Mcp-Session-Id` is missing: send `initialize` first, and the id it gives with every request";
        return Err(RpcError::new(INVALID_REQUEST, message).with_status(StatusCode::BAD_REQUEST));
    };
    front.sessions.enter(&caller.tenant, scope, token).ok_or_else(gone)
}

fn gone() -> RpcError {
    let message = "there is no such session, or it has ended: send `initialize` again";
    RpcError::new(INVALID_REQUEST, message).with_status(StatusCode::NOT_FOUND)
}

async fn initialize(asking: &Asking<'_>, caller: Caller) -> Result<Response<Body>, RpcError> {
    let params = &asking.params;
    let asked = ProtocolVersion::parse(&params.text("protocolVersion")?);
    let version = asked.filter(|version| version.era() == Era::Legacy);
    let version = version.unwrap_or(ProtocolVersion::LATEST_LEGACY);
    let capabilities = params.get("capabilities").ok_or(ParamsError::Missing("capabilities"))?;
    if !capabilities.get().starts_with('{') || capabilities.get().len() > CAPABILITIES_LEN_MAX {
        return Err(RpcError::invalid_params(format!(
            "`params.capabilities` must be an object of at most {CAPABILITIES_LEN_MAX} bytes"
        )));
    }
    let front = asking.front;
    let capabilities = RawValue::from_string(carried_capabilities(capabilities.get()))
        .expect("what was JSON is JSON");
    let sessions = &front.sessions;
    let (entered, token) = sessions.create(&caller.tenant, asking.scope, version, &capabilities);
    // Whether it fails or the client hangs up: a session that nobody knows of must not have a process.
    let opening = Opening { front, session: Some(&entered.session) };
    let caller = within(caller, &entered.session);
    let introduction = match asking.scope {
        Scope::All => Introduction::of_all(front),
        Scope::One(server) => introduce(front, &caller, server).await?,
    };
    opening.done();
    let result = introduction.initialize_result(version).to_string();
    let mut response = rpc::respond(StatusCode::OK, rpc::result(asking.id, &result));
    let token = HeaderValue::from_str(&token).expect("made of letters, digits, `-` and `_`");
    response.headers_mut().insert(SESSION_ID, token);
    Ok(response)
}

/// A session whose client does not know of it yet; ended if it never gets to.
struct Opening<'a> {
    front: &'a Front,
    session: Option<&'a Arc<Session>>,
}

impl Opening<'_> {
    fn done(mut self) {
        self.session = None;
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session {
            end_session(self.front, session);
        }
    }
}

async fn introduce(
    front: &Front,
    caller: &Caller,
    server: &str,
) -> Result<Introduction, CallError> {
    let backend = front.gateway.server(caller, server)?;
    let ready = backend.ready(Instant::now() + backend.timeout()).await?;
    Ok(Introduction::of_one(&ready.about))
}

/// The caller, in its session. What belongs to the process that opened a session is not here if that was another.
fn within(caller: Caller, session: &Arc<Session>) -> Caller {
    let tenant = caller.tenant.clone();
    let owner = Owner { tenant, session: session.id.clone(), client: session.clone() };
    Caller { session: session.is_ours.then_some(owner), ..caller }
}

async fn dispatch(
    asking: &Asking<'_>,
    caller: Caller,
    session: &Arc<Session>,
) -> Result<Response<Body>, RpcError> {
    let caller = within(caller, session);
    if let Some(method) = forward::METHODS.into_iter().find(|method| *method == asking.method) {
        return forward(asking, caller, session, method).await;
    }
    let result = match asking.method {
        method::PING => EMPTY.to_owned(),
        method::SET_LOG_LEVEL => set_log_level(asking, &caller, session).await?,
        method::RESOURCES_SUBSCRIBE => subscribe(asking, &caller, session).await?,
        method::RESOURCES_UNSUBSCRIBE => unsubscribe(asking, &caller, session)?,
        other => match Kind::of(other) {
            Some(kind) => {
                has_process(asking.front, session, asking.scope.server().unwrap_or_default())?;
                lists::list(asking, &caller, kind).await?
            }
            None => return Err(RpcError::method_not_found(other)),
        },
    };
    Ok(rpc::respond(StatusCode::OK, rpc::result(asking.id, &result)))
}

async fn forward(
    asking: &Asking<'_>,
    caller: Caller,
    session: &Arc<Session>,
    method: &'static str,
) -> Result<Response<Body>, RpcError> {
    let Forward { call, reshape, events } =
        Forward::read(asking, &caller, method, session.log_level())?;
    has_process(asking.front, session, &call.server)?;
    let id = call.id;
    let events = events.expect("legacy calls are listened to");
    let cancelled = CancellationToken::new();
    let in_session = session.begin(asking.id, call.listener.clone(), cancelled.clone());
    let front = asking.front.clone();
    let (mut done, outcome) = oneshot::channel();
    // In a task of its own, so that it does not end with its connection. But it does not go on for ever when nobody
    // can get its answer any more.
    tokio::spawn(async move {
        let left = async {
            done.closed().await;
            sleep(LEFT_ALONE_MAX).await;
        };
        let outcome = tokio::select! {
            outcome = front.gateway.call(&caller, call) => Some(outcome),
            () = cancelled.cancelled() => None,
            () = left => None,
        };
        drop(in_session);
        let _ = done.send(outcome);
    });
    let outcome = async { outcome.await.unwrap_or(None) };
    match Exchange::new(outcome, events, reshape).respond(id).await {
        Some(response) => Ok(response),
        None if session.has_ended() => Err(gone()),
        // Cancelled: nobody waits for an answer.
        None => Ok(sse::ended()),
    }
}

/// A process of the session's own is where it was started: in another replica, or an earlier run of this one, if the
/// session was opened there. The client has to begin again.
fn has_process(front: &Front, session: &Session, server: &str) -> Result<(), RpcError> {
    match front.gateway.registry().get(server) {
        Some(Server::PerSession(_)) if !session.is_ours => Err(gone()),
        _ => Ok(()),
    }
}

/// Kept here: servers that are shared have one level for everybody. Those that are not are told.
async fn set_log_level(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let level = asking.params.text("level")?;
    let Some(level) = LogLevel::parse(&level) else {
        let expected = "a log level, such as \"info\"";
        return Err(ParamsError::WrongType { at: "params.level".into(), expected }.into());
    };
    session.set_log_level(level, &asking.front.seats)?;
    for backend in own_backends(asking.front, session) {
        let call = Call {
            id: CallId::new(),
            server: backend.id().to_string(),
            ask: Ask::Method(method::SET_LOG_LEVEL),
            others: format!(",\"level\":\"{}\"", level.as_str()),
            meta: CallMeta::default(),
            size: 0,
            listener: None,
            arrived: asking.arrived,
            deadline: asking.arrived + backend.timeout(),
        };
        // One that has no levels goes on as it does.
        let _ = asking.front.gateway.call(caller, call).await;
    }
    Ok(EMPTY.to_owned())
}

async fn subscribe(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let (backend, uri) = resource(asking, caller, session)?;
    let deadline = asking.arrived + asked_timeout(asking.headers)?.unwrap_or(backend.timeout());
    backend.ready(deadline).await.map_err(CallError::from)?;
    let subscription = session.listen_to(backend.changes(), &asking.front.seats)?;
    if subscription.watched_len() >= WATCHED_MAX {
        return Err(RpcError::invalid_params(format!(
            "a session can watch at most {WATCHED_MAX} resources of a server"
        )));
    }
    match subscription.watch(&uri, deadline).await {
        Ok(()) => Ok(EMPTY.to_owned()),
        Err(error) => Err(not_watched(&error)),
    }
}

fn unsubscribe(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<String, RpcError> {
    let (backend, uri) = resource(asking, caller, session)?;
    session.listen_to(backend.changes(), &asking.front.seats)?.unwatch(&uri);
    Ok(EMPTY.to_owned())
}

/// The resource that a request is about, and the server that has it.
fn resource(
    asking: &Asking<'_>,
    caller: &Caller,
    session: &Arc<Session>,
) -> Result<(Arc<Backend>, String), RpcError> {
    if !session.is_ours {
        return Err(gone());
    }
    let uri = asking.params.text("uri")?;
    let (server, uri) = match asking.scope {
        Scope::One(server) => (server.as_str(), &*uri),
        Scope::All => names::split_resource_uri(&uri).ok_or_else(|| {
            RpcError::invalid_params("`params.uri` must be one that `resources/list` gives")
        })?,
    };
    Ok((asking.front.gateway.server(caller, server)?, uri.to_owned()))
}

/// A notification of a client's. Never answered, but for a session that is not there.
pub(super) fn notified(
    front: &Front,
    caller: &Caller,
    scope: &Scope,
    headers: &HeaderMap,
    method: &str,
    params: Option<&RawValue>,
) -> Response<Body> {
    let entered = match enter(front, caller, scope, headers) {
        Ok(entered) => entered,
        Err(error) => return error.respond(Era::Legacy, None),
    };
    let session = &entered.session;
    match method {
        method::CANCELLED => {
            if let Ok(params) = Params::parse(params)
                && let Some(id) = params.get("requestId")
            {
                session.cancel(id);
            }
        }
        method::ROOTS_CHANGED => {
            for backend in own_backends(front, session) {
                if let State::Ready(ready) = backend.state() {
                    ready.connection.notify(Frame::notification(method::ROOTS_CHANGED, EMPTY));
                }
            }
        }
        _ => {}
    }
    rpc::accepted()
}

/// A client's answer to a server's question.
pub(super) fn answered(
    front: &Front,
    caller: &Caller,
    scope: &Scope,
    headers: &HeaderMap,
    id: &RawValue,
    outcome: Result<&RawValue, &RawValue>,
) -> Response<Body> {
    match enter(front, caller, scope, headers) {
        Ok(entered) => {
            entered.session.answer(id, outcome);
            rpc::accepted()
        }
        Err(error) => error.respond(Era::Legacy, None),
    }
}

/// The processes that belong to a session.
fn own_backends(front: &Front, session: &Session) -> Vec<Arc<Backend>> {
    front.gateway.registry().of_session(&session.id)
}

/// `GET`: opens the stream for what is nobody's answer.
pub(super) fn stand(
    front: &Front,
    caller: &Caller,
    scope: &Scope,
    headers: &HeaderMap,
) -> Response<Body> {
    if is_modern(headers) || !headers.contains_key(SESSION_ID) {
        return not_allowed();
    }
    let opened = enter(front, caller, scope, headers).and_then(|entered| {
        let session = &entered.session;
        if !session.is_ours {
            return Err(gone());
        }
        for backend in StandingStream::servers(front, scope) {
            session.listen_to(backend.changes(), &front.seats)?;
        }
        let (standing, events) = session.stand(&front.seats)?;
        Ok(StandingStream::new(standing, events, scope.clone(), front.closing.clone()))
    });
    match opened {
        Ok(stream) => sse::respond(stream),
        Err(error) => error.respond_without_id(),
    }
}

/// `DELETE`: ends a session.
pub(super) fn end(
    front: &Front,
    caller: &Caller,
    scope: &Scope,
    headers: &HeaderMap,
) -> Response<Body> {
    if is_modern(headers) || !headers.contains_key(SESSION_ID) {
        return not_allowed();
    }
    match enter(front, caller, scope, headers) {
        Ok(entered) => {
            end_session(front, &entered.session);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(error) => error.respond(Era::Legacy, None),
    }
}

fn end_session(front: &Front, session: &Session) {
    front.sessions.end(session);
    front.gateway.registry().end_session(&session.id);
}

fn not_allowed() -> Response<Body> {
    let message = "only POST here, but for GET and DELETE of a session (`Mcp-Session-Id`)";
    let error = RpcError::new(INVALID_REQUEST, message);
    let error = error.with_status(StatusCode::METHOD_NOT_ALLOWED);
    let mut response = error.respond(Era::Legacy, None);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}
