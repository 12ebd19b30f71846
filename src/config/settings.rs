//! The settings outside of servers and tenants, and checks of the whole configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::IgnoredAny;

use super::error::{ConfigError, Mistakes, Place};
use super::kind::{self, Kind};
use super::mcp_file::{ClientServers, LeftOut};
use super::oauth::PUBLIC_URL;
use super::secret::{CACHE_URL, KEY, KEYS, STORE_URL, is_variable_name};
use super::section::section;
use super::store_place::StateDir;
use super::tree::{Node, Table};
use super::web::{HOSTS, ORIGINS};
use super::{
    Host, OAuth, Otel, Secret, ServerConfig, Sources, ToolsetConfig, WebOrigin, reader, servers,
    tenants, toolsets,
};
use crate::common::ids::{ServerId, TenantName, ToolsetId};
use crate::common::policy::Policy;

section! {
    /// Settings at the top of the file, before the first table.
    pub struct Config in "" {
        /// Address at which callers are served.
        listen: SocketAddr = "127.0.0.1:8080", kind::ADDRESS;
        /// Address at which the pages for operators, such as `/metrics`, are served. Unset:
        /// `listen`.
        ops_listen: Option<SocketAddr>, kind::ADDRESS;
        /// Origins whose web pages may call. Pages of this machine (localhost and loopback
        /// addresses) always may; those of all other origins are refused.
        allowed_origins: Vec<WebOrigin> = [], ORIGINS;
        /// Names (`Host`) that the gateway may be called by, beside those of this machine. If
        /// empty: no others on a loopback address, all others elsewhere.
        allowed_hosts: Vec<Host> = [], HOSTS;
        /// Keys that seal the texts that MCP clients carry: tokens of legacy sessions, and state
        /// that modern servers want back. The first key seals and all open, so put a new key before
        /// the old one. Replicas need the same keys. If empty: a random key, and sealed texts end
        /// with this process.
        session_keys: Vec<Secret> = [], KEYS;
        /// Address at which browsers reach the gateway, such as `"https://gateway.example"`. Needed
        /// where tenants connect themselves to servers (OAuth). Unset: nobody can. Server cards
        /// name it, too. Unset: they name the `Host` of the request.
        public_url: Option<String>, PUBLIC_URL;
        /// Time for the head of a request to arrive. Connections without a request are closed after
        /// two minutes, and after 12 s if no request on them has authenticated.
        header_timeout: Duration = "10s", kind::DURATION;
        /// Connections that callers may have at once from one address (of IPv6, from one /64
        /// network); more are closed at once. Unset: no bound. Behind a load balancer, all callers
        /// have its address.
        max_connections_per_peer: Option<u32>, Kind::Count(PEER_CONNECTIONS_MAX);
        /// After SIGTERM: time to report "not ready" while still serving, so that load balancers
        /// notice.
        drain_delay: Duration = "0s", kind::DELAY;
        /// After `drain_delay`: time for calls in flight to end.
        drain_timeout: Duration = "30s", kind::DURATION;
        /// The largest request body.
        max_body: usize = "1MiB", kind::SIZE;
        /// The largest answer of a server.
        max_response: usize = "16MiB", kind::SIZE;
        /// Whether clients of MCP 2024-11-05 are served over its transport, HTTP with server-sent
        /// events: at `GET /sse` all servers together, at `GET /sse/{server}` one.
        legacy_sse: bool = false, kind::FLAG;
        /// Authentication of callers.
        auth: Auth = {}, Kind::Section(&Auth::SECTION);
        /// The database.
        store: StoreConfig = {}, Kind::Section(&StoreConfig::SECTION);
        /// Limits on top of those of each tenant.
        limits: LimitsConfig = {}, Kind::Section(&LimitsConfig::SECTION);
        /// Connections between replicas. Unset: this gateway stands alone.
        replicas: Option<Replicas>, Kind::Section(&Replicas::SECTION);
        /// Calls that are kept.
        calls: CallsConfig = {}, Kind::Section(&CallsConfig::SECTION);
        /// Bounds of batches.
        batch: BatchConfig = {}, Kind::Section(&BatchConfig::SECTION);
        /// Logs, beside the gateway's own on standard error.
        log: LogConfig = {}, Kind::Section(&LogConfig::SECTION);
        /// Settings of all servers.
        defaults: Defaults = {}, Kind::Section(&Defaults::SECTION);
        /// Keys for the secrets of tenants.
        secrets: SecretKeys = {}, Kind::Section(&SecretKeys::SECTION);
        /// One table per tenant, by its id.
        #[serde(skip)]
        tenants: BTreeMap<TenantName, Policy> = {}, TABLES;
        /// One table per server, by its id.
        #[serde(skip)]
        servers: BTreeMap<ServerId, ServerConfig> = {}, TABLES;
        /// One table per toolset, by its id.
        #[serde(skip)]
        toolsets: BTreeMap<ToolsetId, ToolsetConfig> = {}, TABLES;
    }
    with {
        /// Full path of the file that the configuration is from, or `built-in defaults`.
        origin: String,
        /// From the environment: where traces, metrics and the call log are exported to.
        otel: Otel,
        /// Settings that are allowed, but probably not meant. To be logged.
        warnings: Vec<String>,
        /// Servers of an MCP client's file that are not started.
        left_out: Vec<LeftOut>,
    }
}

/// More than a gateway has connections.
const PEER_CONNECTIONS_MAX: u32 = 1 << 16;
/// Tables that are read apart from the others.
const TABLES: Kind = kind::of::<IgnoredAny>("a table of tables");

section! {
    /// Callers send a key or a token as `Authorization: Bearer …`.
    pub struct Auth in "auth" {
        /// Tenant of callers without a key: a configured one, or the built-in `local`, which has no
        /// limits. Unset: every request needs a key. To listen beyond this machine, a configuration
        /// file or the environment must name it.
        anonymous_tenant: Option<TenantName>, kind::TENANT;
        /// Key with which callers' keys are hashed before they are stored. If it is not in the
        /// database, whoever can write to the database still cannot make keys. If it changes, no
        /// key made before is valid. Unset: the store makes one of its own.
        hash_key: Option<Secret>, KEY;
        /// An identity provider whose tokens are accepted, too. Unset: none.
        oauth: Option<OAuth>, Kind::Section(&OAuth::SECTION);
    }
}

section! {
    /// The database of tenants, keys, usage and the audit log.
    pub struct StoreConfig in "store" {
        /// A file, or a PostgreSQL database, such as
        /// `"postgres://trunkline:${DB_PASSWORD}@db.example/trunkline"`. Several replicas need
        /// PostgreSQL. A relative path starts at the directory of the configuration file. In
        /// `TRUNKLINE_STORE__URL` it starts at the working directory. Without a configuration file,
        /// the default is in the user's state directory: `$XDG_STATE_HOME/trunkline/`, or
        /// `~/.local/state/trunkline/`.
        url: Secret = "sqlite://trunkline.db", STORE_URL;
    }
    with {
        /// The file of a relative path as versions before this one found it: from the working
        /// directory. `None` if that is the same file.
        earlier_url: Option<Secret>,
        /// The directory of the file, if it is the user's state directory.
        state_dir: Option<StateDir>,
    }
}

section! {
    /// Limits on top of those of each tenant.
    pub struct LimitsConfig in "limits" {
        /// A Valkey or Redis server that holds the rates and in-flight counts of all replicas,
        /// under keys and on a channel that begin with `trunkline:`. Unset: each replica has its
        /// own.
        shared: Option<Secret>, CACHE_URL;
        /// The most bytes of answers that callers of one tenant have not taken yet, at this
        /// replica. Never less than twice `max_response`.
        unsent_per_tenant: usize = "32MiB", kind::SIZE;
        /// The most unsent bytes of all tenants together. A quarter is kept for tenants that hold
        /// little. Never less than twice `unsent_per_tenant`.
        unsent: usize = "128MiB", kind::SIZE;
    }
}

section! {
    /// Several gateways behind one load balancer reach each other here. All need the same
    /// `session_keys` and the same store.
    pub struct Replicas in "replicas" {
        /// Address at which this replica listens for the others.
        listen: SocketAddr, kind::ADDRESS;
        /// Address at which others reach this replica. Unset: `listen`; if that is `0.0.0.0` or
        /// `[::]`, the first address of this machine's own name that is not a loopback one, with
        /// the port of `listen`.
        address: Option<SocketAddr>, kind::PEER_ADDRESS;
    }
}

section! {
    /// Calls that are kept: those with an `Idempotency-Key`, and those answered asynchronously.
    /// The numbers are for each tenant.
    pub struct CallsConfig in "calls" {
        /// Time for which a call is kept, from its acceptance.
        ttl: Duration = "24h", kind::DURATION;
        /// The most calls that are kept. Further ones with a new key are refused with 429: no call
        /// is forgotten early.
        max_records: u32 = 1000000, Kind::Count(100_000_000);
        /// The most bytes of answers that are kept. Beyond it the oldest are evicted; their calls
        /// are still known to have run.
        max_bytes: u64 = "256MiB", kind::BYTES;
        /// With SQLite, whether a commit waits for the disk. `"normal"` keeps every call if the
        /// gateway is killed; `"full"` also if the machine loses power, for some milliseconds more
        /// a call. PostgreSQL has a setting of its own, `synchronous_commit`.
        synchronous: Synchronous = "normal", kind::of::<Synchronous>("\"normal\" or \"full\"");
        /// Networks that callbacks may reach although they are not public, such as
        /// `["10.1.0.0/16"]`. All other private, loopback and link-local addresses are refused.
        callback_networks: Vec<IpNet> = [], kind::NETWORKS;
    }
}

/// The durability of a commit, with SQLite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    Normal,
    Full,
}

section! {
    /// Bounds of `POST /v1/batch`.
    pub struct BatchConfig in "batch" {
        /// The most calls of one batch.
        max_calls: u32 = 1000, Kind::Count(10_000);
        /// The results that one batch holds, for its answer and for references to them. A result
        /// beyond it is left out of the answer.
        max_results: usize = "32MiB", kind::SIZE;
    }
}

section! {
    /// The call log: one line of JSON for each call.
    pub struct LogConfig in "log" {
        /// The calls that are logged: those that failed or were refused, none, or all.
        calls: LoggedCalls = "failures", LOGGED_CALLS;
        /// The file of the call log, which SIGHUP opens again. A relative path starts at the
        /// working directory. Unset: standard error.
        file: Option<PathBuf>, kind::TEXT;
    }
}

/// The calls that the call log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoggedCalls {
    Off,
    Failures,
    All,
}

const LOGGED_CALLS: Kind = kind::of::<LoggedCalls>("\"off\", \"failures\" or \"all\"");

section! {
    /// Settings of all servers that are programs, those of MCP clients' files included.
    pub struct Defaults in "defaults" {
        /// Variables of Trunkline's environment that every program sees, if they are set, such as
        /// `["HTTPS_PROXY", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"]`. A server's own `env` wins.
        pass_env: Vec<String> = [], VARIABLE_NAMES;
    }
}

const VARIABLE_NAMES: Kind = Kind::Value(
    "a list of names of environment variables, such as [\"HTTPS_PROXY\"]",
    |node, _| {
        kind::list(node, |item| match item.text() {
            Some(name) if is_variable_name(name) => Ok(name.into()),
            _ => Err(format!("is {}", item.show())),
        })
    },
);

section! {
    /// Encryption of the secrets that tenants store.
    pub struct SecretKeys in "secrets" {
        /// Keys that encrypt tenants' secrets in the store. The first key encrypts and all decrypt.
        /// `trunkline secret rotate` encrypts all secrets with the first key again. Arguments and
        /// answers of calls that are kept are encrypted too, if there are keys.
        keys: Vec<Secret> = [], KEYS;
    }
}

/// Reads and checks the merged settings.
pub(super) fn config(
    mut settings: Table,
    sources: &Sources,
    clients: &mut ClientServers,
) -> Result<Config, ConfigError> {
    let auth = settings.get_mut("auth").and_then(Node::table_mut);
    let anonymous = auth.and_then(|auth| auth.get("anonymous_tenant"));
    let is_open_by_default = anonymous.is_some_and(|node| node.place == Place::BuiltIn);
    let tenant_places = tenants::places(&settings);
    let mut mistakes = Mistakes::default();
    let servers = settings.remove("servers").map(|node| servers::servers(node, sources, clients));
    let servers = servers.and_then(|servers| mistakes.take(servers));
    let tenants = settings.remove("tenants").map(|node| tenants::tenants(node, sources));
    let tenants = tenants.and_then(|tenants| mistakes.take(tenants));
    let toolsets = settings.remove("toolsets").map(|node| toolsets::toolsets(node, sources));
    let toolsets = toolsets.and_then(|toolsets| mistakes.take(toolsets));
    // An empty table is as good as none.
    settings
        .retain(|key, node| key != "replicas" || node.table_mut().is_none_or(|it| !it.is_empty()));
    let replicas_place = settings.get("replicas").map(|node| node.place.clone());
    let config = reader::read("", Node::table(settings, Place::BuiltIn), sources);
    let config = mistakes.take(config);
    let mut config: Config = mistakes.or(config)?;
    config.servers = servers.unwrap_or_default();
    servers::pass_env(&mut config.servers, &config.defaults.pass_env, &sources.env);
    config.tenants = tenants.unwrap_or_default();
    config.toolsets = toolsets.unwrap_or_default();

    let is_local = config.listen.ip().to_canonical().is_loopback();
    if is_open_by_default && !is_local {
        return Err(ConfigError::OpenByDefault { listen: config.listen });
    }
    if let Some(place) = replicas_place.filter(|_| config.session_keys.is_empty()) {
        return Err(place.error(
            "`replicas.listen` needs `session_keys`, by which replicas know each other: set \
             `session_keys = [\"${file:/run/secrets/session-key}\"]`, the same in all of them",
        ));
    }
    let needs_secret = |(id, server): (&ServerId, &ServerConfig)| {
        Some((id.clone(), server.secrets().next()?.to_owned()))
    };
    if config.secrets.keys.is_empty()
        && let Some((server, name)) = config.servers.iter().find_map(needs_secret)
    {
        return Err(ConfigError::NoSecretKeys { server, name });
    }
    let mut servers = config.servers.iter();
    if let Some((id, _)) = servers.find(|(_, server)| server.needs_connection()) {
        let missing = match (&config.public_url, config.secrets.keys.is_empty()) {
            (None, _) => Some("`public_url = \"https://…\"`, the address of the gateway"),
            (_, true) => Some("`keys = [\"${file:/run/secrets/secrets-key}\"]` under `[secrets]`"),
            _ => None,
        };
        if let Some(setting) = missing {
            return Err(ConfigError::NoConnections { server: id.clone(), setting });
        }
    }
    let mut servers = config.servers.iter();
    if config.auth.oauth.is_none()
        && let Some((id, _)) = servers.find(|(_, server)| server.wants_caller_tokens())
    {
        return Err(ConfigError::NoCallerTokens { server: id.clone() });
    }
    if config.ops_listen.is_none() && !is_local {
        config.warnings.push(
            "`ops_listen` is not set: whoever reaches `listen` can read /metrics, \
             with the names of all servers and tools"
                .to_owned(),
        );
    }
    if config.servers.is_empty() {
        config.warnings.push("no servers are configured".to_owned());
    } else {
        let warnings = tenants::matching_nothing(&config, &tenant_places);
        config.warnings.extend(warnings);
    }
    config.warnings.extend(servers::exposed_secrets(&config.servers, &sources.own_program));
    let of_toolsets = toolsets::warnings(&config.toolsets, &config.servers, &config.tenants);
    config.warnings.extend(of_toolsets);
    Ok(config)
}
