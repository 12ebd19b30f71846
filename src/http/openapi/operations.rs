//! Every operation of callers, and those of load balancers and monitoring.

use serde_json::{Value, json};

use super::mcp_operations;
use super::operation::{Describer, Operation, object, text};
use crate::calls::CallView;
use crate::calls::batch::request::BatchText;
use crate::http::admin::reports::{UsageParams, UsageView};
use crate::http::headers::TIMEOUT_MS_MAX;
use crate::http::rest::calls::{ListParams, ResultParams};
use crate::http::rest::connect::Connection;
use crate::http::rest::limits::LimitsView;
use crate::http::rest::server_view::ServerView;
use crate::http::rest::toolsets::ToolsetView;
use crate::tenants::SecretView;

pub(super) fn all(describer: &mut Describer) -> Vec<Operation> {
    let mut all = tools(describer);
    all.extend(calls(describer));
    all.extend(batches(describer));
    all.extend(tenant(describer));
    all.extend(mcp_operations::all());
    all.extend(operations());
    all
}

const PROBLEM: &str = "application/problem+json";
pub(super) const EVENTS: &str = "text/event-stream";
const FAILED: &str = "A tool's own failure, with `Trunkline-Tool-Errors: fail`; or a problem";
const FAIL_ASKED: &str = "Answer a tool's own failure with 422";

fn problem() -> Value {
    json!({"$ref": "#/components/schemas/Problem"})
}

/// Adds to an operation that calls a tool the headers that say how, and the answers.
pub(super) fn calls_tool(
    operation: Operation,
    (needs_arguments, input): (bool, Value),
    output: Option<Value>,
) -> Operation {
    let operation = operation
        .header(
            "Trunkline-Timeout-Ms",
            "The deadline of the call; without it the server's `timeout`",
            json!({"type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX}),
        )
        .header(
            "Trunkline-Callback",
            "With `respond-async`: the URL that is told of the end",
            json!({"type": "string", "format": "uri", "maxLength": 2048}),
        );
    let result_text = "The tool's result, also its own failure; or events";
    let operation = with_common_headers(operation, "The call with this key runs once")
        .reads(needs_arguments, input)
        .answers(200, result_text, result(output))
        .answers_with(200, result_text, EVENTS, text())
        .answers(202, "Accepted: ask `/v1/calls/{id}/result`", accepted())
        .answers(422, FAILED, result(None))
        .answers_with(422, FAILED, PROBLEM, problem());
    [200, 202, 422].into_iter().fold(with_async_headers(operation), |operation, status| {
        operation.sends(status, "Trunkline-Call-Id", "The id of the call", text())
    })
}

/// Adds the headers that calls and batches have in common.
fn with_common_headers(operation: Operation, key: &str) -> Operation {
    let text = |max: u32| json!({"type": "string", "minLength": 1, "maxLength": max});
    let label = "[!-+.-~-]{1,64}";
    operation
        .header("Idempotency-Key", key, idempotency_key())
        .header(
            "Prefer",
            "`respond-async`: answer with 202 at once; `wait=N`: after N seconds",
            json!({"type": "string", "examples": ["respond-async", "respond-async, wait=5"]}),
        )
        .header("Trunkline-Tool-Errors", FAIL_ASKED, json!({"type": "string", "enum": ["fail"]}))
        .header(
            "Trunkline-Labels",
            "Kept with the call: `run=7,task=a`",
            json!({"type": "string", "pattern": format!("^{label}( *, *{label}){{0,7}}$")}),
        )
        .header("Trunkline-Fairness-Key", "Calls of a tenant take turns by it", text(64))
        .header("X-Request-Id", "Kept with the call, and given back", json!({"type": "string"}))
}

/// Adds the headers of an answer that says that the rest comes later.
fn with_async_headers(operation: Operation) -> Operation {
    operation.sends(202, "Location", "The path of the record", text()).sends(
        202,
        "Retry-After",
        "Seconds until it is worth asking",
        json!({"type": "integer"}),
    )
}

/// Visible characters.
fn idempotency_key() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-~][!-~]*$"})
}

/// Returns the schema of a tool's result, with `structuredContent` as its server defines it.
fn result(structured: Option<Value>) -> Value {
    let structured = structured.unwrap_or_else(|| json!({}));
    json!({
        "type": "object",
        "properties": {
            "content": {"type": "array", "items": {"type": "object"}},
            "structuredContent": structured,
            "isError": {"type": "boolean"},
        },
    })
}

fn outcomes() -> Value {
    object(&json!({"results": {"type": "array", "items": outcome()}}))
}

/// Returns the schema of one call's outcome in a batch.
fn outcome() -> Value {
    let (count, time) = (json!({"type": "integer"}), json!({"type": "number"}));
    let mut outcome = object(&json!({
        "id": text(), "call_id": text(), "status": count, "attempts": count,
        "outcome": {"type": "string", "enum": ["ok", "tool_error", "error"]},
        "executed": {"type": "string", "enum": ["yes", "no", "unknown"]},
        "queue_ms": time, "backend_ms": time,
    }));
    outcome["properties"]["result"] = result(None);
    outcome["properties"]["problem"] = problem();
    outcome
}

/// Returns the answer of a call that is not over.
fn accepted() -> Value {
    let times = json!({"type": ["string", "null"], "format": "date-time"});
    object(&json!({"id": text(), "state": text(), "expires": times}))
}

fn tools(describer: &mut Describer) -> Vec<Operation> {
    let servers = describer.list_of::<ServerView>("servers");
    let server = describer.sent::<ServerView>();
    let definitions = object(&json!({"tools": {"type": "array", "items": {"type": "object"}}}));
    let call = Operation::new(
        ("post", "/v1/servers/{server}/tools/{tool}"),
        "tools",
        "call_tool",
        "Calls a tool: the body is its arguments, the answer its result",
    );
    let batch = describer.read::<BatchText<'_>>();
    let toolsets = describer.list_of::<ToolsetView>("toolsets");
    let call_of_toolset = Operation::new(
        ("post", "/v1/toolsets/{toolset}/tools/{tool}"),
        "tools",
        "call_toolset_tool",
        "Calls a tool of a toolset: the body is its arguments, the answer its result",
    );
    vec![
        Operation::new(("get", "/v1/toolsets"), "tools", "list_toolsets", "Lists your toolsets")
            .answers(200, "The toolsets", toolsets),
        Operation::new(
            ("get", "/v1/toolsets/{toolset}/tools"),
            "tools",
            "list_toolset_tools",
            "Lists a toolset's tools, under their names there",
        )
        .answers(200, "The tools", definitions.clone()),
        calls_tool(call_of_toolset, (false, json!({"type": "object"})), None),
        Operation::new(("get", "/v1/servers"), "servers", "list_servers", "Lists your servers")
            .answers(200, "The servers, also those that are down", servers),
        Operation::new(("get", "/v1/servers/{server}"), "servers", "show_server", "Shows a server")
            .answers(200, "The server", server),
        Operation::new(
            ("get", "/v1/servers/{server}/tools"),
            "servers",
            "list_tools",
            "Lists a server's tools, as the server defines them",
        )
        .answers(200, "The tools", definitions),
        calls_tool(call, (false, json!({"type": "object"})), None),
        with_async_headers(
            with_common_headers(
                Operation::new(("post", "/v1/batch"), "tools", "run_batch", "Makes many calls"),
                "Each of the calls runs once",
            )
            .reads(true, batch)
            .answers(200, "All outcomes", outcomes())
            .answers(202, "Accepted: ask `/v1/batches/{id}/result`", accepted())
            .answers(422, FAILED, outcomes())
            .answers_with(422, FAILED, PROBLEM, problem())
            .answers_with(200, "All outcomes", "application/x-ndjson", text()),
        ),
    ]
}

fn calls(describer: &mut Describer) -> Vec<Operation> {
    let call = describer.sent::<CallView>();
    let list =
        json!({"calls": {"type": "array", "items": call}, "next": {"type": ["string", "null"]}});
    let (asked, waits) = (describer.read::<ListParams>(), describer.read::<ResultParams>());
    vec![
        Operation::new(("get", "/v1/calls"), "calls", "list_calls", "Lists your kept calls")
            .query(&asked)
            .answers(200, "The calls, the latest first", object(&list)),
        Operation::new(("get", "/v1/calls/{id}"), "calls", "show_call", "Shows a kept call")
            .answers(200, "The call", call.clone()),
        Operation::new(
            ("get", "/v1/calls/{id}/explain"),
            "calls",
            "explain_call",
            "Explains how the gateway decided about a call that failed, was refused or was slow",
        )
        .answers(200, "The limits, the queue, the attempts", json!({"type": "object"})),
        Operation::new(("delete", "/v1/calls/{id}"), "calls", "cancel_call", "Cancels a kept call")
            .answers(200, "The call", call.clone()),
        Operation::new(
            ("get", "/v1/calls/{id}/result"),
            "calls",
            "call_result",
            "Answers as a kept call was or will be answered",
        )
        .query(&waits)
        .header("Trunkline-Tool-Errors", FAIL_ASKED, json!({"type": "string", "enum": ["fail"]}))
        .answers(200, "The tool's result", result(None))
        .answers(422, FAILED, result(None))
        .answers_with(422, FAILED, PROBLEM, problem())
        .answers(202, "The call is not over", call),
    ]
}

/// The record of an asynchronous batch is that of a call without server and tool.
fn batches(describer: &mut Describer) -> Vec<Operation> {
    let batch = object(&json!({"id": text(), "state": text()}));
    let waits = describer.read::<ResultParams>();
    vec![
        Operation::new(("get", "/v1/batches/{id}"), "calls", "show_batch", "Shows a kept batch")
            .answers(200, "The batch", batch.clone()),
        Operation::new(("delete", "/v1/batches/{id}"), "calls", "cancel_batch", "Cancels a batch")
            .answers(200, "The batch", batch.clone()),
        Operation::new(
            ("get", "/v1/batches/{id}/result"),
            "calls",
            "batch_result",
            "Answers as a kept batch was or will be answered",
        )
        .query(&waits)
        .answers(200, "All outcomes", outcomes())
        .answers(422, FAILED, outcomes())
        .answers_with(422, FAILED, PROBLEM, problem())
        .answers(202, "The batch is not over", batch),
    ]
}

fn tenant(describer: &mut Describer) -> Vec<Operation> {
    let limits = describer.sent::<LimitsView<'_>>();
    let usage = usage_report(describer);
    let mut params = describer.read::<UsageParams>();
    if let Some(Value::Object(params)) = params.get_mut("properties") {
        // For administrators.
        params.remove("tenant");
    }
    let secrets = describer.list_of::<SecretView>("secrets");
    let secret = describer.sent::<SecretView>();
    let connection = describer.sent::<Connection>();
    vec![
        Operation::new(
            ("get", "/v1/limits"),
            "tenant",
            "show_limits",
            "Shows your limits, and where you stand",
        )
        .answers(200, "The limits", limits),
        Operation::new(("get", "/v1/usage"), "tenant", "show_usage", "Reports your usage")
            .query(&params)
            .answers(200, "The usage", usage),
        Operation::new(
            ("get", "/v1/servers/{server}/secrets"),
            "tenant",
            "list_secrets",
            "Lists your secrets for a server, without values",
        )
        .answers(200, "The secrets", secrets),
        Operation::new(
            ("put", "/v1/servers/{server}/secrets/{name}"),
            "tenant",
            "set_secret",
            "Sets a secret",
        )
        .reads(true, secret_value())
        .answers(200, "The secret, without its value", secret),
        Operation::new(
            ("delete", "/v1/servers/{server}/secrets/{name}"),
            "tenant",
            "remove_secret",
            "Removes a secret",
        )
        .answers(200, "No secret", removed_secret()),
        Operation::new(
            ("get", "/v1/servers/{server}/connect"),
            "tenant",
            "show_connection",
            "Shows whether you are connected to a server that wants OAuth, and how you connect",
        )
        .answers(200, "The connection", connection.clone()),
        Operation::new(
            ("delete", "/v1/servers/{server}/connect"),
            "tenant",
            "disconnect",
            "Ends your connection to a server, and has its tokens revoked",
        )
        .answers(200, "No connection", connection),
    ]
}

pub(super) fn usage_report(describer: &mut Describer) -> Value {
    let usage = describer.sent::<UsageView>();
    let time = json!({"type": "string", "format": "date-time"});
    object(&json!({"from": time, "to": time, "usage": {"type": "array", "items": usage}}))
}

pub(super) fn secret_value() -> Value {
    let mut value = object(&json!({"value": text()}));
    value["additionalProperties"] = json!(false);
    value
}

pub(super) fn removed_secret() -> Value {
    object(&json!({"server": text(), "name": text(), "set": {"type": "boolean"}}))
}

fn operations() -> Vec<Operation> {
    let plain = "text/plain";
    vec![
        Operation::new(("get", "/healthz"), "operations", "healthz", "Says whether it is alive")
            .answers_with(200, "Alive", plain, text()),
        Operation::new(("get", "/readyz"), "operations", "readyz", "Says whether it is ready")
            .answers_with(200, "Ready", plain, text())
            .answers_with(503, "Not ready", plain, text()),
        Operation::new(("get", "/metrics"), "operations", "metrics", "Metrics for Prometheus")
            .answers_with(200, "The metrics", plain, text()),
        Operation::new(("get", "/openapi.json"), "operations", "openapi", "Returns this document")
            .answers(200, "The document", json!({"type": "object"})),
        Operation::new(("get", "/docs"), "operations", "docs", "Shows this document").answers_with(
            200,
            "The page",
            "text/html",
            text(),
        ),
        Operation::new(("get", "/docs/docs.js"), "operations", "docs_script", "Script of the page")
            .answers_with(200, "The script", "text/javascript", text()),
        Operation::new(("get", "/docs/docs.css"), "operations", "docs_style", "Style of the page")
            .answers_with(200, "The style", "text/css", text()),
    ]
}
