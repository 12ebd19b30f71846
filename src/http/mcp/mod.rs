//! MCP over Streamable HTTP: `/mcp` shows all servers together, `/mcp/{server}` one of them as it is. Both eras are
//! spoken on the same address; each request says which.
//!
//! - [`modern`] and [`legacy`]: the rules of each era ([`initialize`] and [`resources`] are the legacy one's)
//! - [`about`], [`lists`]: answered here; [`forward`]: goes on to a server, on the same path as a REST call
//! - [`exchange`]: waits for the answer and what comes before it, [`reshape`] writes both in the client's terms,
//!   [`rpc`] and [`sse`] send them
//! - [`listen`], [`stand`]: streams of changes, of the servers that there are ([`following`])
//! - [`sessions`], [`session`]: what legacy clients need; [`seats`] bounds what lasts; [`relay`] has another replica answer
//!   what that one keeps, and [`relayed`] passes its answer back, as far as it is [`heard`]
//! - [`request_state`]: what modern servers want back

mod forward;
mod introduction;
mod legacy;
mod lists;
mod modern;
mod response;
mod rpc;
mod session;
mod stream;
mod translate;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use self::rpc::RpcError;
use self::session::forward_to_owner::Arrived;
pub(super) use self::session::sessions::{SWEEP_EVERY, Sessions};
pub(super) use self::stream::stream_quota::Seats;
use super::auth::Authenticated;
use super::replicas::Relayed;
use super::{Front, body};
use crate::gateway::{CallError, Caller};
use crate::protocol::jsonrpc::raw::{DEPTH_MAX, deeper_than};
use crate::protocol::jsonrpc::{INVALID_REQUEST, Message, decode};
use crate::protocol::mcp::params::{Params, text_of};
use crate::protocol::mcp::{Era, ProtocolVersion, meta, method};

const PROTOCOL_VERSION: &str = "mcp-protocol-version";
pub(super) const SESSION_ID: &str = "mcp-session-id";
const JSON: &str = "application/json";
/// The longest id that is echoed. A longer one is no id but an attack on our memory.
const ID_LEN_MAX: usize = 1024;
/// What the names of headers begin with that repeat a tool's arguments.
const PARAM_PREFIX: &str = "mcp-param-";
/// A message around arguments that are as deep as arguments may be.
const MESSAGE_DEPTH_MAX: usize = DEPTH_MAX + 2;

/// Which servers an endpoint shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    One(String),
}

/// A request and all there is to know about it.
struct Asking<'a> {
    front: &'a Arc<Front>,
    scope: &'a Scope,
    era: Era,
    headers: &'a HeaderMap,
    body: &'a Bytes,
    id: &'a RawValue,
    method: &'a str,
    params: Params<'a>,
    arrived: Instant,
    /// Whether another replica has sent it on.
    is_relayed: bool,
}

/// Who asks, and what it is shown.
pub(super) struct Visit {
    caller: Caller,
    scope: Scope,
    /// Whether another replica has sent it on.
    is_relayed: bool,
}

/// The path says what is shown: one server if it names one that is there for the caller.
impl FromRequestParts<Arc<Front>> for Visit {
    type Rejection = CallError;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, CallError> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, front).await?;
        let path = <Option<Path<String>>>::from_request_parts(parts, front).await;
        let scope = match path.map_err(|error| CallError::InvalidRequest(error.body_text()))? {
            None => Scope::All,
            Some(Path(server)) => {
                front.gateway.server(&caller, &server)?;
                Scope::One(server)
            }
        };
        let is_relayed = parts.extensions.get::<Relayed>().is_some();
        Ok(Self { caller, scope, is_relayed })
    }
}

/// `POST`: a message of a client's.
pub(super) async fn post(
    State(front): State<Arc<Front>>,
    visit: Visit,
    request: Request<Body>,
) -> Response<Body> {
    take(&front, visit, request).await
}

/// `GET`: a stream of a session's.
pub(super) async fn get(
    State(front): State<Arc<Front>>,
    Visit { caller, scope, is_relayed }: Visit,
    headers: HeaderMap,
) -> Response<Body> {
    let (front, scope, method) = (&front, &scope, Method::GET);
    let (headers, body) = (&headers, &Bytes::new());
    let arrived = Arrived { front, scope, method, headers, body, is_relayed };
    legacy::stand(&arrived, &caller).await
}

/// `DELETE`: the end of a session.
pub(super) async fn delete(
    State(front): State<Arc<Front>>,
    Visit { caller, scope, is_relayed }: Visit,
    headers: HeaderMap,
) -> Response<Body> {
    let (front, scope, method) = (&front, &scope, Method::DELETE);
    let (headers, body) = (&headers, &Bytes::new());
    let arrived = Arrived { front, scope, method, headers, body, is_relayed };
    legacy::end(&arrived, &caller).await
}

async fn take(front: &Arc<Front>, visit: Visit, request: Request<Body>) -> Response<Body> {
    let arrived = Instant::now();
    let Visit { caller, scope, is_relayed } = visit;
    let scope = &scope;
    let (parts, request_body) = request.into_parts();
    let headers = &parts.headers;
    if let Err(error) = check_types(headers) {
        return error.respond(Era::Modern, None);
    }
    let deadline = arrived + body::TIMEOUT;
    let body = match body::read_of(&caller, headers, request_body, front.max_body, deadline).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    if deeper_than(&body, MESSAGE_DEPTH_MAX) {
        let error = RpcError::new(INVALID_REQUEST, "the message is nested too deep");
        return error.with_status(StatusCode::BAD_REQUEST).respond(Era::Modern, None);
    }
    let posted = Arrived { front, scope, method: Method::POST, headers, body: &body, is_relayed };
    match decode(&body) {
        Ok(Message::Request { id, .. }) if id.get().len() > ID_LEN_MAX => {
            let error = RpcError::new(INVALID_REQUEST, "the `id` is too long");
            error.with_status(StatusCode::BAD_REQUEST).respond(Era::Modern, None)
        }
        Ok(Message::Request { id, method, params }) => {
            let params = match Params::parse(params) {
                Ok(params) => params,
                Err(error) => {
                    let is_legacy = (headers.contains_key(SESSION_ID)
                        || method == method::INITIALIZE)
                        && !is_modern(headers);
                    let era = if is_legacy { Era::Legacy } else { Era::Modern };
                    return RpcError::from(error).respond(era, Some(id));
                }
            };
            let era = era_of(headers, &method, &params);
            let (method, body) = (&*method, &body);
            let asking = Asking {
                front,
                scope,
                era,
                headers,
                body,
                id,
                method,
                params,
                arrived,
                is_relayed,
            };
            match era {
                Era::Modern => modern::answer(&asking, &caller).await,
                Era::Legacy => legacy::answer(&asking, caller).await,
            }
        }
        // The modern era has no notifications to a server over HTTP, and no answers.
        Ok(_) if is_modern(headers) => match text_header(headers, PROTOCOL_VERSION) {
            Some(version) if ProtocolVersion::parse(version).is_some() => rpc::accepted(),
            _ => {
                let error = RpcError::new(INVALID_REQUEST, "`MCP-Protocol-Version` is unknown");
                error.with_status(StatusCode::BAD_REQUEST).respond(Era::Modern, None)
            }
        },
        Ok(Message::Notification { method, params }) => {
            legacy::notified(&posted, &caller, &method, params).await
        }
        Ok(Message::Response { id, outcome }) => {
            legacy::answered(&posted, &caller, id, outcome).await
        }
        Err(malformed) => RpcError::from(&malformed).respond(Era::Modern, malformed.id()),
    }
}

/// `_meta` or the header says a version of the modern era, or the method exists only there.
fn era_of(headers: &HeaderMap, method: &str, params: &Params<'_>) -> Era {
    let is_modern = params.meta(meta::PROTOCOL_VERSION).is_some()
        || is_modern(headers)
        || method == method::DISCOVER;
    if is_modern { Era::Modern } else { Era::Legacy }
}

/// Whether the header names a version, and not one of the legacy era.
fn is_modern(headers: &HeaderMap) -> bool {
    let Some(version) = headers.get(PROTOCOL_VERSION) else { return false };
    let version = version.to_str().ok().and_then(ProtocolVersion::parse);
    version.is_none_or(|version| version.era() == Era::Modern)
}

/// A client sends JSON and takes JSON as well as streams.
fn check_types(headers: &HeaderMap) -> Result<(), RpcError> {
    let value = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is = |value: &str, kind: &str| media_type(value).eq_ignore_ascii_case(kind);
    if !value(header::CONTENT_TYPE).is_some_and(|value| is(value, JSON)) {
        let error = RpcError::new(INVALID_REQUEST, "`Content-Type` must be `application/json`");
        return Err(error.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let takes = |kind, range| {
        let accept = headers.get_all(header::ACCEPT).iter().filter_map(|it| it.to_str().ok());
        let mut accept = accept.flat_map(|value| value.split(','));
        accept.any(|value| [kind, range, "*/*"].iter().any(|kind| is(value, kind)))
    };
    if takes(JSON, "application/*") && takes("text/event-stream", "text/*") {
        return Ok(());
    }
    let message = "`Accept` must list both `application/json` and `text/event-stream`";
    Err(RpcError::new(INVALID_REQUEST, message).with_status(StatusCode::NOT_ACCEPTABLE))
}

/// A media type without its parameters.
fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

fn text_header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// The text of a member of `_meta`.
fn meta_text<'a>(params: &Params<'a>, name: &str) -> Option<std::borrow::Cow<'a, str>> {
    params.meta(name).and_then(text_of)
}
