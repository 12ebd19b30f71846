//! Plain HTTP for tools: `POST /v1/servers/{server}/tools/{tool}`.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use bytes::Bytes;
use tokio::time::Instant;

use crate::common::ids::CallId;
use crate::config::CALL_MAX;
use crate::gateway::{Ask, Call, CallError, Caller, Reply, ToolName};
use crate::http::Front;
use crate::http::auth::Authenticated;
use crate::http::error::{call_failed, rate_headers};
use crate::http::{body, trace};
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;

pub(crate) static CALL_ID: HeaderName = HeaderName::from_static("trunkline-call-id");
pub(crate) static OUTCOME: HeaderName = HeaderName::from_static("trunkline-outcome");
/// How many attempts a call took.
pub(crate) static ATTEMPTS: HeaderName = HeaderName::from_static("trunkline-attempts");
static TIMEOUT_MS: HeaderName = HeaderName::from_static("trunkline-timeout-ms");
pub(crate) static SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The longest deadline a caller may ask for.
const TIMEOUT_MS_MAX: u64 = CALL_MAX.as_millis() as u64;

/// Calls a tool: the body is its arguments, the answer its result.
pub(crate) async fn call_tool(
    State(front): State<Arc<Front>>,
    caller: Result<Authenticated, CallError>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Response<Body> {
    let id = CallId::generate();
    let (caller, call) = match read_request(&front, id, caller, path, request).await {
        Ok(read) => read,
        Err(error) => {
            front.gateway.metrics().count_unresolved("", error.code());
            return call_failed(error, id);
        }
    };
    match front.gateway.call(&caller, call).await {
        Ok(reply) => answered(reply, id),
        Err(error) => call_failed(error, id),
    }
}

async fn read_request(
    front: &Front,
    id: CallId,
    caller: Result<Authenticated, CallError>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Result<(Caller, Call), CallError> {
    let Authenticated(caller) = caller?;
    let Path((server, tool)) =
        path.map_err(|error| CallError::InvalidRequest(error.body_text()))?;
    let call = read_call(front, &caller, id, server, tool, request).await?;
    Ok((caller, call))
}

async fn read_call(
    front: &Front,
    caller: &Caller,
    id: CallId,
    server: String,
    tool: String,
    request: Request<Body>,
) -> Result<Call, CallError> {
    let arrived = Instant::now();
    let (parts, request_body) = request.into_parts();
    let asked = asked_timeout(&parts.headers)?;
    let configured = front.gateway.server(caller, &server)?.config().timeout;
    let deadline = arrived + asked.unwrap_or(configured);
    let body_deadline = deadline.min(arrived + body::TIMEOUT);
    let body =
        body::read_of(caller, &parts.headers, request_body, front.max_body, body_deadline).await?;
    // A tool without arguments can be called without a body.
    let arguments = if body.is_empty() { RawObject::empty() } else { RawObject::parse(body)? };
    let size = arguments.as_str().len();
    let ask = Ask::Tool { name: ToolName::Own(tool), arguments, mirrored: None };
    let meta = CallMeta { others: trace::members(&parts.headers), ..CallMeta::default() };
    let (others, listener) = (String::new(), None);
    // No progress is asked for here that could move the deadline.
    let deadline_max = None;
    Ok(Call { id, server, ask, others, meta, size, listener, arrived, deadline, deadline_max })
}

/// The caller's own timeout, if it gives one.
pub(crate) fn asked_timeout(headers: &HeaderMap) -> Result<Option<Duration>, CallError> {
    if headers.contains_key(&IDEMPOTENCY_KEY) {
        let message = "`Idempotency-Key` is not supported: answers are not kept, so a call that is sent twice would run twice";
        return Err(CallError::InvalidRequest(message.to_owned()));
    }
    let Some(value) = headers.get(&TIMEOUT_MS) else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.parse().ok()) {
        Some(ms @ 1..=TIMEOUT_MS_MAX) => Ok(Some(Duration::from_millis(ms))),
        _ => Err(CallError::InvalidRequest(format!(
            "`Trunkline-Timeout-Ms` must be a whole number of milliseconds from 1 to {TIMEOUT_MS_MAX}"
        ))),
    }
}

fn answered(reply: Reply, id: CallId) -> Response<Body> {
    let timing =
        format!("queue;dur={}, backend;dur={}", millis(reply.queue), millis(reply.backend));
    let mut response = Response::new(Body::from(reply.result));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CALL_ID.clone(), call_id_value(id));
    headers.insert(OUTCOME.clone(), HeaderValue::from_static(reply.kind.as_str()));
    headers.insert(SERVER_TIMING.clone(), text_value(timing));
    headers.insert(ATTEMPTS.clone(), reply.attempts.into());
    rate_headers(headers, &reply.rate_status);
    response
}

/// With three decimals, by integers: this is written for every call.
fn millis(duration: Duration) -> impl Display {
    let micros = duration.as_micros();
    fmt::from_fn(move |f| write!(f, "{}.{:03}", micros / 1000, micros % 1000))
}

pub(crate) fn call_id_value(id: CallId) -> HeaderValue {
    text_value(id.to_string())
}

pub(crate) fn text_value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("made of visible ASCII")
}
