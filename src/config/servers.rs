//! Reads `[servers.*]`: tells programs from URLs, and checks what settings say together.

use std::collections::BTreeMap;
use std::path::Path;

use super::error::{ConfigError, Mistakes};
use super::mcp_file::ClientServers;
use super::section::Settings;
use super::tree::Node;
use super::{Program, ServerConfig, Sharing, Sources, Template, Transport, Upstream, reader};
use crate::common::ids::ServerId;

/// Reads all servers. A mistake in the file of an MCP client leaves out its server alone.
pub(super) fn servers(
    node: Node,
    sources: &Sources,
    clients: &mut ClientServers,
) -> Result<BTreeMap<ServerId, ServerConfig>, ConfigError> {
    let (_, table) = node.into_table("servers")?;
    let (mut servers, mut mistakes) = (BTreeMap::new(), Mistakes::default());
    for (name, node) in table {
        let id = match ServerId::parse(&name) {
            Ok(id) => id,
            Err(error) => {
                mistakes.add(node.place.error(error.to_string()));
                continue;
            }
        };
        match server(&format!("servers.{name}"), node, sources) {
            Ok(server) => drop(servers.insert(id, server)),
            Err(error) if error.is_of_file(&clients.path) => clients.leave_out(id, error),
            Err(error) => mistakes.add(error),
        }
    }
    mistakes.check()?;
    Ok(servers)
}

fn server(path: &str, node: Node, sources: &Sources) -> Result<ServerConfig, ConfigError> {
    let (place, mut table) = node.into_table(path)?;
    let url = table.get("url");
    if let Some(url) = url.filter(|_| table.contains_key("command")) {
        return Err(url.place.error(format!("`{path}` has both `url` and `command`: give one")));
    }
    let has_url = url.is_some();
    let (own, other, reason) = match url {
        Some(_) => (Upstream::SECTION, Program::SECTION, "a `command`, and this one has a `url`"),
        None => (Program::SECTION, Upstream::SECTION, "a `url`, and this one has none"),
    };
    let others = other.keys().filter(|key| !own.keys().any(|own| own == *key));
    if let Some((key, node)) = others.into_iter().find_map(|key| table.get_key_value(key)) {
        let problem = format!("`{path}.{key}` is for servers that have {reason}");
        return Err(node.place.error(problem));
    }
    let keys: Vec<_> = own.keys().chain(ServerConfig::SECTION.keys()).collect();
    let mut mistakes = reader::refuse_unknown(path, &table, &keys);
    table.retain(|key, _| keys.contains(&key.as_str()));
    let own = own.keys().filter_map(|key| table.remove_entry(key)).collect();
    let own = Node::table(own, place.clone());
    let transport = if has_url {
        reader::read(path, own, sources).map(Transport::Http)
    } else {
        reader::read(path, own, sources).map(|mut program: Program| {
            // "trunkline" must be found even if it is not on the PATH.
            if program.command.as_os_str() == "trunkline" {
                program.command = sources.own_program.clone();
            }
            Transport::Stdio(program)
        })
    };
    let transport = mistakes.take(transport);
    let sharing_is_explicit = table.contains_key("sharing");
    let server = reader::read(path, Node::table(table, place.clone()), sources);
    let server: Option<ServerConfig> = mistakes.take(server);
    let (transport, server) = mistakes.or(transport.zip(server))?;
    let server = ServerConfig { transport, sharing_is_explicit, ..server };
    match contradiction(&server) {
        Some(problem) => Err(place.error(format!("`{path}` {problem}"))),
        None => Ok(server),
    }
}

/// Returns the first contradiction between settings.
fn contradiction(server: &ServerConfig) -> Option<String> {
    let ServerConfig { sharing, exclusive, instances, timeout, .. } = server;
    if *sharing != Sharing::Tenant
        && let Some(name) = server.secrets().next()
    {
        return Some(format!(
            "refers to the tenants' secret `{name}`, and tenants share it: \
             set `sharing = \"tenant\"`"
        ));
    }
    if let Some(problem) = contradiction_of_oauth(server) {
        return Some(problem);
    }
    if server.sessionless && *sharing != Sharing::Session {
        return Some(
            "has `sessionless = true`, and its callers need no session: remove it, or set \
             `sharing = \"session\"`"
                .to_owned(),
        );
    }
    if *exclusive && *instances > 1 {
        return Some(format!(
            "has `exclusive = true` and `instances = {instances}`, but no two instances may run \
             at once: remove `exclusive`, or set `instances = 1`"
        ));
    }
    if let Some(most) = server.max_deadline.filter(|most| most < timeout) {
        return Some(format!(
            "has a `max_deadline` of {most:?}, which is less than its `timeout` of {timeout:?}: \
             set `timeout` to the deadline of callers that name none"
        ));
    }
    server.max_timeout.filter(|most| most < timeout).map(|most| {
        format!(
            "has a `max_timeout` of {most:?}, which is less than its `timeout` of {timeout:?}: \
             progress can only extend `timeout`; set `timeout` for all calls"
        )
    })
}

fn contradiction_of_oauth(server: &ServerConfig) -> Option<String> {
    let oauth = server.oauth()?;
    let is_program = server.url().is_none();
    if let Some(problem) = oauth.contradiction(is_program) {
        return Some(format!("has an `oauth` that {problem}"));
    }
    let is_of_each = server.needs_connection() || server.wants_caller_tokens();
    if is_of_each && server.sharing != Sharing::Tenant {
        return Some(
            "has tokens of each tenant or caller (`oauth.grant`), and tenants share it: set \
             `sharing = \"tenant\"`"
                .to_owned(),
        );
    }
    match &server.transport {
        Transport::Http(upstream) if upstream.headers.contains_key("authorization") => {
            return Some("has `oauth` and `headers.Authorization`: give one".to_owned());
        }
        Transport::Stdio(program) => {
            let both = oauth.variable.as_ref().filter(|name| program.env.contains_key(*name))?;
            return Some(format!("has `oauth.variable = \"{both}\"` and `env.{both}`: give one"));
        }
        Transport::Http(_) => {}
    }
    None
}

/// Warns of each server whose `env` has secrets of tenants that other processes can read.
///
/// Processes of the same user can, unless they have a `sandbox`. Each tenant has a process of its
/// own, so those of the server itself count. `own_program` reads nothing.
pub(super) fn exposed_secrets(
    servers: &BTreeMap<ServerId, ServerConfig>,
    own_program: &Path,
) -> Vec<String> {
    let programs = || servers.iter().filter_map(|(id, server)| Some((id, program(server)?)));
    let mut warnings = vec![];
    for (id, program) in programs().filter(|(_, program)| has_secrets(program)) {
        let can_read = |other: &&Program| {
            other.sandbox.is_none() && other.user == program.user && other.command != own_program
        };
        let readers = programs().filter(|(_, other)| can_read(other));
        let readers: Vec<&str> = readers.map(|(id, _)| id.as_str()).collect();
        if !readers.is_empty() {
            warnings.push(format!(
                "`servers.{id}.env` has secrets of tenants. Processes of the same user without a \
                 `sandbox` can read them: those of `{}`",
                readers.join("`, `")
            ));
        }
    }
    warnings
}

/// Gives every program the variables of Trunkline's environment that it does not set itself.
pub(super) fn pass_env(
    servers: &mut BTreeMap<ServerId, ServerConfig>,
    names: &[String],
    env: &[(String, String)],
) {
    let passed: Vec<_> = env.iter().filter(|(name, _)| names.contains(name)).collect();
    for server in servers.values_mut() {
        let Transport::Stdio(program) = &mut server.transport else { continue };
        for (name, value) in &passed {
            program.env.entry(name.clone()).or_insert_with(|| Template::plain(value));
        }
    }
}

fn program(server: &ServerConfig) -> Option<&Program> {
    match &server.transport {
        Transport::Stdio(program) => Some(program),
        Transport::Http(_) => None,
    }
}

fn has_secrets(program: &Program) -> bool {
    program.env.values().flat_map(Template::secrets).next().is_some()
}
