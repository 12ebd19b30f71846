//! Calls a tool over plain HTTP: `POST /v1/servers/{server}/tools/{tool}`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use tokio::time::Instant;

use super::asked::{Asked, give_back_request_id, request_id_header, tags};
use super::kept;
use crate::common::ids::CallId;
use crate::common::millis::millis;
use crate::events::CallTags;
use crate::gateway::{Call, CallError, Caller, Operation, RefusedCall, Reply, ToolName};
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, call_failed};
use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, SERVER_TIMING, add_rate_status, asked_timeout_of, fairness_key,
    text_value, trace_members,
};
use crate::http::state::AppState;
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::ResultKind;
use crate::tenants::limits::{Admission, Cost};

/// Calls a tool: the request's body is its arguments, the response's body its result.
pub(crate) async fn call_tool(
    State(app): State<Arc<AppState>>,
    caller: Result<Authenticated, HttpError>,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Response<Body> {
    let (id, arrived) = (CallId::generate(), Instant::now());
    let request_id = request_id_header(request.headers());
    let target = caller.and_then(|Authenticated(caller)| Ok((caller, path?.0)));
    let mut response = match target {
        Ok((caller, (server, tool))) => {
            let target = Target { id, arrived, caller: &caller, server: &server, tool: &tool };
            make(&app, &target, request).await
        }
        Err(error) => {
            app.gateway.metrics().count_unresolved("", error.status_and_code().1);
            call_failed(error, id)
        }
    };
    give_back_request_id(request_id, &mut response);
    response
}

/// The call that a request names; whether there is such a tool is not known yet.
struct Target<'a> {
    id: CallId,
    arrived: Instant,
    caller: &'a Caller,
    server: &'a str,
    tool: &'a str,
}

async fn make(app: &AppState, target: &Target<'_>, request: Request<Body>) -> Response<Body> {
    let Target { id, caller, .. } = *target;
    let refuse = |error: HttpError, tags| {
        target.tell_refused(app, &error, tags);
        call_failed(error, id)
    };
    let (head, body) = request.into_parts();
    let read = read_request(app, target, &head.headers, body).await;
    let read = read.map_err(|error| (error, tags(&head.headers).unwrap_or_default()));
    // The call may wait for long.
    drop(head);
    match read {
        Ok((admission, call, asked)) if asked.is_kept() => {
            let tags = call.tags.clone();
            let answered = kept::call(app, caller, admission, call, asked).await;
            answered.unwrap_or_else(|error| refuse(error, tags))
        }
        Ok((admission, call, asked)) => match app.gateway.call(caller, admission, call).await {
            Ok(reply) => succeeded(reply, id, asked.tool_errors_fail),
            Err(error) => call_failed(error.into(), id),
        },
        Err((error, tags)) => {
            app.gateway.metrics().count_unresolved("", error.status_and_code().1);
            refuse(error, tags)
        }
    }
}

async fn read_request(
    app: &AppState,
    target: &Target<'_>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Admission, Call, Asked), HttpError> {
    let Target { id, arrived, caller, .. } = *target;
    let server = app.gateway.server(caller, target.server)?;
    let asked = Asked::read(headers)?;
    let tags = tags(headers)?;
    let timeout = asked_timeout_of(&server, headers)?;
    let fairness_key = fairness_key(headers)?;
    let deadline = arrived + timeout.unwrap_or(server.config().timeout);
    let body_deadline = deadline.min(arrived + body::TIMEOUT);
    let meta = CallMeta { others: trace_members(headers), ..CallMeta::default() };
    let body = body::read_for(caller, headers, body, app.max_body, body_deadline).await?;
    let cost = if asked.is_kept() { Cost::KeptCall } else { Cost::Call };
    let mut admission = caller.tenant.admit(cost).await.map_err(CallError::from)?;
    let tenant = &caller.tenant;
    let parsed = app.gateway.offload().in_place(&tenant.long_work, body.len(), || {
        // A tool without arguments can be called without a body.
        if body.is_empty() { Ok(RawObject::empty()) } else { RawObject::parse(body.clone()) }
    });
    let arguments = parsed
        .await
        .map_err(|error| CallError::from(error).with_rate_status(admission.take_rate_status()))?;
    let name = ToolName::Own(target.tool.to_owned());
    let call = Call {
        id,
        server,
        size: arguments.as_str().len(),
        operation: Operation::Tool { name, arguments, mirrored: None },
        others: String::new(),
        meta,
        fairness_key,
        tags,
        waits_for_limits: false,
        listener: None,
        arrived,
        deadline,
        // A REST caller does not ask for progress, so nothing moves the deadline.
        deadline_max: None,
        begin_mark: None,
    };
    Ok((admission, call, asked))
}

impl Target<'_> {
    fn tell_refused(&self, app: &AppState, error: &HttpError, tags: CallTags) {
        app.gateway.tell_refused(RefusedCall {
            id: self.id,
            caller: self.caller,
            tags,
            server: self.server,
            target: self.tool,
            arrived: self.arrived,
            deadline: None,
            size: 0,
            code: error.status_and_code().1,
            error: error.of_call(),
        });
    }
}

fn succeeded(reply: Reply, id: CallId, tool_errors_fail: bool) -> Response<Body> {
    let timing = server_timing(reply.queue, reply.backend);
    let mut response = Response::new(Body::from(reply.result));
    hold(&mut response, Some(reply.held));
    if tool_errors_fail && reply.kind == ResultKind::ToolError {
        *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CALL_ID.clone(), text_value(id.to_string()));
    headers.insert(OUTCOME.clone(), HeaderValue::from_static(reply.kind.as_str()));
    headers.insert(SERVER_TIMING.clone(), text_value(timing));
    headers.insert(ATTEMPTS.clone(), reply.attempts.into());
    add_rate_status(headers, &reply.rate_status);
    response
}

/// Returns the value of `Server-Timing`.
pub(super) fn server_timing(queue: Duration, backend: Duration) -> String {
    format!("queue;dur={}, backend;dur={}", millis(queue), millis(backend))
}
