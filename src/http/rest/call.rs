//! Calls a tool over plain HTTP: `POST /v1/servers/{server}/tools/{tool}`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use tokio::time::Instant;

use super::asked::{Asked, give_back_request_id, request_id_header, tags};
use super::{call_events, kept};
use crate::backend::connection::call_notifications::NotificationSender;
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
            make(&app, Target { id, arrived, caller, server, tool }, request).await
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
struct Target {
    id: CallId,
    arrived: Instant,
    caller: Caller,
    server: String,
    tool: String,
}

async fn make(app: &Arc<AppState>, target: Target, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let read = read_request(app, &target, &head.headers, body).await;
    let read = read.map_err(|error| (error, tags(&head.headers).unwrap_or_default()));
    // The call may wait for long.
    drop(head);
    match read {
        Ok((admission, call, asked)) if asked.events => {
            answer_with_events(app.clone(), target, admission, call, asked)
        }
        Ok((admission, call, asked)) => answer(app, &target, admission, call, asked).await,
        Err((error, tags)) => {
            app.gateway.metrics().count_unresolved("", error.status_and_code().1);
            target.refuse(app, error, tags)
        }
    }
}

async fn answer(
    app: &AppState,
    target: &Target,
    admission: Admission,
    call: Call,
    asked: Asked,
) -> Response<Body> {
    if asked.is_kept() {
        let tags = call.tags.clone();
        let answered = kept::call(app, &target.caller, admission, call, asked).await;
        return answered.unwrap_or_else(|error| target.refuse(app, error, tags));
    }
    match app.gateway.call(&target.caller, admission, call).await {
        Ok(reply) => succeeded(reply, target.id, asked.tool_errors_fail),
        Err(error) => call_failed(error.into(), target.id),
    }
}

fn answer_with_events(
    app: Arc<AppState>,
    target: Target,
    mut admission: Admission,
    mut call: Call,
    asked: Asked,
) -> Response<Body> {
    let rate_status = admission.take_rate_status();
    let unsent = target.caller.tenant.held.unsent.clone();
    let offload = app.gateway.offload().clone();
    let (sender, notifications) = NotificationSender::new(None, Some(unsent.clone()));
    call.listener = Some(sender);
    call.meta.progress = true;
    let id = (!asked.is_kept()).then_some(call.id);
    let answered = async move { answer(&app, &target, admission, call, asked).await };
    let mut response = call_events::respond(answered, notifications, unsent, offload);
    // A key may have a call already, with another id.
    let id = id.map(|id| (CALL_ID.clone(), text_value(id.to_string())));
    response.headers_mut().extend(id);
    add_rate_status(response.headers_mut(), &rate_status);
    response
}

async fn read_request(
    app: &AppState,
    target: &Target,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Admission, Call, Asked), HttpError> {
    let Target { id, arrived, caller, .. } = target;
    let (id, arrived) = (*id, *arrived);
    let server = app.gateway.server(caller, &target.server)?;
    let asked = Asked::read(headers)?;
    let tags = tags(headers)?;
    let timeout = asked_timeout_of(&server, headers)?;
    let fairness_key = fairness_key(headers)?;
    let may_extend = asked.events && timeout.is_none();
    let max_timeout = server.config().max_timeout.filter(|_| may_extend);
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
        // Progress extends no deadline that the caller chose, and only events carry progress.
        deadline_max: max_timeout.map(|max| arrived + max),
        begin_mark: None,
    };
    Ok((admission, call, asked))
}

impl Target {
    /// Tells the refusal to whoever listens to events, and returns its response.
    fn refuse(&self, app: &AppState, error: HttpError, tags: CallTags) -> Response<Body> {
        app.gateway.tell_refused(RefusedCall {
            id: self.id,
            caller: &self.caller,
            tags,
            server: &self.server,
            target: &self.tool,
            arrived: self.arrived,
            deadline: None,
            size: 0,
            code: error.status_and_code().1,
            error: error.of_call(),
        });
        call_failed(error, self.id)
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
