//! From the merged tree to the typed configuration.

use std::collections::BTreeMap;

use super::error::{ConfigError, Place};
use super::section::Section;
use super::tree::{Node, Table, Value};
use super::{
    Auth, Config, Origin, Server, Sources, exposed, oauth, replicas, secret, servers, tenants,
    values, web,
};
use crate::common::ids::ServerId;

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
    "replicas",
    "secrets",
    "tenants",
    "servers",
];

const AUTH_KEYS: &[&str] = &["anonymous_tenant", "hash_key", "oauth"];

const STORE_KEYS: &[&str] = &["url"];

const LIMITS_KEYS: &[&str] = &["shared"];

const SECRETS_KEYS: &[&str] = &["keys"];

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
        Some(node) => servers::servers(node, server_defaults, sources)?,
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
    warnings.extend(exposed::warnings(&servers, &sources.own_program));
    let (env, dir) = (&sources.env, &sources.working_dir);
    let mut store = Section::open("store", top.required_table("store")?, STORE_KEYS)?;
    let store_url = store.required("url", |node| secret::store_url(node, env, dir))?;
    let shared_limits = match top.table("limits") {
        Some(node) => Section::open("limits", node, LIMITS_KEYS)?
            .optional("shared", |node| secret::cache_url(node, env, dir))?,
        None => None,
    };
    let session_keys = top.required("session_keys", |node| secret::keys(node, env, dir))?;
    let replicas = match top.table("replicas") {
        Some(node) => replicas::replicas(node, !session_keys.is_empty())?,
        None => None,
    };
    let secret_keys = match top.table("secrets") {
        Some(node) => Section::open("secrets", node, SECRETS_KEYS)?
            .required("keys", |node| secret::keys(node, env, dir))?,
        None => vec![],
    };
    if secret_keys.is_empty()
        && let Some((id, name)) = needs_secret(&servers)
    {
        return Err(ConfigError::NoSecretKeys { server: id.clone(), name: name.to_owned() });
    }
    let tenants = match top.table("tenants") {
        Some(node) => tenants::tenants(node)?,
        None => BTreeMap::new(),
    };
    Ok(Config {
        listen,
        ops_listen,
        allowed_origins: top.required("allowed_origins", web::origins)?,
        allowed_hosts: top.required("allowed_hosts", web::hosts)?,
        session_keys,
        header_timeout: top.required("header_timeout", values::duration)?,
        drain_delay: top.required("drain_delay", values::duration_or_zero)?,
        drain_timeout: top.required("drain_timeout", values::duration)?,
        max_body: top.required("max_body", values::size)?,
        max_response: top.required("max_response", values::size)?,
        auth,
        store_url,
        shared_limits,
        replicas,
        secret_keys,
        tenants,
        servers,
        origin,
        warnings,
    })
}

/// A server that needs a secret of its tenants, and its name.
fn needs_secret(servers: &BTreeMap<ServerId, Server>) -> Option<(&ServerId, &str)> {
    servers.iter().find_map(|(id, server)| Some((id, server.secrets().next()?)))
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
