//! Tasks of the gateway's own: with `tasks = true` a tool that is slow goes on as one, for a client
//! that declares the extension. Each such call has a record from its beginning, so that its task
//! can be asked for at any replica, and after a restart. A call that is over before `task_after` is
//! answered as ever, and leaves no record.

use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::calls::{
    Answer, CallRequest, CallView, Cancelled, Details, Fingerprint, McpPart, Mode, Outcome,
    OutcomeKind, Polled, RecordKind, Refusal, Ticket, Waited, rpc_error,
};
use crate::common::ids::CallId;
use crate::gateway::extension::unknown_task;
use crate::gateway::{Call, CallError, Held, Operation, Reply, ToolName, hold_response};
use crate::http::error::status_of_refusal;
use crate::http::mcp::forward::ForwardedCall;
use crate::http::mcp::response::{CallResponse, respond_with_json};
use crate::http::mcp::rpc::{self, RpcError};
use crate::http::mcp::tasks::{TaskRef, TaskSeal};
use crate::http::mcp::{HttpRequest, McpRequest};
use crate::http::rest::calls::cancel_at;
use crate::http::sse;
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::members::with_first_member;
use crate::protocol::mcp::results::{AskedTypes, ResultHead, ResultKind};
use crate::protocol::mcp::{Era, method};
use crate::tenants::Tenant;
use crate::tenants::limits::{Admission, RateStatus};
use crate::toolsets::ChangedTool;

/// How often a client should ask.
const POLL_INTERVAL_MS: u64 = 1000;
const COMPLETE: &str = "{\"resultType\":\"complete\"}";

/// Returns whether a call may become a task, if its server makes none.
pub(super) fn may_become_task(call: &Call) -> bool {
    call.meta.asked.tasks && call.server.config().tasks
}

/// Returns the server's own name of the tool, if its call may become a task of the gateway's. A
/// server that declares tasks makes its own.
pub(super) async fn tool_of(request: &McpRequest<'_>, call: &Call) -> Option<String> {
    let Operation::Tool { name, .. } = &call.operation else { return None };
    let gateway = &request.http.app.gateway;
    let ready = gateway.ready(request.caller, call.server.clone(), |_| call.deadline).await;
    // The call itself tells why there is none.
    let (_, ready) = ready.ok()?;
    if ready.dialect.has_tasks() {
        return None;
    }
    match name {
        ToolName::Own(name) => Some(name.clone()),
        ToolName::Exposed(name) => Some(ready.tools.exposed_as(name)?.name().to_owned()),
    }
}

/// Makes an admitted call that becomes a task if it is slow.
pub(super) async fn forward(
    request: &McpRequest<'_>,
    forwarded: ForwardedCall,
    tool: String,
    mut admission: Admission,
) -> Result<Response<Body>, RpcError> {
    let ForwardedCall { mut call, mut translation, notifications, .. } = forwarded;
    // The record's call takes a permit of its own; the rate is charged.
    let rate_status = admission.take_rate_status();
    drop(admission);
    let (app, caller) = (request.http.app.clone(), request.caller.clone());
    let id = call.id;
    // Progress moves no deadline of a call that nobody waits for.
    call.deadline_max = None;
    let (arrived, deadline) = (call.arrived, call.deadline);
    let task_after = arrived + call.server.config().task_after;
    let toolset = caller.toolset.as_ref().map(|toolset| toolset.id().to_string());
    let kept = kept_call(call, tool, toolset);
    let ticket = app.calls.submit(&caller, kept, Mode::Now).map_err(|it| refused(&it))?;
    let (seal, changed) = (TaskSeal::of(request), translation.changed.take());
    let outcome = async move {
        let mut waiting = CancelOnDrop(Some(ticket));
        let ticket = waiting.0.as_mut().expect("taken at the end");
        let _ = ticket.decided(deadline).await;
        let mut waited = ticket.wait(task_after.min(deadline)).await;
        if let Ok(Waited::Open(..)) = &waited
            && !ticket.hand_over()
        {
            // It has ended at this moment.
            waited = ticket.outcome(Instant::now() + POLL_END).await.map(Waited::Answered);
        }
        let outcome = match waited {
            Ok(Waited::Answered(answer)) => replied(&answer, &caller.tenant, changed.as_deref()),
            Ok(Waited::Open(identity, _)) => {
                let view = app.calls.view(&caller.tenant, RecordKind::Call, identity.id).await;
                view.map_err(|it| of_refusal(&it)).and_then(|view| {
                    let task = seal.seal(&TaskRef::OfCall { id: identity.id });
                    let mut made = about(&view, &task);
                    (made["resultType"], made["status"]) = (json!("task"), json!("working"));
                    let result = made.to_string();
                    let held = hold_response(&caller.tenant, result.len())?;
                    Ok(reply(result.into(), held, ResultKind::Complete, true))
                })
            }
            Ok(Waited::Undecided) => Err(of_refusal(&Refusal::Undecided)),
            Err(refusal) => Err(of_refusal(&refusal)),
        };
        waiting.0 = None;
        match outcome {
            Ok(reply) => Ok(Reply { rate_status, ..reply }),
            Err(error) => Err(error.with_rate_status(rate_status)),
        }
    };
    let Some(notifications) = notifications else {
        return Ok(respond_with_json(outcome.await, translation, id).await);
    };
    let outcome = async move { Some(outcome.await) };
    let response = CallResponse::new(outcome, notifications, translation).respond(id).await;
    Ok(response.unwrap_or_else(sse::respond_empty))
}

/// How long the end of a call may take that has ended.
const POLL_END: Duration = Duration::from_secs(5);

/// Cancels a call whose client has gone before it was told of a task.
struct CancelOnDrop(Option<Ticket>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(ticket) = &self.0 {
            ticket.cancel();
        }
    }
}

fn kept_call(call: Call, tool: String, toolset: Option<String>) -> CallRequest {
    let Operation::Tool { name, arguments, mirrored } = call.operation else {
        unreachable!("only tools become tasks")
    };
    let trace = call.meta.trace.clone();
    CallRequest {
        id: call.id,
        server: call.server,
        tool,
        fingerprint: Fingerprint::of(arguments.as_str()),
        arguments,
        held: call.held,
        key: None,
        listener: call.listener,
        mcp: Some(Box::new(McpPart { name, mirrored, others: call.others, meta: call.meta })),
        details: Details {
            timeout_ms: (call.deadline - call.arrived).as_millis() as u64,
            labels: call.tags.labels,
            request_id: call.tags.request_id,
            is_async: true,
            fairness_key: call.fairness_key,
            callback: None,
            toolset,
            trace,
            batch: None,
        },
    }
}

fn reply(result: Bytes, held: Held, kind: ResultKind, is_typed: bool) -> Reply {
    Reply {
        result,
        held,
        kind,
        is_typed,
        era: if is_typed { Era::Modern } else { Era::Legacy },
        queue: Duration::ZERO,
        backend: Duration::ZERO,
        rate_status: RateStatus::default(),
        attempts: 1,
        run: 0,
    }
}

/// Returns the answer to a call that was over in time.
fn replied(
    answer: &Answer,
    tenant: &Tenant,
    changed: Option<&ChangedTool>,
) -> Result<Reply, CallError> {
    let outcome = &answer.outcome;
    if outcome.head.outcome == OutcomeKind::Error {
        return Err(CallError::backend(rpc_error(&outcome.body)));
    }
    let held = outcome.hold(tenant).map_err(|it| of_refusal(&it))?;
    let held = held.map_or_else(|| hold_response(tenant, outcome.body.len()), Ok)?;
    let head = head_of(outcome)?;
    let text = std::str::from_utf8(&outcome.body).expect("checked by the gateway");
    let result = match changed.filter(|_| head.kind != ResultKind::InputRequired) {
        Some(changed) => changed.result.apply(text, None).into_owned().into(),
        None => outcome.body.clone(),
    };
    let attempts = outcome.head.attempts;
    Ok(Reply { attempts, ..reply(result, held, head.kind, head.is_typed) })
}

fn head_of(outcome: &Outcome) -> Result<ResultHead, CallError> {
    let any = AskedTypes { tasks: true, others: true };
    let text = std::str::from_utf8(&outcome.body).unwrap_or_default();
    ResultHead::read(text, any).map_err(CallError::protocol)
}

/// Answers a request about a task that is a call of the gateway's; `None` for any other task.
pub(super) async fn answer(
    request: &McpRequest<'_>,
    method: &'static str,
) -> Option<Result<Response<Body>, RpcError>> {
    let task = request.params.text("taskId").ok()?;
    let Some(TaskRef::OfCall { id }) = TaskSeal::of(request).open(&task) else { return None };
    Some(answer_about(request, method, id, &task).await)
}

async fn answer_about(
    request: &McpRequest<'_>,
    method: &'static str,
    id: CallId,
    task: &str,
) -> Result<Response<Body>, RpcError> {
    let McpRequest { http, caller, .. } = request;
    let calls = &http.app.calls;
    let view = calls.view(&caller.tenant, RecordKind::Call, id).await;
    let view = view.map_err(|refusal| refused(&refusal))?;
    // Rights may have changed since.
    if !caller.may_call(&view.server, &view.tool) {
        return Err(unknown_task().into());
    }
    let result = match method {
        method::TASKS_GET => state(request, &view, id, task).await?.to_string(),
        method::TASKS_CANCEL => {
            cancel(http, request, id).await?;
            COMPLETE.to_owned()
        }
        // The gateway's own tasks ask nothing, and answers to nothing are ignored.
        _ => COMPLETE.to_owned(),
    };
    let held = hold_response(&caller.tenant, result.len())?;
    let mut response = rpc::respond_result(request.id, &result);
    hold(&mut response, Some(held));
    Ok(response)
}

async fn cancel(http: &HttpRequest, request: &McpRequest<'_>, id: CallId) -> Result<(), RpcError> {
    let cancelled = http.app.calls.cancel(&request.caller.tenant, RecordKind::Call, id).await;
    match cancelled.map_err(|refusal| refused(&refusal))? {
        Cancelled::Ended(_) => Ok(()),
        Cancelled::RunsAt(_) if http.is_forwarded => Ok(()),
        Cancelled::RunsAt(peer) => {
            let path = format!("/v1/calls/{id}");
            let sent = cancel_at(&http.app, &peer, &path, &http.headers).await;
            sent.map_err(|_| RpcError::from(of_refusal(&Refusal::InProgress(id))))
        }
    }
}

/// Returns the state of a task, with its result if it has ended.
async fn state(
    request: &McpRequest<'_>,
    view: &CallView,
    id: CallId,
    task: &str,
) -> Result<Value, RpcError> {
    let caller = request.caller;
    let mut told = about(view, task);
    let set = |told: &mut Value, status: &str, member: &str, value: Value| {
        told["status"] = json!(status);
        told[member] = value;
    };
    let calls = &request.http.app.calls;
    match calls.result(&caller.tenant, RecordKind::Call, id, Instant::now()).await {
        Ok(Polled::Open(_)) => {}
        Ok(Polled::Ended(outcome)) if outcome.head.outcome == OutcomeKind::Error => {
            let error = error_json(rpc_error(&outcome.body));
            set(&mut told, "failed", "error", error);
        }
        Ok(Polled::Ended(outcome)) => match head_of(&outcome) {
            Ok(ResultHead { kind: ResultKind::InputRequired, .. }) | Err(_) => {
                let message = "the tool asks for input, which cannot be given to this task";
                set(&mut told, "failed", "error", json!({"code": 422, "message": message}));
            }
            Ok(head) => {
                let result = final_result(request, view, id, &outcome, head)?;
                set(&mut told, "completed", "result", result);
            }
        },
        Err(Refusal::Cancelled { .. }) => told["status"] = json!("cancelled"),
        Err(refusal @ (Refusal::OutcomeUnknown | Refusal::ResultGone)) => {
            let error = error_of(&refusal);
            set(&mut told, "failed", "error", error_json(error));
        }
        Err(refusal) => return Err(refused(&refusal)),
    }
    Ok(told)
}

fn final_result(
    request: &McpRequest<'_>,
    view: &CallView,
    id: CallId,
    outcome: &Outcome,
    head: ResultHead,
) -> Result<Value, RpcError> {
    let text = std::str::from_utf8(&outcome.body).unwrap_or_default();
    let toolset = request.caller.toolset.as_ref();
    let changed = toolset.and_then(|it| it.changed(&view.server, &view.tool));
    let id = id.to_string();
    let text = changed.map_or_else(|| text.into(), |it| it.result.apply(text, Some(&id)));
    let text = match head.is_typed {
        true => text.into_owned(),
        false => with_first_member(&text, "resultType", "\"complete\""),
    };
    let broken = || RpcError::from(CallError::protocol("the result is not JSON"));
    serde_json::from_str(&text).map_err(|_| broken())
}

/// Describes a task without its result.
fn about(view: &CallView, task: &str) -> Value {
    let time = |ms: i64| Timestamp::from_millisecond(ms).map(|time| time.to_string()).ok();
    let updated = view.ended.or(view.begun).unwrap_or(view.created);
    json!({
        "resultType": "complete",
        "taskId": task,
        "status": "working",
        "createdAt": time(view.created),
        "lastUpdatedAt": time(updated),
        "ttlMs": view.expires - view.created,
        "pollIntervalMs": POLL_INTERVAL_MS,
    })
}

fn error_json(error: ErrorObject) -> Value {
    let mut json = json!({"code": error.code, "message": String::from(error.message)});
    if let Some(data) = error.data {
        json["data"] = serde_json::from_str(data.get()).unwrap_or_default();
    }
    json
}

fn error_of(refusal: &Refusal) -> ErrorObject {
    let status = status_of_refusal(refusal);
    let data = json!({
        "code": refusal.code(),
        "retryable": refusal.is_retryable(),
        "executed": refusal.executed().as_str(),
    });
    ErrorObject {
        code: i64::from(status.as_u16()),
        message: refusal.to_string().into(),
        data: serde_json::value::to_raw_value(&data).ok(),
    }
}

fn of_refusal(refusal: &Refusal) -> CallError {
    match refusal {
        Refusal::NoSuchCall => unknown_task(),
        other => CallError::backend(error_of(other)),
    }
}

fn refused(refusal: &Refusal) -> RpcError {
    of_refusal(refusal).into()
}
