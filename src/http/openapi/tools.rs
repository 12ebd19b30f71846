//! An operation for each tool that a caller may use, with the tool's own schemas.

use std::sync::Arc;

use serde_json::{Value, json};

use super::operation::Operation;
use super::operations::calls_tool;
use crate::gateway::Caller;
use crate::http::available::ServersWithTools;
use crate::http::rest::servers::granted;
use crate::http::state::AppState;
use crate::http::toolset_list;
use crate::toolsets::Toolset;

/// Definitions of all tools together; the document tells of tools that are left out.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Parsing a definition takes a multiple of its length.
const DEFINITION_LEN_MAX: usize = 256 * 1024;

/// Returns the tools that are known now, of the caller's servers. Starts no server.
pub(super) fn known(app: &AppState, caller: &Caller) -> ServersWithTools {
    let servers = app.gateway.servers(caller);
    servers.filter_map(|it| it.tools_now(&caller.tenant.id).map(|tools| (it, tools))).collect()
}

/// Returns the tools that are known now of each of the caller's toolsets.
pub(super) fn of_toolsets(
    app: &AppState,
    caller: &Caller,
) -> Vec<(Arc<Toolset>, ServersWithTools)> {
    let gateway = &app.gateway;
    let within = |toolset: Arc<Toolset>| {
        let caller = gateway.within(caller.clone(), toolset.id().as_str()).ok()?;
        Some((toolset, known(app, &caller)))
    };
    gateway.toolsets(caller).filter_map(within).collect()
}

/// Adds an operation for each tool.
pub(super) fn add(
    document: &mut Value,
    caller: &Caller,
    servers: &ServersWithTools,
    toolsets: &[(Arc<Toolset>, ServersWithTools)],
) {
    let (mut left, mut left_out, mut number) = (BYTES_MAX, 0, 0);
    let mut add = |path: &str, name: &str, definition: &str| {
        if definition.len() > left.min(DEFINITION_LEN_MAX) {
            left_out += 1;
            return;
        }
        left -= definition.len();
        number += 1;
        add_tool(document, path, name, definition, number);
    };
    for (server, tools) in servers {
        let path = format!("/v1/servers/{}", server.id());
        for tool in granted(caller, server.id().as_str(), tools) {
            add(&path, tool.name(), tool.definition().get());
        }
    }
    for (toolset, servers) in toolsets {
        let path = format!("/v1/toolsets/{}", toolset.id());
        for (name, definition) in toolset_list::tools(toolset, servers) {
            add(&path, &name, &definition);
        }
    }
    if left_out > 0 {
        document["info"]["description"] =
            json!(format!("{left_out} of your tools are left out: their definitions are too long"));
    }
}

/// Adds an operation; `path` is that of the server or toolset.
fn add_tool(document: &mut Value, path: &str, tool: &str, definition: &str, number: usize) {
    let Ok(definition) = serde_json::from_str::<Value>(definition) else { return };
    let mut schema = |member: &str| {
        let schema = definition.get(member).filter(|schema| schema.is_object())?;
        let name = format!("tool{number}_{member}");
        let place = format!("#/components/schemas/{name}");
        let mut schema = schema.clone();
        for of_document in ["$schema", "$id"] {
            schema.as_object_mut()?.remove(of_document);
        }
        move_references(&mut schema, &place);
        document["components"]["schemas"][name] = schema;
        Some(json!({"$ref": place}))
    };
    let (input, output) = (schema("inputSchema"), schema("outputSchema"));
    let owner = path.rsplit('/').next().unwrap_or_default();
    let path = format!("{path}/tools/{}", in_path(tool));
    let title = definition.get("title").and_then(Value::as_str).unwrap_or(tool);
    let name = format!("{owner}__{}_{number}", in_name(tool));
    let operation = Operation::new(("post", &path), "tools", &name, title);
    let required = definition.pointer("/inputSchema/required").and_then(Value::as_array);
    let needs_arguments = required.is_some_and(|required| !required.is_empty());
    let input = input.unwrap_or_else(|| json!({"type": "object"}));
    let operation = calls_tool(operation, (needs_arguments, input), output);
    let (_, method, mut described) = operation.into_parts();
    described["description"] = definition.get("description").cloned().unwrap_or_default();
    if !described["description"].is_string() {
        described["description"] = json!("");
    }
    document["paths"][path][method] = described;
}

/// Points references within a schema to the place in the document where the schema is now. Others
/// would lead out of the document, or nowhere: they are removed.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref") {
                match reference.strip_prefix('#') {
                    Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => {
                        *reference = format!("{place}{pointer}");
                    }
                    _ => drop(members.remove("$ref")),
                }
            }
            for nested in ["$id", "$anchor", "$dynamicAnchor", "$dynamicRef"] {
                if members.get(nested).is_some_and(Value::is_string) {
                    members.remove(nested);
                }
            }
            members.values_mut().for_each(|value| move_references(value, place));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| move_references(item, place)),
        _ => {}
    }
}

/// Returns a name as a part of a path: braces would be parameters.
fn in_path(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(byte));
            }
            byte => text += &format!("%{byte:02X}"),
        }
    }
    text
}

fn in_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_follow_their_schema() {
        let mut schema = json!({"$ref": "#", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}},
            "anyOf": [{"$ref": "other.json"}, {"$ref": "#name"}, {"$id": "x", "properties":
                {"$ref": {"type": "string"}}}]});
        move_references(&mut schema, "#/components/schemas/tool1");
        assert_eq!(
            schema,
            json!({"$ref": "#/components/schemas/tool1",
                "$defs": {"a": {"items": {"$ref": "#/components/schemas/tool1/$defs/a"}}},
                "anyOf": [{}, {}, {"properties": {"$ref": {"type": "string"}}}]})
        );
    }

    #[test]
    fn any_name_can_be_a_path() {
        assert_eq!(in_path("a/{b} ü"), "a%2F%7Bb%7D%20%C3%BC");
        assert_eq!(in_name("a/{b}"), "a__b_");
    }
}
