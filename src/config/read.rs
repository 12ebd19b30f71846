//! From the merged tree to the typed configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::{ConfigError, Place};
use super::secret::{self, Secret, expand};
use super::section::{Section, into_table};
use super::tree::{Node, Table, Value, fill};
use super::{Auth, Config, Origin, Server, Sources, oauth, tenants, values, web};
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
    "store",
    "limits",
    "tenants",
    "servers",
];

const AUTH_KEYS: &[&str] = &["anonymous_tenant", "hash_key", "oauth"];

const STORE_KEYS: &[&str] = &["url"];

const LIMITS_KEYS: &[&str] = &["shared"];

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
        Some(node) => auth(node, sources)?,
        None => (Auth { anonymous_tenant: None, hash_key: None, oauth: None }, false),
    };
    let listen = top.required("listen", values::address)?;
    if auth_is_built_in && !listen.ip().to_canonical().is_loopback() {
        return Err(ConfigError::OpenByDefault { listen });
    }
    let ops_listen = top.optional("ops_listen", values::address)?;
    if ops_listen.is_none() && !listen.ip().to_canonical().is_loopback() {
        warnings.push(
            "`ops_listen` is not set: whoever reaches `listen` can read /metrics, with the names of all servers and tools"
                .to_owned(),
        );
    }
    if servers.is_empty() {
        warnings.push("no servers are configured".to_owned());
    }
    let (env, dir) = (&sources.env, &sources.working_dir);
    let mut store = Section::open("store", top.required_table("store")?, STORE_KEYS)?;
    let store_url = store.required("url", |node| secret::store_url(node, env, dir))?;
    let shared_limits = match top.table("limits") {
        Some(node) => Section::open("limits", node, LIMITS_KEYS)?
            .optional("shared", |node| secret::cache_url(node, env, dir))?,
        None => None,
    };
    let tenants = match top.table("tenants") {
        Some(node) => tenants::tenants(node)?,
        None => BTreeMap::new(),
    };
    Ok(Config {
        listen,
        ops_listen,
        allowed_origins: top.required("allowed_origins", web::origins)?,
        allowed_hosts: top.required("allowed_hosts", web::hosts)?,
        session_keys: top.required("session_keys", |node| secret::keys(node, env, dir))?,
        header_timeout: top.required("header_timeout", values::duration)?,
        drain_delay: top.required("drain_delay", values::duration_or_zero)?,
        drain_timeout: top.required("drain_timeout", values::duration)?,
        max_body: top.required("max_body", values::size)?,
        max_response: top.required("max_response", values::size)?,
        auth,
        store_url,
        shared_limits,
        tenants,
        servers,
        origin,
        warnings,
    })
}

/// Also tells whether there is an anonymous tenant that nobody asked for.
fn auth(node: Node, sources: &Sources) -> Result<(Auth, bool), ConfigError> {
    let mut auth = Section::open("auth", node, AUTH_KEYS)?;
    let built_in = auth.is_built_in("anonymous_tenant");
    let anonymous_tenant = auth.optional("anonymous_tenant", values::tenant)?;
    let by_default = built_in && anonymous_tenant.is_some();
    let hash_key =
        auth.optional("hash_key", |node| secret::key(node, &sources.env, &sources.working_dir))?;
    let oauth = auth.table("oauth").map(oauth::oauth).transpose()?;
    Ok((Auth { anonymous_tenant, hash_key, oauth }, by_default))
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
    let sharing_is_explicit = !server.is_built_in("sharing");
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
        sharing_is_explicit,
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
