//! Reads `[servers.*]`: tells programs from URLs, and checks what settings say together.

use std::collections::BTreeMap;

use super::error::{ConfigError, Place};
use super::section::Settings;
use super::tree::{Node, Table};
use super::{Program, ServerConfig, Sharing, Sources, Transport, Upstream, reader};
use crate::common::ids::ServerId;

pub(super) fn servers(
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<ServerId, ServerConfig>, ConfigError> {
    super::named("servers", node, ServerId::parse, |path, node| server(path, node, sources))
}

fn server(path: &str, node: Node, sources: &Sources) -> Result<ServerConfig, ConfigError> {
    let (place, mut table) = node.into_table(path)?;
    let url = table.get("url");
    if let Some(url) = url.filter(|_| table.contains_key("command")) {
        return Err(url.place.error(format!("`{path}` has both `url` and `command`: give one")));
    }
    let (own, other, reason) = match url {
        Some(_) => (Upstream::SECTION, Program::SECTION, "a `command`, and this one has a `url`"),
        None => (Program::SECTION, Upstream::SECTION, "a `url`, and this one has none"),
    };
    if let Some((key, node)) = other.keys().find_map(|key| table.get_key_value(key)) {
        let problem = format!("`{path}.{key}` is for servers that have {reason}");
        return Err(node.place.error(problem));
    }
    let keys: Vec<_> = own.keys().chain(ServerConfig::SECTION.keys()).collect();
    reader::refuse_unknown(path, &table, &keys)?;
    let own = own.keys().filter_map(|key| table.remove_entry(key)).collect();
    let transport = transport(path, own, &place, sources)?;
    let sharing_is_explicit = table.contains_key("sharing");
    let server = reader::read(path, Node::table(table, place.clone()), sources)?;
    let server = ServerConfig { transport, sharing_is_explicit, ..server };
    match contradiction(&server) {
        Some(problem) => Err(place.error(format!("`{path}` {problem}"))),
        None => Ok(server),
    }
}

fn transport(
    path: &str,
    table: Table,
    place: &Place,
    sources: &Sources,
) -> Result<Transport, ConfigError> {
    let has_url = table.contains_key("url");
    let node = Node::table(table, place.clone());
    if has_url {
        let upstream: Upstream = reader::read(path, node, sources)?;
        let headers = upstream.headers.into_iter();
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        return Ok(Transport::Http(Upstream { headers, ..upstream }));
    }
    let mut program: Program = reader::read(path, node, sources)?;
    // "trunkline" must be found even if it is not on the PATH.
    if program.command.as_os_str() == "trunkline" {
        program.command = sources.own_program.clone();
    }
    Ok(Transport::Stdio(program))
}

/// Returns the first contradiction between settings.
fn contradiction(server: &ServerConfig) -> Option<String> {
    let ServerConfig { sharing, exclusive, instances, timeout, max_timeout, .. } = server;
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
