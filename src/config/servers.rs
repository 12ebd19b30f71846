//! Reads `[servers.*]`: tells programs from URLs, and checks what settings say together.

use std::collections::BTreeMap;

use reqwest::header::{HeaderName, HeaderValue};

use super::error::{ConfigError, Place};
use super::section::Settings;
use super::tree::{Node, Table, Value};
use super::{Program, Secret, Server, Sharing, Sources, Template, Transport, Upstream, reader};
use crate::ids::ServerId;

/// Headers that the gateway sets, beside those that begin with `mcp-`.
const RESERVED_HEADERS: [&str; 7] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "transfer-encoding",
];

pub(super) fn servers(
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<ServerId, Server>, ConfigError> {
    super::named("servers", node, ServerId::parse, |path, node| server(path, node, sources))
}

fn server(path: &str, node: Node, sources: &Sources) -> Result<Server, ConfigError> {
    let (place, mut table) = node.into_table(path)?;
    let url = table.get("url");
    if let Some(url) = url.filter(|_| table.contains_key("command")) {
        return Err(url.place.error(format!("`{path}` has both `url` and `command`: give one")));
    }
    let (own, other, reason) = match url {
        Some(_) => (Upstream::SECTION, Program::SECTION, "a `command`, and this one has a `url`"),
        None => (Program::SECTION, Upstream::SECTION, "a `url`, and this one has none"),
    };
    if let Some((key, node)) = table.iter().find(|(key, _)| other.get(key).is_some()) {
        let problem = format!("`{path}.{key}` is for servers that have {reason}");
        return Err(node.place.error(problem));
    }
    let keys: Vec<_> = own.keys().chain(Server::SECTION.keys()).collect();
    reader::refuse_unknown(path, &table, &keys)?;
    let own: Table = own.keys().filter_map(|key| table.remove_entry(key)).collect();
    let transport = match own.contains_key("url") {
        true => Transport::Http(upstream(path, own, &place, sources)?),
        false => Transport::Stdio(program(path, own, &place, sources)?),
    };
    let sharing_is_explicit = table.contains_key("sharing");
    let server = reader::read(path, Node::new(Value::Table(table), place.clone()), sources)?;
    let server = Server { transport, sharing_is_explicit, ..server };
    match contradiction(&server) {
        Some(problem) => Err(place.error(format!("`{path}` {problem}"))),
        None => Ok(server),
    }
}

/// Returns the first contradiction between settings.
fn contradiction(server: &Server) -> Option<String> {
    let Server { sharing, exclusive, instances, timeout, max_timeout, .. } = server;
    if *sharing != Sharing::Tenant
        && let Some(name) = server.secrets().next()
    {
        return Some(format!(
            "refers to the tenants' secret `{name}`, and tenants share it: \
             set `sharing = \"tenant\"`"
        ));
    }
    if *exclusive && *instances > 1 {
        return Some(format!(
            "has `exclusive = true` and `instances = {instances}`, but no two instances may run \
             at once: remove `exclusive`, or set `instances = 1`"
        ));
    }
    max_timeout.filter(|most| most < timeout).map(|most| {
        format!(
            "has a `max_timeout` of {most:?}, which is less than its `timeout` of {timeout:?}: \
             progress can only extend `timeout`; set `timeout` for all calls"
        )
    })
}

fn program(
    path: &str,
    table: Table,
    place: &Place,
    sources: &Sources,
) -> Result<Program, ConfigError> {
    check_names(path, "env", &table, |name| {
        let is_name = !name.is_empty() && !name.contains(['=', '\0']);
        (!is_name).then_some("is not a variable's name: it must not be empty or contain `=`")
    })?;
    let node = Node::new(Value::Table(table), place.clone());
    let program: Program = reader::read(path, node, sources)?;
    // "trunkline" must be found even if it is not on the PATH.
    let is_own = program.command.as_os_str() == "trunkline";
    let command = if is_own { sources.own_program.clone() } else { program.command };
    Ok(Program { command, ..program })
}

fn upstream(
    path: &str,
    table: Table,
    place: &Place,
    sources: &Sources,
) -> Result<Upstream, ConfigError> {
    check_names(path, "headers", &table, |name| match name.parse::<HeaderName>() {
        Err(_) => Some("is not a header's name"),
        Ok(name) => {
            let is_ours =
                RESERVED_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("mcp-");
            is_ours.then_some("is a header that the protocol sets itself")
        }
    })?;
    let headers_place = table.get("headers").map_or(place, |node| &node.place).clone();
    let node = Node::new(Value::Table(table), place.clone());
    let upstream: Upstream = reader::read(path, node, sources)?;
    if let Some((name, _)) = upstream.headers.iter().find(|(_, value)| !is_header_value(value)) {
        let problem = format!("`{path}.headers.{name}` has characters that no header can have");
        return Err(headers_place.error(problem));
    }
    let lower = |(name, value): (String, Template)| (name.to_ascii_lowercase(), value);
    Ok(Upstream { headers: upstream.headers.into_iter().map(lower).collect(), ..upstream })
}

/// Refuses names of entries that `problem` finds something wrong with.
fn check_names(
    path: &str,
    key: &str,
    table: &Table,
    problem: impl Fn(&str) -> Option<&'static str>,
) -> Result<(), ConfigError> {
    let Some(node) = table.get(key) else { return Ok(()) };
    let path = format!("{path}.{key}");
    for (name, node) in node.clone().into_table(&path)?.1 {
        if let Some(problem) = problem(&name) {
            return Err(node.place.error(format!("`{path}.{name}` {problem}")));
        }
    }
    Ok(())
}

fn is_header_value(template: &Template) -> bool {
    let empty = |name: &str| (name.to_owned(), Secret::new(String::new()));
    let text = template.fill(&template.secrets().map(empty).collect());
    text.is_ok_and(|text| HeaderValue::from_str(text.expose()).is_ok())
}
