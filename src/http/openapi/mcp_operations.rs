//! The operations of MCP clients.

use serde_json::{Value, json};

use super::operation::{Operation, object, text};
use super::operations::EVENTS;

/// The header that names a legacy session.
const SESSION: &str = "Mcp-Session-Id";

pub(super) fn all() -> Vec<Operation> {
    let mut all = vec![];
    for (path, one) in [
        ("/mcp", ""),
        ("/mcp/{server}", "_of_server"),
        ("/mcp/t/{toolset}", "_of_toolset"),
        ("/toolsets/{toolset}/mcp", "_of_toolset_by_name"),
        ("/servers/{server}/mcp", "_at_server"),
    ] {
        let operation = |method: &'static str, verb: &str, summary: &str| {
            Operation::new((method, path), "MCP", &format!("mcp_{verb}{one}"), summary)
                .fails_with("application/json", rpc_error())
        };
        let session = "The session, of a legacy client";
        all.push(
            operation("post", "post", "Speaks MCP (Streamable HTTP)")
                .header(SESSION, session, text())
                .header("MCP-Protocol-Version", "The version that the client speaks", text())
                .reads(true, rpc_message())
                .answers(200, "The response, or a stream of events", json!({"type": "object"}))
                .answers_with(200, "The response, or a stream of events", EVENTS, text())
                .answers_empty(202, "The notification was taken"),
        );
        all.push(
            operation("get", "listen", "Listens in a legacy session")
                .required_header(SESSION, session, text())
                .answers_with(200, "The events", EVENTS, text()),
        );
        all.push(
            operation("delete", "end", "Ends a legacy session")
                .required_header(SESSION, session, text())
                .answers_empty(204, "The session has ended"),
        );
    }
    for (path, one) in
        [("/sse", ""), ("/sse/{server}", "_of_server"), ("/servers/{server}/sse", "_at_server")]
    {
        let name = format!("mcp_sse{one}");
        let says = "Opens a stream for a client of MCP 2024-11-05 (`legacy_sse`)";
        let operation = Operation::new(("get", path), "MCP", &name, says);
        all.push(operation.answers_with(200, "The events", EVENTS, text()));
    }
    let says = "Takes a message of a client of MCP 2024-11-05 (`legacy_sse`)";
    all.push(
        Operation::new(("post", "/messages"), "MCP", "mcp_sse_message", says)
            .query(&object(&json!({"id": text()})))
            .reads(true, rpc_message())
            .answers_with(202, "Taken; the answer comes on the stream", "text/plain", text()),
    );
    for (path, name, says) in [
        ("/.well-known/ai-catalog.json", "catalog", "Lists the endpoints of anonymous callers"),
        ("/server-card", "server_card", "Describes `/mcp`, to anonymous callers"),
        ("/mcp/{server}/server-card", "server_card_of_server", "Describes a server, alike"),
        ("/mcp/t/{toolset}/server-card", "server_card_of_toolset", "Describes a toolset, alike"),
    ] {
        let kind = match name {
            "catalog" => "application/ai-catalog+json",
            _ => "application/mcp-server-card+json",
        };
        let operation = Operation::new(("get", path), "MCP", name, says);
        all.push(operation.answers_with(200, "The document", kind, json!({"type": "object"})));
    }
    for (path, one) in [
        ("", ""),
        ("/mcp", "_of_mcp"),
        ("/mcp/{server}", "_of_server"),
        ("/mcp/t/{toolset}", "_of_toolset"),
        ("/toolsets/{toolset}/mcp", "_of_toolset_by_name"),
        ("/servers/{server}/mcp", "_at_server"),
    ] {
        let path = format!("/.well-known/oauth-protected-resource{path}");
        let name = format!("resource_metadata{one}");
        all.push(
            Operation::new(("get", &path), "MCP", &name, "OAuth metadata (RFC 9728)").answers(
                200,
                "The metadata",
                json!({"type": "object"}),
            ),
        );
    }
    all
}

/// Returns the schema of a message of JSON-RPC. MCP says which methods and parameters there are.
fn rpc_message() -> Value {
    json!({
        "type": "object",
        "required": ["jsonrpc"],
        "properties": {
            "jsonrpc": {"type": "string", "enum": ["2.0"]},
            "id": {"type": ["string", "number"]},
            "method": text(),
            "params": {"type": "object"},
        },
    })
}

/// Returns the schema of an error of JSON-RPC. Whatever is wrong with the HTTP request around the
/// message is a problem instead.
fn rpc_error() -> Value {
    let error = json!({
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": {"type": "integer"}, "message": text(), "data": {}},
    });
    let id = json!({"type": ["string", "number", "null"]});
    object(&json!({"jsonrpc": {"type": "string", "enum": ["2.0"]}, "id": id, "error": error}))
}
