//! Spans, by the conventions for MCP: one of the caller's request, and one for each attempt.

use jiff::Timestamp;

use super::attributes::{Attributes, Resource, SERVER, TENANT};
use super::message::Message;
use super::queue::Record;
use crate::common::ids::TenantId;
use crate::events::call::EndedRequest;
use crate::events::explanation::AttemptRecord;
use crate::events::{CallOutcome, EndedCall, Event, TracedRequest};
use crate::protocol::mcp::method;
use crate::protocol::mcp::trace::{SpanContext, SpanId};

const KIND_SERVER: u64 = 2;
const KIND_CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;
/// Says that it is known whether the parent is of another process.
const HAS_IS_REMOTE: u32 = 1 << 8;
const IS_REMOTE: u32 = 1 << 9;

/// Writes an export request. Returns it with the number of its spans.
pub(super) fn request(resource: &Resource, records: Vec<Record>) -> (Vec<u8>, u64) {
    let mut count = 0;
    let request = resource.request(|scope| {
        for record in &records {
            match record {
                Record::Event(Event::CallEnded(call)) => {
                    let Some(traced) = &call.traced else { continue };
                    count += 1 + call.explanation.attempts.len() as u64;
                    write_call(scope, call, traced);
                }
                Record::Event(Event::RequestEnded(request)) => {
                    count += 1;
                    scope.message(2, |span| write_request(span, request));
                }
                _ => {}
            }
        }
    });
    (request, count)
}

/// The members that every span has.
struct Head<'a> {
    context: SpanContext,
    parent: Option<SpanId>,
    is_parent_remote: bool,
    state: Option<&'a str>,
    name: &'a str,
    kind: u64,
    start: u64,
    end: u64,
}

impl Head<'_> {
    fn write(&self, span: &mut Message) {
        span.bytes(1, &self.context.trace_id.to_be_bytes());
        span.bytes(2, &self.context.span_id.get().to_be_bytes());
        self.state.iter().for_each(|state| span.text(3, state));
        if let Some(parent) = self.parent {
            span.bytes(4, &parent.get().to_be_bytes());
        }
        span.text(5, self.name);
        span.integer(6, self.kind);
        span.fixed64(7, self.start);
        span.fixed64(8, self.end);
        let is_remote = if self.is_parent_remote { IS_REMOTE } else { 0 };
        let flags = u32::from(self.context.flags());
        span.fixed32(16, flags | HAS_IS_REMOTE | is_remote);
    }
}

pub(super) fn nanos(time: Timestamp) -> u64 {
    u64::try_from(time.as_nanosecond()).unwrap_or_default()
}

fn write_call(scope: &mut Message, call: &EndedCall, traced: &TracedRequest) {
    let name = span_name(call, traced);
    let error = error_type(call);
    let start = nanos(call.arrived);
    scope.message(2, |span| {
        head_of_request(traced, &name, start, start + call.took.as_nanos() as u64).write(span);
        let mut attributes = Attributes { of: span, field: 9 };
        target(&mut attributes, call, traced);
        front(&mut attributes, &call.tenant, traced);
        attributes.text("trunkline.call.id", &call.id.to_string());
        attributes.text("trunkline.outcome", call.outcome.as_str());
        attributes.text("trunkline.executed", call.executed);
        attributes.number("trunkline.attempts", call.attempts.into());
        if let Some(id) = &call.tags.request_id {
            attributes.text("trunkline.request.id", id);
        }
        if !call.tags.labels.is_empty() {
            attributes.texts("trunkline.labels", &call.tags.labels);
        }
        write_queue(span, call, start);
        write_error(span, error.as_deref());
    });
    let attempts = &call.explanation.attempts;
    for (number, attempt) in attempts.iter().enumerate() {
        // An answer that could not be read as a result is the last one.
        let is_last = number + 1 == attempts.len();
        let of_call = error.as_deref().filter(|_| is_last);
        write_attempt(scope, call, traced, attempt, attempt.code.or(of_call));
    }
}

/// Writes when the call left the queue, and how long it had waited.
fn write_queue(span: &mut Message, call: &EndedCall, start: u64) {
    span.message(11, |event| {
        event.fixed64(1, start + call.queue.as_nanos() as u64);
        event.text(2, "trunkline.queue");
        let mut attributes = Attributes { of: event, field: 3 };
        attributes.double("trunkline.queue.seconds", call.queue.as_secs_f64());
        if let Some(wait) = call.explanation.wait {
            attributes.number("trunkline.queue.ahead.own", wait.ahead.own.into());
            attributes.number("trunkline.queue.ahead.others", wait.ahead.others.into());
        }
    });
}

fn write_attempt(
    scope: &mut Message,
    call: &EndedCall,
    traced: &TracedRequest,
    attempt: &AttemptRecord,
    error: Option<&str>,
) {
    let Some(span_id) = attempt.span else { return };
    let start = nanos(call.arrived) + attempt.after.as_nanos() as u64;
    scope.message(2, |span| {
        let head = Head {
            context: traced.span.with_span(span_id),
            parent: Some(traced.span.span_id),
            is_parent_remote: false,
            state: traced.state.as_deref(),
            name: &span_name(call, traced),
            kind: KIND_CLIENT,
            start,
            end: start + attempt.took.as_nanos() as u64,
        };
        head.write(span);
        let mut attributes = Attributes { of: span, field: 9 };
        target(&mut attributes, call, traced);
        attributes.number("trunkline.instance", attempt.instance as u64);
        attributes.text("mcp.protocol.version", attempt.peer.version.as_str());
        transport(&mut attributes, attempt.peer.is_http);
        write_error(span, error);
    });
}

fn write_request(span: &mut Message, request: &EndedRequest) {
    let EndedRequest { tenant, traced, arrived, took, code } = request;
    let start = nanos(*arrived);
    head_of_request(traced, traced.method, start, start + took.as_nanos() as u64).write(span);
    let mut attributes = Attributes { of: span, field: 9 };
    attributes.text("mcp.method.name", traced.method);
    front(&mut attributes, tenant, traced);
    let code = code.map(|code| code.to_string());
    if let Some(code) = &code {
        attributes.text("rpc.response.status_code", code);
    }
    write_error(span, code.as_deref());
}

fn head_of_request<'a>(traced: &'a TracedRequest, name: &'a str, start: u64, end: u64) -> Head<'a> {
    Head {
        context: traced.span,
        parent: traced.parent,
        is_parent_remote: true,
        state: traced.state.as_deref(),
        name,
        kind: KIND_SERVER,
        start,
        end,
    }
}

/// Returns the name of a call's spans. A tool that no server was asked for may be invented: names
/// of spans must stay few.
fn span_name(call: &EndedCall, traced: &TracedRequest) -> String {
    let is_known = traced.method == method::TOOLS_CALL && !call.explanation.attempts.is_empty();
    if is_known { format!("{} {}", traced.method, call.target) } else { traced.method.to_owned() }
}

fn target(attributes: &mut Attributes<'_>, call: &EndedCall, traced: &TracedRequest) {
    attributes.text("mcp.method.name", traced.method);
    if traced.method == method::TOOLS_CALL {
        attributes.text("gen_ai.operation.name", "execute_tool");
        // A call that was refused before it was read has no name yet.
        if *call.target != *traced.method {
            attributes.text("gen_ai.tool.name", &call.target);
        }
    }
    attributes.text(SERVER, &call.server);
    if let Some(code) = call.backend_code {
        attributes.text("rpc.response.status_code", &code.to_string());
    }
}

/// Writes how the caller spoke with the gateway.
fn front(attributes: &mut Attributes<'_>, tenant: &TenantId, traced: &TracedRequest) {
    attributes.text(TENANT, tenant.name().as_str());
    if let Some(rpc) = &traced.rpc {
        attributes.text("jsonrpc.request.id", &rpc.id);
        if let Some(version) = rpc.version {
            attributes.text("mcp.protocol.version", version.as_str());
        }
    }
    transport(attributes, true);
}

fn transport(attributes: &mut Attributes<'_>, is_http: bool) {
    attributes.text("network.transport", if is_http { "tcp" } else { "pipe" });
    if is_http {
        attributes.text("network.protocol.name", "http");
    }
}

/// Returns the class of a call's error: the code of the server's JSON-RPC error, or the gateway's.
pub(super) fn error_type(call: &EndedCall) -> Option<String> {
    match (call.backend_code, call.outcome) {
        (Some(code), _) => Some(code.to_string()),
        (None, CallOutcome::ToolError) => Some("tool_error".to_owned()),
        (None, _) => call.code.map(str::to_owned),
    }
}

fn write_error(span: &mut Message, error: Option<&str>) {
    let Some(error) = error else { return };
    Attributes { of: span, field: 9 }.text("error.type", error);
    span.message(15, |status| status.integer(3, STATUS_ERROR));
}
