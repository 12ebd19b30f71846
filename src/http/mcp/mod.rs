//! MCP over Streamable HTTP. `/mcp` shows all servers together, `/mcp/{server}` shows one of them
//! unchanged, `/mcp/t/{toolset}` a toolset. Both eras of the protocol are served at the same
//! address.
//!
//! ```text
//! HTTP request ─▶ HttpRequest: authenticated; which servers it sees      this file
//!      │
//!      │  (2024-11-05: `GET /sse`, and POST of each message              sse_transport)
//!      ▼  POST: decode the envelope, charge the tenant, find the era     this file
//!      │  (a batch of 2025-03-26: each of its messages                   legacy/batch)
//!      ├─ modern (2026-07-28): each request stands alone                 modern/
//!      └─ legacy (up to 2025-11-25): requests name a session             legacy/, session/
//!      │     what only the session's owner has is forwarded to           session/forward_to_owner
//!      │     that replica, and its response relayed                      stream/relay_response
//!      ▼
//!      ├─ initialize, server/discover: answered here                     endpoint_info
//!      ├─ lists of tools, prompts, resources, skills: answered here      lists
//!      ├─ pings, log levels, subscriptions: answered here                legacy/
//!      ├─ streams of changes                      modern/listen, legacy/session_stream
//!      ├─ any other method is not found
//!      └─ tools/call, prompts/get, resources/read, completion/complete   forward, target
//!         and methods of extensions become calls of the gateway          tasks
//!               │
//!               ▼  result and notifications, in the client's terms       translate
//!                  JSON, or a stream of events if a notification         response, rpc, stream/sse
//!                  or 25 s of silence come before the result
//! ```

mod capabilities;
mod endpoint_info;
mod forward;
mod legacy;
mod lists;
mod modern;
mod pinned_skills;
mod response;
mod rpc;
mod scope;
mod session;
pub(super) mod sse_transport;
mod stream;
mod target;
mod tasks;
mod toolset;
mod traced;
mod translate;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;

use self::forward::forwarded_method;
pub(super) use self::legacy::{delete_session as delete, open_session_stream as get};
use self::lists::ListKind;
pub(super) use self::modern::questions::ParkedCalls;
use self::rpc::RpcError;
use self::scope::{EndpointPath, Scope};
pub(super) use self::session::QUERIES_MAX as SESSION_QUERIES_MAX;
use self::session::Session;
pub(super) use self::session::sessions::{SWEEP_EVERY, Sessions};
pub(super) use self::sse_transport::SseClients;
pub(super) use self::stream::stream_quota::StreamQuota;
use super::auth::Authenticated;
use super::error::HttpError;
use super::headers::{PROTOCOL_VERSION, SESSION_ID, accepted_types, media_type, trace_of};
use super::replicas::Forwarded;
use super::rest::asked::tags;
use super::{AppState, body};
use crate::common::ids::CallId;
use crate::events::TracedRequest;
use crate::gateway::{CallError, Caller, Held, RefusedCall, check_room};
use crate::protocol::jsonrpc::ID_LEN_MAX;
use crate::protocol::jsonrpc::framing::{DEPTH_MAX, ShapeExcess, check_shape};
use crate::protocol::jsonrpc::members::MEMBERS_MAX;
use crate::protocol::jsonrpc::{Message, decode};
use crate::protocol::mcp::params::Params;
use crate::protocol::mcp::{Era, ProtocolVersion, meta, method};
use crate::tenants::limits::{Admission, Cost};
use crate::toolsets::Toolset;

/// Begins the names of headers that repeat a tool's arguments.
const PARAM_PREFIX: &str = "mcp-param-";
/// The most questions of servers that wait for their clients, and of one tenant's clients.
pub(super) const QUESTIONS_MAX: usize = 16 * 1024;
pub(super) const QUESTIONS_OF_TENANT_MAX: usize = 256;
const JSON: &str = "application/json";
/// Leaves room for a message around arguments of the greatest depth.
const MESSAGE_DEPTH_MAX: usize = DEPTH_MAX + 2;

/// An authenticated HTTP request, with all that another replica needs to answer it.
pub(super) struct HttpRequest {
    app: Arc<AppState>,
    caller: Caller,
    scope: Scope,
    method: Method,
    headers: HeaderMap,
    /// Empty except for `POST`.
    body: Bytes,
    /// Counts the bytes of the body.
    held: Option<Held>,
    arrived: Instant,
    /// Another replica forwarded the request, so it must be answered here.
    is_forwarded: bool,
}

/// A client's JSON-RPC request, and the HTTP request that carried it.
struct McpRequest<'a> {
    http: &'a HttpRequest,
    /// The caller of the HTTP request; in the legacy era, within its session.
    caller: &'a Caller,
    session: Option<&'a Session>,
    era: Era,
    id: &'a RawValue,
    method: &'a str,
    params: Params<'a>,
}

impl McpRequest<'_> {
    /// Returns the name under which it is counted, if it is forwarded to a server.
    fn forwarded(&self) -> Option<&'static str> {
        forwarded_method(self.method, &self.http.scope)
    }

    /// Returns the toolset of an endpoint that shows one.
    fn toolset(&self) -> &Toolset {
        self.caller.toolset.as_deref().expect("the endpoint of a toolset has one")
    }
}

/// Rejects a path that names a server or a toolset which does not exist for the caller.
impl FromRequestParts<Arc<AppState>> for HttpRequest {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, HttpError> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, app).await?;
        let Path(path) = <Path<EndpointPath>>::from_request_parts(parts, app).await?;
        let (caller, scope) = match path {
            EndpointPath { toolset: Some(toolset), .. } => {
                (app.gateway.within(caller, &toolset)?, Scope::Toolset(toolset))
            }
            EndpointPath { server: Some(server), .. } => {
                app.gateway.server(&caller, &server)?;
                (caller, Scope::One(server))
            }
            EndpointPath { .. } => (caller, Scope::All),
        };
        Ok(Self {
            app: app.clone(),
            caller,
            scope,
            method: parts.method.clone(),
            headers: std::mem::take(&mut parts.headers),
            body: Bytes::new(),
            held: None,
            arrived: Instant::now(),
            is_forwarded: parts.extensions.get::<Forwarded>().is_some(),
        })
    }
}

/// Answers one JSON-RPC message of a client.
pub(super) async fn post(mut http: HttpRequest, body: Body) -> Response<Body> {
    if let Err(error) = check_media_types(&http.headers) {
        return error.respond(Era::Modern, None);
    }
    let (limit, deadline) = (http.app.max_body, http.arrived + body::TIMEOUT);
    let read = body::read_for(&http.caller, &http.headers, body, limit, deadline).await;
    match read {
        Ok((body, held)) => (http.body, http.held) = (body, Some(held)),
        Err(error) => return error.into_response(),
    }
    if legacy::batch::is_batch(&http.body) && !is_modern(&http.headers) {
        return legacy::batch::answer(http).await;
    }
    answer_message(http).await
}

async fn answer_message(http: HttpRequest) -> Response<Body> {
    let long_work = &http.caller.tenant.long_work;
    let (offload, len) = (http.app.gateway.offload(), http.body.len());
    let message = match offload.in_place(long_work, len, || read_message(&http.body)).await {
        Ok(message) => message,
        Err(refusal) => return *refusal,
    };
    match message {
        Message::Request { id, method, params } => answer(&http, id, &method, params).await,
        // Over HTTP, modern clients send servers neither notifications nor responses.
        _ if is_modern(&http.headers) => {
            match text_header(&http.headers, &PROTOCOL_VERSION).and_then(ProtocolVersion::parse) {
                Some(_) => StatusCode::ACCEPTED.into_response(),
                None => bad_request("`MCP-Protocol-Version` is unknown"),
            }
        }
        Message::Notification { method, params } => {
            legacy::accept_notification(&http, &method, params).await.into_response()
        }
        Message::Response { id, outcome } => {
            legacy::accept_response(&http, id, outcome).await.into_response()
        }
    }
}

/// Reads the envelope alone: the tenant is charged before its parameters are taken apart.
fn read_message(body: &[u8]) -> Result<Message<'_>, Box<Response<Body>>> {
    match check_shape(body, MESSAGE_DEPTH_MAX, MEMBERS_MAX) {
        Ok(()) => {}
        Err(ShapeExcess::Depth) => return Err(bad_request("the message is nested too deep").into()),
        Err(ShapeExcess::Members) => {
            let message = format!("the message has more than {MEMBERS_MAX} members");
            return Err(bad_request(&message).into());
        }
    }
    match decode(body) {
        Ok(Message::Request { id, .. }) if id.get().len() > ID_LEN_MAX => {
            Err(bad_request("the `id` is too long").into())
        }
        Ok(message) => Ok(message),
        Err(malformed) => {
            Err(RpcError::from(&malformed).respond(Era::Modern, malformed.id()).into())
        }
    }
}

async fn answer(
    http: &HttpRequest,
    id: &RawValue,
    method: &str,
    params: Option<&RawValue>,
) -> Response<Body> {
    let refuse = |error: RpcError| {
        let is_legacy = http.headers.contains_key(&SESSION_ID) || method == method::INITIALIZE;
        let is_legacy = is_legacy && !is_modern(&http.headers);
        error.respond(if is_legacy { Era::Legacy } else { Era::Modern }, Some(id))
    };
    let mut admission = match admit(http, id, method).await {
        Ok(admission) => admission,
        Err(error) => return refuse(error),
    };
    let long_work = &http.caller.tenant.long_work;
    let len = params.map_or(0, |params| params.get().len());
    let offload = http.app.gateway.offload();
    let params = match offload.in_place(long_work, len, || Params::parse(params)).await {
        Ok(params) => params,
        Err(error) => return refuse(RpcError::from(error).charged(admission.as_mut())),
    };
    let era = era_of(&http.headers, method, &params);
    // Whatever the answer is, it must find room.
    if let Err(full) = check_room(&http.caller.tenant) {
        return RpcError::from(full).respond(era, Some(id));
    }
    let request = McpRequest { http, caller: &http.caller, session: None, era, id, method, params };
    // A call tells of its own end.
    let traced = match forwarded_method(method, &http.scope) {
        Some(_) => None,
        None => method::known_request(method).and_then(|method| request.sample(method)),
    };
    let response = match era {
        Era::Modern => modern::answer(&request, admission).await,
        Era::Legacy => legacy::answer(request, admission).await,
    };
    if let Some(traced) = traced {
        http.tell_answered(traced, &response);
    }
    response
}

/// Charges a request to its tenant. Requests that are no work for a server, and no list, are free.
async fn admit(
    http: &HttpRequest,
    id: &RawValue,
    method: &str,
) -> Result<Option<Admission>, RpcError> {
    let is_call = forwarded_method(method, &http.scope).is_some()
        || [method::RESOURCES_SUBSCRIBE, method::LISTEN].contains(&method);
    let cost = match ListKind::of(method) {
        // The replica that forwarded the request has charged it.
        None if is_call && http.is_forwarded => Cost::PaidCall,
        Some(_) if http.is_forwarded => Cost::PaidList,
        None if is_call => Cost::Call,
        Some(_) => Cost::List,
        None => return Ok(None),
    };
    let refusal = match http.caller.tenant.admit(cost).await {
        Ok(admission) => return Ok(Some(admission)),
        Err(refusal) => CallError::from(refusal),
    };
    let gateway = &http.app.gateway;
    gateway.metrics().count_unresolved("", refusal.code());
    let call = is_call.then(CallId::generate);
    match call {
        Some(call) => {
            let trace = trace_of(&http.headers);
            let traced = method::known_request(method);
            let traced = traced.and_then(|method| http.sample(trace.as_ref(), id, method));
            http.tell_refused(call, method, refusal.code(), Some(&refusal), traced);
        }
        None => gateway.tell_limit(&http.caller.tenant.id, None, &refusal),
    }
    Err(RpcError::of_call(refusal, call))
}

impl HttpRequest {
    /// Tells of a call that is refused before it is one. `target` is the tool or the method.
    fn tell_refused(
        &self,
        id: CallId,
        target: &str,
        code: &'static str,
        error: Option<&CallError>,
        traced: Option<Box<TracedRequest>>,
    ) {
        self.app.gateway.tell_refused(RefusedCall {
            id,
            caller: &self.caller,
            tags: tags(&self.headers).unwrap_or_default(),
            server: &self.scope.label(),
            target,
            arrived: self.arrived,
            deadline: None,
            size: self.body.len(),
            code,
            error,
            traced,
        });
    }
}

/// Finds the era: `_meta` or the header names a modern version, or only modern clients know the
/// method.
fn era_of(headers: &HeaderMap, method: &str, params: &Params<'_>) -> Era {
    let is_modern = params.meta(meta::PROTOCOL_VERSION).is_some()
        || is_modern(headers)
        || method == method::DISCOVER;
    if is_modern { Era::Modern } else { Era::Legacy }
}

/// Returns whether the header names a version that is not of the legacy era.
fn is_modern(headers: &HeaderMap) -> bool {
    let Some(version) = headers.get(&PROTOCOL_VERSION) else { return false };
    let version = version.to_str().ok().and_then(ProtocolVersion::parse);
    version.is_none_or(|version| version.era() == Era::Modern)
}

/// Requires a client to send JSON, and to accept JSON as well as event streams.
fn check_media_types(headers: &HeaderMap) -> Result<(), RpcError> {
    let is = |found: &[u8], kind: &str| found.eq_ignore_ascii_case(kind.as_bytes());
    let content_type = headers.get(header::CONTENT_TYPE).map(|value| media_type(value.as_bytes()));
    if !content_type.is_some_and(|found| is(found, JSON)) {
        let message = "`Content-Type` must be `application/json`";
        return Err(RpcError::invalid_request(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    body::check_encoding(headers).map_err(|error| {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        RpcError::invalid_request(status, &error.to_string())
    })?;
    let accepts = |kind, range| {
        accepted_types(headers).any(|found| [kind, range, "*/*"].iter().any(|it| is(found, it)))
    };
    if accepts(JSON, "application/*") && accepts("text/event-stream", "text/*") {
        return Ok(());
    }
    let message = "`Accept` must list both `application/json` and `text/event-stream`";
    Err(RpcError::invalid_request(StatusCode::NOT_ACCEPTABLE, message))
}

fn bad_request(message: &str) -> Response<Body> {
    RpcError::invalid_request(StatusCode::BAD_REQUEST, message).respond(Era::Modern, None)
}

fn text_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}
