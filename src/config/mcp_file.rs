//! The servers of an MCP client's file: `{"mcpServers": {name: {"command": …}}}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::error::{ConfigError, Place};
use super::tree::{Node, Table, Value};

/// Keys that Trunkline uses. All others are for the MCP client.
const KEYS: [&str; 6] = ["command", "args", "env", "cwd", "url", "headers"];
/// Clients' names for stdio and Streamable HTTP.
const KINDS: [&str; 4] = ["stdio", "http", "streamable-http", "streamableHttp"];
/// Clients' names for the address of a server over HTTP.
const URL_KEYS: [&str; 3] = ["url", "serverUrl", "httpUrl"];

/// Adds the file's servers to the settings.
pub(super) fn add_servers(
    settings: &mut Table,
    path: &Arc<str>,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<(), ConfigError> {
    let empty = || Node::table(Table::new(), Place::BuiltIn);
    let known = settings.entry("servers".to_owned()).or_insert_with(empty);
    // The reader refuses `servers` if it is not a table.
    let Some(known) = known.table_mut() else {
        return Ok(());
    };
    for (name, node) in servers(path, text)? {
        let Some(server) = server(&name, node, warnings)? else {
            continue;
        };
        if let Some(other) = known.get(&name)
            && other.place != Place::BuiltIn
        {
            let problem = format!("server `{name}` is also at {}: rename one of them", other.place);
            return Err(server.place.error(problem));
        }
        known.insert(name, server);
    }
    Ok(())
}

fn servers(path: &Arc<str>, text: &str) -> Result<Table, ConfigError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let place = |offset| Place::in_file(path, text, offset);
    // Checks syntax and depth first, since `from_json` is recursive.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(text) {
        let place = Place::File { path: path.clone(), line: error.line() };
        return Err(place.error(format!("not valid JSON: {error}")));
    }
    let raw: &RawValue = serde_json::from_str(text).expect(CHECKED);
    let root = from_json(raw, &|part| place(part.as_ptr().addr() - text.as_ptr().addr()));
    let entries = match root.value {
        Value::Table(mut root) => root.remove("mcpServers").or_else(|| root.remove("servers")),
        _ => None,
    };
    let Some(servers) = entries else {
        return Err(place(0).error(
            "no `mcpServers` in it; the file should look like \
             {\"mcpServers\": {\"name\": {\"command\": \"npx\", \"args\": [\"…\"]}}}",
        ));
    };
    servers.into_table("mcpServers").map(|(_, servers)| servers)
}

/// Returns a server with the keys of the TOML file, or `None` if it is disabled.
fn server(name: &str, node: Node, warnings: &mut Vec<String>) -> Result<Option<Node>, ConfigError> {
    let (place, mut table) = node.into_table(&format!("mcpServers.{name}"))?;
    if let Some(disabled) = table.remove("disabled") {
        match disabled.value {
            Value::Flag(true) => return Ok(None),
            Value::Flag(false) => {}
            _ => {
                let problem = format!("`mcpServers.{name}.disabled` must be true or false");
                return Err(disabled.place.error(problem));
            }
        }
    }
    let kind = table.remove("type");
    let kind = kind.as_ref().map_or(Some("stdio"), Node::text);
    if !kind.is_some_and(|kind| KINDS.contains(&kind)) {
        return Err(place.error(format!(
            "server `{name}` must use stdio or Streamable HTTP: remove it, or skip it with \
             \"disabled\": true"
        )));
    }
    if let Some(url) = URL_KEYS.iter().find_map(|key| table.remove(*key)) {
        table.insert("url".to_owned(), url);
    }
    table.retain(|key, node| {
        let used = KEYS.contains(&key.as_str());
        if !used {
            warnings.push(format!("{}: `{key}` of server `{name}` is not used", node.place));
        }
        used
    });
    Ok(Some(Node::table(table, place)))
}

const CHECKED: &str = "checked by the JSON parser";

/// Returns a tree with the place of every value.
fn from_json(raw: &RawValue, place: &dyn Fn(&str) -> Place) -> Node {
    let text = raw.get();
    let value = match text.as_bytes()[0] {
        b'"' => Value::Text(serde_json::from_str(text).expect(CHECKED)),
        b't' | b'f' => Value::Flag(text == "true"),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).expect(CHECKED);
            Value::List(items.into_iter().map(|item| from_json(item, place)).collect())
        }
        b'{' => {
            let mut entries: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).expect(CHECKED);
            // Clients write null for a key that is not set.
            entries.retain(|_, raw| raw.get() != "null");
            let entry = |(key, raw)| (key, from_json(raw, place));
            Value::Table(entries.into_iter().map(entry).collect())
        }
        b'n' => Value::Other("null"),
        _ => Value::Other("a number"),
    };
    Node::new(value, place(text))
}
