//! Calls a tool over plain HTTP: `POST /v1/servers/{server}/tools/{tool}`, or a toolset's tool:
//! `POST /v1/toolsets/{toolset}/tools/{tool}`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::Instant;

use super::asked::{Asked, give_back_request_id, request_id_header, tags};
use super::{call_events, kept};
use crate::backend::Backend;
use crate::backend::connection::call_notifications::NotificationSender;
use crate::common::decimal::push_millis;
use crate::common::ids::CallId;
use crate::events::{CallTags, TracedRequest};
use crate::gateway::{Call, CallError, Caller, Operation, RefusedCall, Reply, ToolName};
use crate::http::auth::Authenticated;
use crate::http::body;
use crate::http::error::{HttpError, call_failed};
use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, SERVER_TIMING, add_rate_status, asked_timeout_of, fairness_key,
    text_value, trace_of,
};
use crate::http::state::AppState;
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::RawObject;
use crate::protocol::mcp::method;
use crate::protocol::mcp::requests::CallMeta;
use crate::protocol::mcp::results::ResultKind;
use crate::protocol::mcp::trace::Trace;
use crate::registry::Server;
use crate::tenants::limits::{Admission, Cost};
use crate::toolsets::error::ToolsetError;
use crate::toolsets::{ChangedTool, Resolved};

/// The tool that a path names, of a server or of a toolset.
#[derive(Deserialize)]
pub(crate) struct ToolPath {
    #[serde(default)]
    server: String,
    toolset: Option<String>,
    tool: String,
}

impl ToolPath {
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn tool(&self) -> &str {
        &self.tool
    }
}

/// Calls a tool: the request's body is its arguments, the response's body its result.
pub(crate) async fn call_tool(
    State(app): State<Arc<AppState>>,
    caller: Result<Authenticated, HttpError>,
    path: Result<Path<ToolPath>, PathRejection>,
    request: Request<Body>,
) -> Response<Body> {
    let (id, arrived) = (CallId::generate(), Instant::now());
    let request_id = request_id_header(request.headers());
    let target = caller.and_then(|Authenticated(caller)| {
        let Path(ToolPath { server, toolset, tool }) = path?;
        let Some(toolset) = toolset else { return Ok((caller, server, tool)) };
        let server = format!("toolset:{toolset}");
        Ok((app.gateway.within(caller, &toolset)?, server, tool))
    });
    let mut response = match target {
        Ok((caller, server, tool)) => {
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
    /// The server, or the toolset.
    server: String,
    tool: String,
}

/// A call as it was read.
pub(super) struct ReadCall {
    pub(super) call: Call,
    pub(super) asked: Asked,
    /// The arguments as the caller sent them.
    pub(super) given: RawObject,
    /// The tool, if the caller's toolset changes it.
    pub(super) changed: Option<Arc<ChangedTool>>,
}

async fn make(app: &Arc<AppState>, target: Target, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let read = read_request(app, &target, &head.headers, body).await;
    let read = read.map_err(|error| {
        let traced = sample(app, trace_of(&head.headers).as_ref());
        (error, tags(&head.headers).unwrap_or_default(), traced)
    });
    // The call may wait for long.
    drop(head);
    match read {
        Ok((admission, read)) if read.asked.events => {
            answer_with_events(app.clone(), target, admission, read)
        }
        Ok((admission, read)) if read.asked.is_kept() => {
            // Boxed, as few calls are kept: the others need not move a future of its size.
            Box::pin(answer_kept(app, &target, admission, read)).await
        }
        Ok((admission, read)) => answer(app, &target, admission, &read).await,
        Err((error, tags, traced)) => {
            app.gateway.metrics().count_unresolved("", error.status_and_code().1);
            target.refuse(app, error, tags, traced)
        }
    }
}

async fn answer_kept(
    app: &AppState,
    target: &Target,
    admission: Admission,
    read: ReadCall,
) -> Response<Body> {
    let (tags, traced) = (read.call.tags.clone(), read.call.traced.clone());
    let answered = kept::call(app, &target.caller, admission, read).await;
    answered.unwrap_or_else(|error| target.refuse(app, error, tags, traced))
}

async fn answer(
    app: &AppState,
    target: &Target,
    admission: Admission,
    read: &ReadCall,
) -> Response<Body> {
    match app.gateway.call(&target.caller, admission, &read.call).await {
        Ok(mut reply) => {
            if let Some(changed) = &read.changed {
                let change = change_result(app, changed.clone(), reply.result, None);
                reply.result = Box::pin(change).await;
            }
            succeeded(reply, target.id, read.asked.tool_errors_fail)
        }
        Err(error) => call_failed(error.into(), target.id),
    }
}

/// Returns a result as the caller's toolset changes it. `kept` is the call's id, if it is kept.
pub(super) async fn change_result(
    app: &AppState,
    changed: Arc<ChangedTool>,
    result: Bytes,
    kept: Option<CallId>,
) -> Bytes {
    let len = result.len();
    let change = move || {
        let text = std::str::from_utf8(&result).expect("checked by the gateway");
        let kept = kept.map(|id| id.to_string());
        let changed = match changed.result.apply(text, kept.as_deref()) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(Bytes::from(text)),
        };
        changed.unwrap_or(result)
    };
    app.gateway.offload().run_if_long(len, change).await
}

fn answer_with_events(
    app: Arc<AppState>,
    target: Target,
    mut admission: Admission,
    mut read: ReadCall,
) -> Response<Body> {
    let rate_status = admission.take_rate_status();
    let unsent = target.caller.tenant.held.unsent.clone();
    let offload = app.gateway.offload().clone();
    let (sender, notifications) = NotificationSender::new(None, Some(unsent.clone()));
    read.call.listener = Some(sender);
    read.call.meta.progress = true;
    let id = (!read.asked.is_kept()).then_some(read.call.id);
    let answered = async move {
        match read.asked.is_kept() {
            true => answer_kept(&app, &target, admission, read).await,
            false => answer(&app, &target, admission, &read).await,
        }
    };
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
) -> Result<(Admission, ReadCall), HttpError> {
    let Target { id, arrived, caller, .. } = target;
    let (id, arrived) = (*id, *arrived);
    let CalledTool { server, name, changed } = target.find_tool(app)?;
    let asked = Asked::read(headers)?;
    let tags = tags(headers)?;
    let timeout = asked_timeout_of(&server, headers)?;
    let fairness_key = fairness_key(headers)?;
    let may_extend = asked.events && timeout.is_none();
    let max_timeout = server.config().max_timeout.filter(|_| may_extend);
    let deadline = arrived + timeout.unwrap_or(server.config().timeout);
    let body_deadline = deadline.min(arrived + body::TIMEOUT);
    let meta = CallMeta { trace: trace_of(headers), ..CallMeta::default() };
    let read = body::read_for(caller, headers, body, app.max_body, body_deadline);
    let (body, held) = read.await?;
    let cost = if asked.is_kept() { Cost::KeptCall } else { Cost::Call };
    let mut admission = caller.tenant.admit(cost).await.map_err(CallError::from)?;
    let tenant = &caller.tenant;
    let parsed = app.gateway.offload().in_place(&tenant.long_work, body.len(), || {
        // A tool without arguments can be called without a body.
        if body.is_empty() { Ok(RawObject::empty()) } else { RawObject::parse(body.clone()) }
    });
    let mut refuse = |error: CallError| error.with_rate_status(admission.take_rate_status());
    let given = parsed.await.map_err(|error| refuse(error.into()))?;
    let arguments = match &changed {
        None => given.clone(),
        Some(changed) => {
            let (len, arguments) = (given.as_str().len(), given.clone());
            let rewrite = || changed.rewrite_arguments(arguments);
            let rewritten = app.gateway.offload().in_place(&tenant.long_work, len, rewrite).await;
            rewritten.map_err(|error| refuse(ToolsetError::from(error).into()))?
        }
    };
    let name = match name {
        ToolName::Exposed(exposed) if asked.is_kept() => {
            let own = Box::pin(own_name(app, caller, &server, &exposed, deadline)).await;
            ToolName::Own(own.map_err(refuse)?)
        }
        name => name,
    };
    let traced = sample(app, meta.trace.as_ref());
    let call = Call {
        id,
        server,
        size: arguments.byte_len(),
        held: Some(held),
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
        traced,
        is_kept: false,
        begin_mark: None,
    };
    Ok((admission, ReadCall { call, asked, given, changed }))
}

/// The tool of a call, and its server.
struct CalledTool {
    server: Arc<Server>,
    name: ToolName,
    changed: Option<Arc<ChangedTool>>,
}

/// Returns the server's own name of a tool, by the name that it has where several servers are
/// shown.
async fn own_name(
    app: &AppState,
    caller: &Caller,
    server: &Arc<Server>,
    exposed: &str,
    deadline: Instant,
) -> Result<String, CallError> {
    let tools = match server.tools_now(&caller.tenant.id) {
        Some(tools) => tools,
        None => {
            let until = |_: &Backend| deadline;
            app.gateway.ready_or_start(caller, server.clone(), until).await?.1.tools.clone()
        }
    };
    let tool = tools.exposed_as(exposed).map(|tool| tool.name().to_owned());
    tool.ok_or_else(|| caller.tool_not_found(server.id().as_str(), exposed))
}

/// Returns the span of a call, if it is to be traced.
fn sample(app: &AppState, trace: Option<&Trace>) -> Option<Box<TracedRequest>> {
    app.gateway.sampler().sample(trace, method::TOOLS_CALL)
}

impl Target {
    fn find_tool(&self, app: &AppState) -> Result<CalledTool, CallError> {
        let (gateway, caller) = (&app.gateway, &self.caller);
        let Some(toolset) = &caller.toolset else {
            let (server, name) = (gateway.server(caller, &self.server)?, self.tool.clone());
            return Ok(CalledTool { server, name: ToolName::Own(name), changed: None });
        };
        let not_found = || caller.tool_not_found("", &self.tool);
        let server = |id: &str| gateway.server(caller, id).map_err(|_| not_found());
        match toolset.resolve(&self.tool).ok_or_else(not_found)? {
            Resolved::Changed(changed) => Ok(CalledTool {
                server: server(&changed.server)?,
                name: ToolName::Own(changed.tool.clone()),
                changed: Some(changed),
            }),
            Resolved::Exposed { server: id } => {
                let name = ToolName::Exposed(self.tool.clone());
                Ok(CalledTool { server: server(id)?, name, changed: None })
            }
        }
    }

    /// Tells the refusal to whoever listens to events, and returns its response.
    fn refuse(
        &self,
        app: &AppState,
        error: HttpError,
        tags: CallTags,
        traced: Option<Box<TracedRequest>>,
    ) -> Response<Body> {
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
            traced,
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
    // All of these, `Content-Length` included: growing on the way would hash each name again.
    headers.reserve(8);
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
    let mut text = String::with_capacity(48);
    text.push_str("queue;dur=");
    push_millis(&mut text, queue);
    text.push_str(", backend;dur=");
    push_millis(&mut text, backend);
    text
}
