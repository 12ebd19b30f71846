//! What a gateway is told: built-in defaults, the TOML file, an MCP client's file, the environment and
//! the command line, in this order, the later winning. All is checked here, once; whoever holds a
//! [`Config`] need not ask again.
//!
//! - `tree`: settings without types, each with its place
//! - `variables`, `mcp_file`: the environment and the client's file, put into the tree
//! - `read`, `section`, `values`, `web`, `oauth`, `replicas`, `tenants`, `servers`: from the tree to the types below and in `server`
//! - `difference`: what is other in one than in another
//! - `secret`: what must not be printed, and `${…}`; `template`: what only tenants know

mod difference;
mod error;
mod exposed;
mod mcp_file;
mod oauth;
mod read;
mod replicas;
mod secret;
mod section;
mod server;
mod servers;
mod template;
mod tenants;
#[cfg(test)]
mod tests;
mod tree;
mod values;
mod variables;
mod web;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::ids::{ServerId, TenantId};
use crate::common::policy::Policy;

pub use difference::Difference;
pub use error::{ConfigError, Place};
pub use oauth::OAuth;
pub use replicas::Replicas;
pub use secret::Secret;
pub use server::{
    CALL_MAX, ChildLimits, Program, Recycle, Retry, Sandbox, Server, Sharing, Start, Transport,
    Upstream,
};
pub use template::{MissingSecret, Secrets, Template};
pub use web::{Host, WebOrigin};

/// The defaults, which are also the configuration where there is no file. Commented, to be shown.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// Read when no other file is named.
const FILE_NAME: &str = "trunkline.toml";

/// Where a configuration comes from.
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--mcp-config`.
    pub mcp_file: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// What relative paths are relative to.
    pub working_dir: PathBuf,
    /// This executable, which is the server that a command "trunkline" means.
    pub own_program: PathBuf,
}

impl Sources {
    /// The files it comes from, or would if they were there.
    pub fn files(&self) -> Vec<PathBuf> {
        let own = self.file.as_deref().unwrap_or(Path::new(FILE_NAME));
        [Some(own), self.mcp_file.as_deref()]
            .into_iter()
            .flatten()
            .map(|path| self.working_dir.join(path))
            .collect()
    }
}

/// A configuration in which every value is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where callers are served.
    pub listen: SocketAddr,
    /// Where operators are served, if not there too.
    pub ops_listen: Option<SocketAddr>,
    /// The sites beyond this machine whose web pages may call.
    pub allowed_origins: Vec<WebOrigin>,
    /// The names beyond loopback ones that the gateway may be called by. Empty: on loopback none, elsewhere any.
    pub allowed_hosts: Vec<Host>,
    /// What seals session tokens: the first seals, all open. Empty: a random key.
    pub session_keys: Vec<Secret>,
    /// How long a request's head may take to arrive.
    pub header_timeout: Duration,
    /// How long to be "not ready" but serving before the drain. May be zero.
    pub drain_delay: Duration,
    /// How long calls under way may take to end.
    pub drain_timeout: Duration,
    /// The largest request body, in bytes.
    pub max_body: usize,
    /// The largest answer of a server, in bytes.
    pub max_response: usize,
    /// Who may call.
    pub auth: Auth,
    /// Where tenants, keys and usage are kept: `sqlite://…` or `postgres://…`.
    pub store_url: Secret,
    /// The Valkey or Redis that holds the limits of all replicas; without one, each has its own.
    pub shared_limits: Option<Secret>,
    /// How other replicas reach this one; without it, it stands alone.
    pub replicas: Option<Replicas>,
    /// What tenants' secrets are encrypted with: the first encrypts, all decrypt.
    pub secret_keys: Vec<Secret>,
    /// Tenants that only this file changes.
    pub tenants: BTreeMap<TenantId, Policy>,
    /// The servers by name.
    pub servers: BTreeMap<ServerId, Server>,
    /// The file this is from.
    pub origin: Origin,
    /// What is allowed, but probably not meant. To be logged.
    pub warnings: Vec<String>,
}

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Whom calls without a key belong to; without one they are refused.
    pub anonymous_tenant: Option<TenantId>,
    /// What keys are hashed with; without it, one that the store has made.
    pub hash_key: Option<Secret>,
    /// Whose tokens are as good as keys.
    pub oauth: Option<OAuth>,
}

/// The file a configuration is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// There was none.
    BuiltIn,
    /// Its full path.
    File(PathBuf),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in defaults"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Reads and checks a configuration.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let mut defaults = tree::parse_built_in(DEFAULTS);
    let server_defaults = server_defaults(&mut defaults);
    let (mut settings, origin) = settings(sources, defaults)?;
    let mut warnings = Vec::new();
    if let Some(path) = &sources.mcp_file {
        let text = read_file(path, sources)?;
        let path = path.to_string_lossy().into();
        mcp_file::add_servers(&mut settings, &path, &text, &mut warnings)?;
    }
    variables::overlay(&mut settings, &sources.env)?;
    if let Some(listen) = &sources.listen {
        let value = tree::Value::Text(listen.clone());
        settings.insert("listen".to_owned(), tree::Node::new(value, Place::Flag("--listen")));
    }
    read::config(settings, &server_defaults, sources, origin, warnings)
}

/// The bundled server's settings, except for those that make it the bundled server.
fn server_defaults(defaults: &mut tree::Table) -> tree::Table {
    let servers = defaults.get_mut("servers").and_then(tree::Node::table_mut);
    let bundled = servers.and_then(|servers| servers.get_mut("std")?.table_mut());
    let mut bundled = bundled.expect("the embedded defaults have it").clone();
    bundled.retain(|key, _| key != "command" && key != "args");
    bundled
}

/// The file's settings, completed by the defaults; or the defaults alone.
fn settings(
    sources: &Sources,
    mut defaults: tree::Table,
) -> Result<(tree::Table, Origin), ConfigError> {
    let path = sources.file.as_deref().unwrap_or(Path::new(FILE_NAME));
    let text = match read_file(path, sources) {
        Ok(text) => text,
        Err(ConfigError::Unreadable { cause, .. })
            if sources.file.is_none() && cause.kind() == io::ErrorKind::NotFound =>
        {
            return Ok((defaults, Origin::BuiltIn));
        }
        Err(error) => return Err(error),
    };
    let mut settings = tree::parse_toml(&path.to_string_lossy().into(), &text)?;
    // A file decides alone who may call and what.
    defaults.retain(|key, _| key != "auth" && key != "servers");
    tree::fill(&mut settings, &defaults);
    Ok((settings, Origin::File(sources.working_dir.join(path))))
}

fn read_file(path: &Path, sources: &Sources) -> Result<String, ConfigError> {
    fs::read_to_string(sources.working_dir.join(path))
        .map_err(|cause| ConfigError::Unreadable { path: path.display().to_string(), cause })
}
