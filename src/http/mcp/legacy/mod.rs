//! The legacy era (up to 2025-11-25): `initialize` opens a session, and everything after it names that session. A
//! request goes on when its client hangs up; only `notifications/cancelled` ends it.

pub(crate) mod initialize;
pub(crate) mod resources;
pub(crate) mod session_stream;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::initialize::initialize;
use self::resources::{subscribe, unsubscribe};
use self::session_stream::{StandingStream, listen_to_new, lists_of};
use super::forward::{self, Forward};
use super::lists::{self, Kind};
use super::response::Exchange;
use super::rpc::{self, RpcError};
use super::session::Session;
use super::session::forward_to_owner::{Arrived, PROMPT, UsedHere};
use super::session::sessions::Entered;
use super::stream::sse;
use super::stream::visible_servers::Following;
use super::{Asking, SESSION_ID, Scope, is_modern, text_header};
use crate::backend::changes::audience::Client;
use crate::backend::{Backend, State};
use crate::cluster::Peer;
use crate::common::ids::ServerId;
use crate::gateway::{Call, CallError, Caller, Executed};
use crate::http::Front;
use crate::protocol::jsonrpc::{Frame, INVALID_REQUEST};
use crate::protocol::mcp::params::{Params, ParamsError};
use crate::protocol::mcp::{Era, LogLevel, method};
use crate::registry::{Server, SessionOwner};

/// How long a call goes on after its client has hung up.
const LEFT_ALONE_MAX: Duration = Duration::from_secs(60);
/// What is answered where there is nothing to say.
pub(super) const EMPTY: &str = "{}";

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
    front.sessions.enter(&caller.tenant.id, scope, token).ok_or_else(gone)
}

pub(super) fn gone() -> RpcError {
    let message = "there is no such session, or it has ended: send `initialize` again";
    RpcError::new(INVALID_REQUEST, message).with_status(StatusCode::NOT_FOUND)
}

/// The caller, in its session. What belongs to the process that opened a session is not here if that was another.
pub(super) fn within(caller: Caller, session: &Arc<Session>) -> Caller {
    let tenant = caller.tenant.id.clone();
    let owner = SessionOwner { tenant, session: session.id.clone(), client: session.clone() };
    Caller { session: session.is_ours().then_some(owner), ..caller }
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
    if let Some(keeper) = asking.as_it_came().keeper(session) {
        if needs_keeper(asking, &caller) {
            let deadline = asking.deadline(&caller)?;
            return asking.as_it_came().ask(keeper, deadline, Some(asking.id)).await;
        }
        asking.as_it_came().note_use(keeper, session);
    }
    let result = match asking.method {
        method::PING => EMPTY.to_owned(),
        method::SET_LOG_LEVEL => set_log_level(asking, &caller, session).await?,
        method::RESOURCES_SUBSCRIBE => subscribe(asking, &caller, session).await?,
        method::RESOURCES_UNSUBSCRIBE => unsubscribe(asking, &caller, session)?,
        other => match Kind::of(other) {
            Some(kind) => {
                has_process(
                    asking.front,
                    &caller,
                    session,
                    asking.scope.server().unwrap_or_default(),
                )?;
                lists::list(asking, &caller, kind).await?
            }
            None => return Err(RpcError::method_not_found(other)),
        },
    };
    Ok(rpc::respond(StatusCode::OK, rpc::result(asking.id, &result)))
}

/// Whether only the replica that keeps the session can answer, of what does not go on to a server.
fn needs_keeper(asking: &Asking<'_>, caller: &Caller) -> bool {
    match asking.method {
        method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE => true,
        other => Kind::of(other).is_some() && asking.shows_own(caller),
    }
}

async fn forward(
    asking: &Asking<'_>,
    caller: Caller,
    session: &Arc<Session>,
    method: &'static str,
) -> Result<Response<Body>, RpcError> {
    let Forward { call, reshape, events } =
        Forward::read(asking, &caller, method, session.log_level())?;
    let mut used = None;
    if let Some(keeper) = asking.as_it_came().keeper(session) {
        if is_own(asking.front, &caller, &call.server) {
            let deadline = call.deadline_max.unwrap_or(call.deadline);
            return asking.as_it_came().ask(keeper, deadline, Some(asking.id)).await;
        }
        used = Some(asking.as_it_came().used_here(keeper, session));
    }
    has_process(asking.front, &caller, session, &call.server)?;
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
            biased;
            outcome = front.gateway.call(&caller, call) => Some(outcome),
            () = cancelled.cancelled() => None,
            () = left => None,
            never = UsedHere::tell_on(used) => match never {},
        };
        drop(in_session);
        let _ = done.send(outcome);
    });
    let outcome = async { outcome.await.unwrap_or(None) };
    match Exchange::new(outcome, events, reshape).respond(id).await {
        Some(response) => Ok(response),
        None if session.has_ended() => {
            let reason = "its session has ended".to_owned();
            Err(CallError::BackendExited { reason, executed: Executed::Unknown }.into())
        }
        // Cancelled: nobody waits for an answer.
        None => Ok(sse::ended()),
    }
}

/// A process of the session's own is where it was started: in another replica, or an earlier run of this one, if the
/// session was opened there. The client has to begin again.
fn has_process(
    front: &Front,
    caller: &Caller,
    session: &Session,
    server: &str,
) -> Result<(), RpcError> {
    if !session.is_ours() && is_own(front, caller, server) { Err(gone()) } else { Ok(()) }
}

/// Whether each session has its own process of a server.
fn is_own(front: &Front, caller: &Caller, server: &str) -> bool {
    matches!(front.gateway.server(caller, server).as_deref(), Ok(Server::PerSession(_)))
}

/// Kept here, and in all replicas, since calls run in any of them: servers that are shared have one level for everybody.
/// Those that are not are told.
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
    let remembered = session.set_log_level(level, &asking.front.seats);
    remembered.map_err(|error| refused(error, caller))?;
    asking.as_it_came().tell_level(session, level).await;
    for backend in own_backends(asking.front, session) {
        let others = format!(",\"level\":\"{}\"", level.as_str());
        let deadline = asking.arrived + backend.timeout();
        let server = backend.id().to_string();
        let call = Call::plain(server, method::SET_LOG_LEVEL, others, deadline);
        // One that has no levels goes on as it does.
        let _ = asking.front.gateway.call(caller, call).await;
    }
    Ok(EMPTY.to_owned())
}

/// A notification of a client's. Never answered, but for a session that is not there.
pub(super) async fn notified(
    arrived: &Arrived<'_>,
    caller: &Caller,
    method: &str,
    params: Option<&RawValue>,
) -> Response<Body> {
    let front = arrived.front;
    let entered = match enter(front, caller, arrived.scope, arrived.headers) {
        Ok(entered) => entered,
        Err(error) => return error.respond(Era::Legacy, None),
    };
    let session = &entered.session;
    match method {
        method::CANCELLED => {
            if let Ok(params) = Params::parse(params)
                && let Some(id) = params.get("requestId")
                && !session.cancel(id)
            {
                // It may be another replica that answers it.
                arrived.tell_soon(session).await;
            }
        }
        method::ROOTS_CHANGED => {
            if let Some(keeper) = arrived.keeper(session) {
                return at_once(arrived, keeper).await;
            }
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
pub(super) async fn answered(
    arrived: &Arrived<'_>,
    caller: &Caller,
    id: &RawValue,
    outcome: Result<&RawValue, &RawValue>,
) -> Response<Body> {
    match enter(arrived.front, caller, arrived.scope, arrived.headers) {
        Ok(entered) => match arrived.keeper(&entered.session) {
            Some(keeper) => at_once(arrived, keeper).await,
            None => {
                entered.session.answer(id, outcome);
                rpc::accepted()
            }
        },
        Err(error) => error.respond(Era::Legacy, None),
    }
}

/// What the replica that keeps the session does without waiting for anything.
async fn at_once(arrived: &Arrived<'_>, keeper: &Peer) -> Response<Body> {
    let answer = arrived.ask(keeper, Instant::now() + PROMPT, None).await;
    answer.unwrap_or_else(|error| error.respond_without_id())
}

/// The processes that belong to a session.
fn own_backends(front: &Front, session: &Session) -> Vec<Arc<Backend>> {
    front.gateway.registry().of_session(&session.id)
}

/// `GET`: opens the stream for what is nobody's answer.
pub(super) async fn stand(arrived: &Arrived<'_>, caller: &Caller) -> Response<Body> {
    let Arrived { front, scope, headers, .. } = arrived;
    if is_modern(headers) || !headers.contains_key(SESSION_ID) {
        return not_allowed();
    }
    let entered = match enter(front, caller, scope, headers) {
        Ok(entered) => entered,
        Err(error) => return error.respond_without_id(),
    };
    if let Some(keeper) = arrived.keeper(&entered.session) {
        return at_once(arrived, keeper).await;
    }
    match open_stream(front, caller, scope, &entered.session) {
        Ok(stream) => sse::respond(stream),
        Err(error) => error.respond_without_id(),
    }
}

fn open_stream(
    front: &Arc<Front>,
    caller: &Caller,
    scope: &Scope,
    session: &Arc<Session>,
) -> Result<StandingStream, RpcError> {
    if !session.is_ours() {
        return Err(gone());
    }
    let sees = |server: &ServerId| caller.tenant.sees(server.as_str());
    session.keep_to(sees);
    for backend in own_backends(front, session).into_iter().filter(|it| sees(it.id())) {
        let lists = lists_of(caller, backend.id());
        let heard = session.listen_to(backend.changes(), lists, &front.seats);
        heard.map_err(|error| refused(error, caller))?;
    }
    let mut following = Following::new(front, caller, scope);
    let heard = listen_to_new(session, &mut following);
    let stands = heard.and_then(|_| session.stand(&front.seats));
    let (standing, events) = stands.map_err(|error| refused(error, caller))?;
    Ok(StandingStream::new(standing, events, following))
}

/// With where the tenant stands: what it has too much of are no calls.
fn refused(error: CallError, caller: &Caller) -> RpcError {
    RpcError::from(error).with_standing(caller.tenant.limits.standing())
}

/// `DELETE`: ends a session.
pub(super) async fn end(arrived: &Arrived<'_>, caller: &Caller) -> Response<Body> {
    let Arrived { front, scope, headers, .. } = arrived;
    if is_modern(headers) || !headers.contains_key(SESSION_ID) {
        return not_allowed();
    }
    match enter(front, caller, scope, headers) {
        Ok(entered) => {
            end_session(front, &entered.session);
            arrived.tell_of_end(&entered.session).await;
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(error) => error.respond(Era::Legacy, None),
    }
}

pub(super) fn end_session(front: &Front, session: &Session) {
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
