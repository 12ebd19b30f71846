//! From the merged tree to the typed configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::{ConfigError, Place};
use super::secret::{self, Secret, expand};
use super::section::{Section, into_table};
use super::tree::{Node, Table, Value, fill};
use super::{Auth, Config, Origin, Server, Sources, values, web};
use crate::ids::ServerId;

const KEYS: &[&str] = &[
    "listen",
    "ops_listen",
    "allowed_origins",
    "allowed_hosts",
    "session_keys",
    "header_timeout",
    "drain_delay",
    "drain_timeout",
    "max_body",
    "max_response",
    "auth",
    "servers",
];

const AUTH_KEYS: &[&str] = &["anonymous_tenant"];

const SERVER_KEYS: &[&str] = &[
    "command",
    "args",
    "env",
    "cwd",
    "instances",
    "max_in_flight",
    "sharing",
    "max_sessions",
    "idle_timeout",
    "start",
    "timeout",
    "start_timeout",
];

/// Checks all settings. What a server does not say is in `server_defaults`.
pub(super) fn config(
    settings: Table,
    server_defaults: &Table,
    sources: &Sources,
    origin: Origin,
    mut warnings: Vec<String>,
) -> Result<Config, ConfigError> {
    let mut top = Section::open("", Node::new(Value::Table(settings), Place::BuiltIn), KEYS)?;
    let servers = match top.table("servers") {
        Some(node) => servers(node, server_defaults, sources)?,
        None => BTreeMap::new(),
    };
    let (auth, auth_is_built_in) = match top.table("auth") {
        Some(node) => auth(node)?,
        None => (Auth { anonymous_tenant: None }, false),
    };
    let listen = top.required("listen", values::address)?;
    if auth_is_built_in && !listen.ip().to_canonical().is_loopback() {
        return Err(ConfigError::OpenByDefault { listen });
    }
    if auth.anonymous_tenant.is_none() {
        warnings.push(
            "`auth.anonymous_tenant` is not set, and this version knows no keys: every request will be refused"
                .to_owned(),
        );
    }
    if servers.is_empty() {
        warnings.push("no servers are configured".to_owned());
    }
    Ok(Config {
        listen,
        ops_listen: top.optional("ops_listen", values::address)?,
        allowed_origins: top.required("allowed_origins", web::origins)?,
        allowed_hosts: top.required("allowed_hosts", web::hosts)?,
        session_keys: top.required("session_keys", |node| {
            secret::keys(node, &sources.env, &sources.working_dir)
        })?,
        header_timeout: top.required("header_timeout", values::duration)?,
        drain_delay: top.required("drain_delay", values::duration_or_zero)?,
        drain_timeout: top.required("drain_timeout", values::duration)?,
        max_body: top.required("max_body", values::size)?,
        max_response: top.required("max_response", values::size)?,
        auth,
        servers,
        origin,
        warnings,
    })
}

/// Also tells whether there is an anonymous tenant that nobody asked for.
fn auth(node: Node) -> Result<(Auth, bool), ConfigError> {
    let mut auth = Section::open("auth", node, AUTH_KEYS)?;
    let built_in = auth.is_built_in("anonymous_tenant");
    let anonymous_tenant = auth.optional("anonymous_tenant", values::tenant)?;
    let by_default = built_in && anonymous_tenant.is_some();
    Ok((Auth { anonymous_tenant }, by_default))
}

fn servers(
    node: Node,
    defaults: &Table,
    sources: &Sources,
) -> Result<BTreeMap<ServerId, Server>, ConfigError> {
    let (_, table) = into_table("servers", node)?;
    let mut servers = BTreeMap::new();
    for (name, node) in table {
        let id = ServerId::parse(&name).map_err(|error| node.place.error(error.to_string()))?;
        servers.insert(id, server(&format!("servers.{name}"), node, defaults, sources)?);
    }
    Ok(servers)
}

fn server(
    path: &str,
    node: Node,
    defaults: &Table,
    sources: &Sources,
) -> Result<Server, ConfigError> {
    let (place, mut table) = into_table(path, node)?;
    if let Some(url) = table.get("url") {
        return Err(url.place.error(format!(
            "`{path}.url`: servers over HTTP are not supported by this version; give a `command` instead"
        )));
    }
    fill(&mut table, defaults);
    let mut server = Section::open(path, Node::new(Value::Table(table), place), SERVER_KEYS)?;
    let command = server
        .optional("command", values::path)?
        .ok_or_else(|| server.missing("command", "name the program to start, such as \"npx\""))?;
    server.required("instances", values::instances)?;
    let env = server.table("env");
    Ok(Server {
        command: own_or_other(command, sources),
        args: server.optional("args", values::arguments)?.unwrap_or_default(),
        env: match env {
            Some(node) => variables(&format!("{path}.env"), node, sources)?,
            None => BTreeMap::new(),
        },
        cwd: server.optional("cwd", values::path)?,
        max_in_flight: server.required("max_in_flight", values::in_flight)?,
        sharing: server.required("sharing", values::sharing)?,
        max_sessions: server.required("max_sessions", values::sessions)?,
        idle_timeout: server.required("idle_timeout", values::duration)?,
        start: server.required("start", values::start)?,
        timeout: server.required("timeout", values::duration)?,
        start_timeout: server.required("start_timeout", values::duration)?,
    })
}

/// "trunkline" must also be found where it is not on the PATH.
fn own_or_other(command: PathBuf, sources: &Sources) -> PathBuf {
    if command.as_os_str() == "trunkline" { sources.own_program.clone() } else { command }
}

fn variables(
    path: &str,
    node: Node,
    sources: &Sources,
) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let (_, table) = into_table(path, node)?;
    let mut variables = BTreeMap::new();
    for (name, node) in table {
        let error = |problem: &str| node.place.error(format!("`{path}.{name}` {problem}"));
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(error("is not a variable's name: it must not be empty or contain `=`"));
        }
        // The value is not shown: it may be a secret of the wrong type.
        let text = node
            .text()
            .ok_or_else(|| error(&format!("must be a text, and it is {}", node.kind())))?;
        let secret = expand(text, &sources.env, &sources.working_dir).map_err(|e| error(&e))?;
        variables.insert(name, secret);
    }
    Ok(variables)
}
