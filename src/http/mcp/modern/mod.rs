//! The modern era (2026-07-28): every request says all about itself. A client cancels a request by
//! closing its response.

pub(crate) mod connect_question;
pub(crate) mod listen;
mod own_tasks;
pub(crate) mod questions;
pub(crate) mod request_state;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode};
use serde_json::json;

use super::endpoint_info::EndpointInfo;
use super::forward::ForwardedCall;
use super::lists::{self, ListKind};
use super::response::{CallResponse, respond_with_json};
use super::rpc::{self, RpcError};
use super::tasks::takes_tasks;
use super::{McpRequest, PARAM_PREFIX, PROTOCOL_VERSION, toolset};
use crate::http::sse;
use crate::protocol::mcp::extensions::is_of_tasks;
use crate::protocol::mcp::headers::{HeaderMismatch, repeated, same, same_decoded};
use crate::protocol::mcp::params::text_of;
use crate::protocol::mcp::{Era, ProtocolVersion, UNSUPPORTED_PROTOCOL_VERSION, meta, method};
use crate::tenants::limits::Admission;

const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";

/// Answers a request. Dropping the future, or the response, cancels its call.
pub(super) async fn answer(
    request: &McpRequest<'_>,
    admission: Option<Admission>,
) -> Response<Body> {
    let answered = dispatch(request, admission).await;
    answered.unwrap_or_else(|error| error.respond(Era::Modern, Some(request.id)))
}

async fn dispatch(
    request: &McpRequest<'_>,
    mut admission: Option<Admission>,
) -> Result<Response<Body>, RpcError> {
    check_envelope(request).map_err(|error| error.charged(admission.as_mut()))?;
    let result = match (request.method, admission) {
        (method::DISCOVER, _) => EndpointInfo::of(request).await?.discover_result(),
        (method::LISTEN, Some(admission)) => return listen::listen(request, admission).await,
        (other, Some(mut admission)) => match (request.forwarded(), ListKind::of(other)) {
            (Some(method), _) => {
                check_name(request).map_err(|error| error.charged(Some(&mut admission)))?;
                if let Some(found) = toolset::search_tools(request, method).await {
                    return found.map_err(|error| error.charged(Some(&mut admission)));
                }
                return forward(request, method, admission).await;
            }
            (None, Some(kind)) => return lists::respond(request, kind, admission).await,
            (None, None) => return Err(RpcError::method_not_found(other)),
        },
        (other, None) => return Err(RpcError::method_not_found(other)),
    };
    Ok(rpc::respond_result(request.id, &result))
}

/// Checks the members that every request must have, and the headers that must repeat them.
fn check_envelope(request: &McpRequest<'_>) -> Result<(), RpcError> {
    let headers = &request.http.headers;
    check_repeated(headers)?;
    let missing = |name| {
        RpcError::invalid_params(format!("`params._meta[\"{name}\"]` is missing"))
            .with_modern_status(StatusCode::BAD_REQUEST)
    };
    let version = request.params.meta(meta::PROTOCOL_VERSION).and_then(text_of);
    let version = version.ok_or_else(|| missing(meta::PROTOCOL_VERSION))?;
    let capabilities = request.params.meta(meta::CLIENT_CAPABILITIES);
    if !capabilities.is_some_and(|capabilities| capabilities.get().starts_with('{')) {
        return Err(missing(meta::CLIENT_CAPABILITIES));
    }
    same(headers.get(&PROTOCOL_VERSION), &version, "MCP-Protocol-Version")?;
    if ProtocolVersion::parse(&version).is_none_or(|version| version.era() != Era::Modern) {
        let message = "this protocol version is not supported in `_meta`";
        let error = RpcError::new(UNSUPPORTED_PROTOCOL_VERSION, message);
        let supported = [ProtocolVersion::LATEST.as_str()];
        return Err(error.with_data(&json!({"supported": supported, "requested": version})));
    }
    same(headers.get(METHOD), request.method, "Mcp-Method")?;
    Ok(())
}

/// Rejects headers that repeat the body but appear more than once.
fn check_repeated(headers: &HeaderMap) -> Result<(), HeaderMismatch> {
    let repeats_body = |name: &str| {
        [PROTOCOL_VERSION.as_str(), METHOD, NAME].contains(&name) || name.starts_with(PARAM_PREFIX)
    };
    let is_repeated = |name: &&HeaderName| headers.get_all(*name).iter().nth(1).is_some();
    let mut names = headers.keys().filter(|name| repeats_body(name.as_str()));
    names.find(is_repeated).map_or(Ok(()), |name| Err(repeated(name.as_str())))
}

fn check_name(request: &McpRequest<'_>) -> Result<(), RpcError> {
    let member = match request.method {
        method::RESOURCES_READ => "uri",
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        tasks if is_of_tasks(tasks) => "taskId",
        _ => return Ok(()),
    };
    let name = request.params.text(member)?;
    Ok(same_decoded(request.http.headers.get(NAME), &name, "Mcp-Name")?)
}

async fn forward(
    request: &McpRequest<'_>,
    method: &'static str,
    mut admission: Admission,
) -> Result<Response<Body>, RpcError> {
    if is_of_tasks(method)
        && takes_tasks(request)
        && let Some(answered) = Box::pin(own_tasks::answer(request, method)).await
    {
        return answered.map_err(|error| error.charged(Some(&mut admission)));
    }
    let forwarded = ForwardedCall::read(request, method, None)
        .map_err(|error| error.charged(Some(&mut admission)))?;
    if forwarded.asks.is_some() || forwarded.parked.is_some() {
        return Box::pin(questions::forward(request, forwarded, admission)).await;
    }
    if own_tasks::may_become_task(&forwarded.call)
        && let Some(tool) = Box::pin(own_tasks::tool_of(request, &forwarded.call)).await
    {
        return Box::pin(own_tasks::forward(request, forwarded, tool, admission)).await;
    }
    let ForwardedCall { call, translation, notifications, awaits_connection, .. } = forwarded;
    let (app, caller, id) = (&request.http.app, request.caller, call.id);
    if let Some(connections) = app.connections.as_ref().filter(|_| awaits_connection) {
        // The person is still at the page, most likely.
        let (tenant, server) = (&caller.tenant.id, call.server.id());
        connections.connected(tenant, server, call.deadline).await;
    }
    let Some(notifications) = notifications else {
        let outcome = app.gateway.call(caller, admission, &call).await;
        return Ok(respond_with_json(outcome, translation, id).await);
    };
    let (app, caller) = (app.clone(), caller.clone());
    let outcome = async move { Some(app.gateway.call(&caller, admission, &call).await) };
    let response = CallResponse::new(outcome, notifications, translation).respond(id).await;
    Ok(response.unwrap_or_else(sse::respond_empty))
}
