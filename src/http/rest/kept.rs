//! Answers calls that are kept: those with an `Idempotency-Key`, and asynchronous ones.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;

use super::asked::Asked;
use super::call::{ReadCall, change_result, server_timing};
use crate::calls::{
    Answer, CallRequest, Details, Fingerprint, Identity, Mode, Outcome, OutcomeKind, Refusal,
    Ticket, Waited,
};
use crate::gateway::{Call, Caller, Operation, ToolName};
use crate::http::error::{HttpError, HttpResult, call_failed};
use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, PREFERENCE_APPLIED, REPLAYED, SERVER_TIMING, add_rate_status,
    text_value,
};
use crate::http::problem::whole_seconds;
use crate::http::state::AppState;
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::RawObject;
use crate::store::CallState;
use crate::tenants::Tenant;
use crate::tenants::limits::Admission;
use crate::toolsets::ChangedTool;

/// When to look again for a call that is not over, in seconds.
const LOOK_AGAIN: u64 = 1;

/// Makes a call that is kept, or answers with what became of an earlier one.
pub(super) async fn call(
    app: &AppState,
    caller: &Caller,
    mut admission: Admission,
    read: ReadCall,
) -> HttpResult {
    let rate_status = admission.take_rate_status();
    let ReadCall { call, asked, given, changed } = read;
    let deadline = call.deadline;
    let is_async = asked.prefer.respond_async;
    let wait = asked.prefer.wait.map(|wait| Instant::now() + wait);
    let tool_errors_fail = asked.tool_errors_fail;
    if let Some(url) = &asked.callback {
        app.calls.check_callback(caller, url).await?;
    }
    let toolset = caller.toolset.as_ref().map(|toolset| toolset.id().to_string());
    let request = request(call, asked, &given, toolset)?;
    let mode = if is_async { Mode::WhenPermitted } else { Mode::Now };
    let mut ticket = app.calls.submit(caller, request, mode)?;
    if (is_async || wait.is_some())
        && let Err(refusal) = ticket.decided(deadline).await
    {
        return refused(refusal, &ticket);
    }
    // The caller of an asynchronous call does not wait for it unless it says so.
    let until = match (is_async, wait) {
        (true, wait) => wait.unwrap_or_else(Instant::now).min(deadline),
        (false, Some(wait)) if ticket.is_retry() => wait.min(deadline),
        (false, _) => deadline,
    };
    // Also if it is over already: its caller expects no result now.
    if is_async
        && wait.is_none()
        && let Some((identity, state)) = ticket.begun()
    {
        let mut response = accepted_call(&identity, state);
        add_rate_status(response.headers_mut(), &rate_status);
        return Ok(response);
    }
    let waited = match ticket.wait(until).await {
        Ok(waited) => waited,
        Err(refusal) => return refused(refusal, &ticket),
    };
    let mut response = match waited {
        Waited::Answered(mut answer) => {
            if let Some(changed) = changed {
                answer.outcome = changed_outcome(app, changed, &answer).await;
            }
            answered(answer, caller, tool_errors_fail)
        }
        Waited::Open(identity, state) if is_async => accepted_call(&identity, state),
        Waited::Open(identity, _) if Instant::now() < deadline => {
            return Err(Refusal::InProgress(identity.id).into());
        }
        Waited::Open(identity, _) => return Err(Refusal::StillRunning(identity.id).into()),
        Waited::Undecided => return Err(Refusal::Undecided.into()),
    };
    add_rate_status(response.headers_mut(), &rate_status);
    Ok(response)
}

/// Returns an outcome as the caller's toolset changes it. The call's record has all of it.
async fn changed_outcome(
    app: &AppState,
    changed: Arc<ChangedTool>,
    answer: &Answer,
) -> Arc<Outcome> {
    let outcome = &answer.outcome;
    if outcome.head.outcome == OutcomeKind::Error {
        return outcome.clone();
    }
    let body = change_result(app, changed, outcome.body.clone(), Some(answer.id)).await;
    Arc::new(Outcome { body, ..Outcome::clone(outcome) })
}

fn request(
    call: Call,
    asked: Asked,
    given: &RawObject,
    toolset: Option<String>,
) -> Result<CallRequest, HttpError> {
    let Operation::Tool { name: ToolName::Own(tool), arguments, .. } = call.operation else {
        return Err(HttpError::invalid("only tools can be called so"));
    };
    // PostgreSQL cannot store it, and no tool is called so.
    if tool.contains('\0') {
        return Err(HttpError::invalid("the name of a tool has no zero byte"));
    }
    let timeout = call.server.config().timeout.max(call.deadline - call.arrived);
    Ok(CallRequest {
        id: call.id,
        server: call.server,
        tool,
        fingerprint: Fingerprint::of(given.as_str()),
        arguments,
        held: call.held,
        key: asked.key,
        listener: call.listener,
        mcp: None,
        details: Details {
            timeout_ms: timeout.as_millis() as u64,
            labels: call.tags.labels,
            request_id: call.tags.request_id,
            is_async: asked.prefer.respond_async,
            fairness_key: call.fairness_key,
            callback: asked.callback,
            toolset,
            trace: call.meta.trace,
            batch: None,
        },
    })
}

/// Answers with a refusal; with the call's own id if it is that of an earlier request.
fn refused(refusal: Refusal, ticket: &Ticket) -> HttpResult {
    let is_kept = matches!(
        refusal,
        Refusal::Cancelled { .. } | Refusal::OutcomeUnknown | Refusal::ResultGone
    );
    let Some(id) = ticket.replayed().filter(|_| is_kept) else { return Err(refusal.into()) };
    let mut response = call_failed(refusal.into(), id);
    response.headers_mut().insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    Ok(response)
}

fn answered(answer: Answer, caller: &Caller, tool_errors_fail: bool) -> Response<Body> {
    let mut response = match outcome(&answer.outcome, &caller.tenant, tool_errors_fail) {
        Ok(response) => response,
        Err(refusal) => call_failed(refusal.into(), answer.id),
    };
    let headers = response.headers_mut();
    headers.insert(CALL_ID.clone(), text_value(answer.id.to_string()));
    if answer.is_replay {
        headers.insert(REPLAYED.clone(), HeaderValue::from_static("true"));
    }
    response
}

/// Writes an outcome as its first caller gets it, if there is room for it.
pub(super) fn outcome(
    outcome: &Outcome,
    tenant: &Tenant,
    tool_errors_fail: bool,
) -> Result<Response<Body>, Refusal> {
    let held = outcome.hold(tenant)?;
    let head = &outcome.head;
    let is_error = head.outcome == OutcomeKind::Error;
    let status = match head.outcome {
        OutcomeKind::ToolError if tool_errors_fail => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY),
    };
    let mut response = Response::new(Body::from(outcome.body.clone()));
    hold(&mut response, held);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let content_type = if is_error { "application/problem+json" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(OUTCOME.clone(), HeaderValue::from_static(head.outcome.as_str()));
    headers.insert(ATTEMPTS.clone(), head.attempts.into());
    if !is_error {
        let micros = Duration::from_micros;
        let timing = server_timing(micros(head.queue_us), micros(head.backend_us));
        headers.insert(SERVER_TIMING.clone(), text_value(timing));
    }
    let retry_after = outcome.retry_after.map(whole_seconds);
    headers.extend(retry_after.map(|seconds| (header::RETRY_AFTER, seconds.into())));
    Ok(response)
}

fn accepted_call(identity: &Identity, state: CallState) -> Response<Body> {
    let mut response = accepted(identity, state, "/v1/calls");
    response.headers_mut().insert(CALL_ID.clone(), text_value(identity.id.to_string()));
    response
}

/// Answers with 202: the call or batch goes on, and can be asked for under this path.
pub(super) fn accepted(identity: &Identity, state: CallState, path: &str) -> Response<Body> {
    let state = match state {
        CallState::Accepted => "accepted",
        CallState::Begun => "running",
        CallState::Ended | CallState::Abandoned => "ended",
    };
    let body = json!({
        "id": identity.id.to_string(),
        "state": state,
        "expires": Timestamp::from_millisecond(identity.expires).ok(),
    });
    let mut response = not_over(body.to_string());
    let headers = response.headers_mut();
    headers.insert(PREFERENCE_APPLIED.clone(), HeaderValue::from_static("respond-async"));
    headers.insert(header::LOCATION, text_value(format!("{path}/{}", identity.id)));
    response
}

/// Answers with 202 for a call or batch that is not over yet.
pub(super) fn not_over(body: String) -> Response<Body> {
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (StatusCode::ACCEPTED, content_type, body).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, LOOK_AGAIN.into());
    response
}
