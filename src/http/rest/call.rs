//! Calls a tool over plain HTTP: `POST /v1/servers/{server}/tools/{tool}`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Request, Response, header};
use tokio::time::Instant;

use crate::common::ids::CallId;
use crate::gateway::{Call, CallError, Caller, Operation, Reply, ToolName};
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, call_failed};
use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, SERVER_TIMING, add_rate_status, asked_timeout_of, fairness_key,
    millis, text_value, trace_members,
};
use crate::http::state::AppState;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;
use crate::tenants::limits::{Admission, Cost};

/// Calls a tool: the request's body is its arguments, the response's body its result.
pub(crate) async fn call_tool(
    State(app): State<Arc<AppState>>,
    caller: Result<Authenticated, HttpError>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Response<Body> {
    let id = CallId::generate();
    let (caller, admission, call) = match read_request(&app, id, caller, path, request).await {
        Ok(read) => read,
        Err(error) => {
            app.gateway.metrics().count_unresolved("", error.status_and_code().1);
            return call_failed(error, id);
        }
    };
    match app.gateway.call(&caller, admission, call).await {
        Ok(reply) => succeeded(reply, id),
        Err(error) => call_failed(error.into(), id),
    }
}

async fn read_request(
    app: &AppState,
    id: CallId,
    caller: Result<Authenticated, HttpError>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Result<(Caller, Admission, Call), HttpError> {
    let Authenticated(caller) = caller?;
    let Path((server, tool)) = path?;
    let arrived = Instant::now();
    let server = app.gateway.server(&caller, &server)?;
    let asked = asked_timeout_of(&server, request.headers())?;
    let fairness_key = fairness_key(request.headers())?;
    let deadline = arrived + asked.unwrap_or(server.config().timeout);
    let body_deadline = deadline.min(arrived + body::TIMEOUT);
    let meta = CallMeta { others: trace_members(request.headers()), ..CallMeta::default() };
    let body = body::read_for(&caller, request.into_body(), app.max_body, body_deadline).await?;
    let mut admission = caller.tenant.admit(Cost::Call).await.map_err(CallError::from)?;
    let tenant = &caller.tenant;
    let parsed = app.gateway.offload().in_place(&tenant.long_work, body.len(), || {
        // A tool without arguments can be called without a body.
        if body.is_empty() { Ok(RawObject::empty()) } else { RawObject::parse(body.clone()) }
    });
    let arguments = parsed
        .await
        .map_err(|error| CallError::from(error).with_rate_status(admission.take_rate_status()))?;
    let call = Call {
        id,
        server,
        size: arguments.as_str().len(),
        operation: Operation::Tool { name: ToolName::Own(tool), arguments, mirrored: None },
        others: String::new(),
        meta,
        fairness_key,
        listener: None,
        arrived,
        deadline,
        // A REST caller does not ask for progress, so nothing moves the deadline.
        deadline_max: None,
    };
    Ok((caller, admission, call))
}

fn succeeded(reply: Reply, id: CallId) -> Response<Body> {
    let timing =
        format!("queue;dur={}, backend;dur={}", millis(reply.queue), millis(reply.backend));
    let mut response = Response::new(Body::from(reply.result));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CALL_ID.clone(), text_value(id.to_string()));
    headers.insert(OUTCOME.clone(), HeaderValue::from_static(reply.kind.as_str()));
    headers.insert(SERVER_TIMING.clone(), text_value(timing));
    headers.insert(ATTEMPTS.clone(), reply.attempts.into());
    add_rate_status(headers, &reply.rate_status);
    response
}
