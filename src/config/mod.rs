//! Reads and checks the configuration, once: every value in a [`Config`] is allowed.
//!
//! Its layers are the TOML file (or `WITHOUT_FILE`), an MCP client's file, the environment and the
//! command line. Each overrides the one before; a setting in none of them has its default.
//!
//! - `tree`, `variables`, `mcp_file`: the layers, merged into a tree that knows every value's place
//! - `quotes`: explains the most frequent mistake in TOML
//! - `section`, `kind`: how settings are declared, each with its sentence, default and check
//! - `settings`, `server`, `tenants`, `toolsets`, `oauth`: the declared settings
//! - `reader`, `servers`: from the tree to the declared types, by serde
//! - `secret`: texts that must not be printed, and `${…}`
//! - `store_place`: where the store's file is
//! - `otel`: the standard variables of OpenTelemetry
//! - `difference`: changes between two configurations
//! - `reference`: the page that lists every setting

mod difference;
mod error;
mod kind;
mod mcp_file;
mod oauth;
mod otel;
mod quotes;
mod reader;
mod reference;
mod secret;
mod section;
mod server;
mod servers;
mod settings;
mod store_place;
mod tenants;
#[cfg(test)]
mod tests;
mod toolsets;
mod tree;
mod variables;
mod web;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Deserializer, de};

use self::error::Mistakes;
use self::mcp_file::ClientServers;
use self::tree::{Node, Table, Value};
use crate::common::ids::TenantName;

pub use crate::common::secret::Secret;
pub use difference::Difference;
pub use error::{ConfigError, Place};
pub use kind::duration;
pub use mcp_file::{Found, FoundServer, LeftOut, LeftOutReason, servers_of_client};
pub use oauth::{Grant, IdentityProvider, OAuth, SubjectType, UpstreamOAuth};
pub use otel::{Batching, Otel, OtlpTarget, Sampling};
pub use reference::reference;
pub use secret::{MissingSecret, Secrets, Template};
pub use server::{
    ChildLimits, EraChoice, Program, Recycle, Retry, Sandbox, ServerConfig, Sharing, Start,
    Transport, Upstream, UrlTransport,
};
pub use settings::{
    Auth, BatchConfig, CallsConfig, Config, Defaults, LimitsConfig, LogConfig, LoggedCalls,
    Replicas, SecretKeys, StoreConfig, Synchronous,
};
pub use store_place::StateDir;
pub use toolsets::{ArgumentOverride, ResultOverride, ToolOverride, ToolsetConfig};
pub use web::{Host, WebOrigin};

/// The configuration without a file. A file decides alone who may call and which servers there are.
const WITHOUT_FILE: &str = r#"[auth]
anonymous_tenant = "local"

[servers.std]
command = "trunkline"
args = ["std", "--max-concurrent", "64"]
"#;

/// Read when no other file is named.
const FILE_NAME: &str = "trunkline.toml";

#[derive(Default)]
pub struct Sources {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// `--mcp-config`.
    pub mcp_file: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<String>,
    /// Variables of the environment.
    pub env: Vec<(String, String)>,
    /// Base of relative paths, except those in the configuration file.
    pub working_dir: PathBuf,
    /// This executable, which the command `trunkline` of a server means.
    pub own_program: PathBuf,
}

impl Sources {
    /// Returns the paths of the files, whether or not they exist.
    pub fn files(&self) -> Vec<PathBuf> {
        let own = self.file.as_deref().unwrap_or(Path::new(FILE_NAME));
        [Some(own), self.mcp_file.as_deref()]
            .into_iter()
            .flatten()
            .map(|path| self.working_dir.join(path))
            .collect()
    }
}

/// Reads and checks a configuration.
pub fn load(sources: &Sources) -> Result<Config, ConfigError> {
    let (mut settings, file, mut mistakes) = file(sources)?;
    let mut clients = ClientServers::default();
    if let Some(path) = &sources.mcp_file {
        let text = read_file(path, sources)?;
        clients = mcp_file::read(path, &text, sources)?;
        clients.add_to(&mut settings);
    }
    variables::overlay(&mut settings, &sources.env)?;
    if let Some(listen) = &sources.listen {
        let listen = Node::new(Value::Text(listen.clone()), Place::Flag("--listen"));
        settings.insert("listen".to_owned(), listen);
    }
    let base = store_place::base(&mut settings, file.as_deref(), sources);
    let config = mistakes.take(settings::config(settings, sources, &mut clients));
    let config = mistakes.or(config)?;
    let mut warnings = clients.warnings;
    for server in &clients.left_out {
        if let LeftOutReason::Invalid(mistake) = &server.reason {
            warnings.push(format!("server `{}` is left out: {mistake}", server.id));
        }
    }
    warnings.extend(config.warnings);
    let store = store_place::place(config.store, base, sources);
    let origin = file.map(|file| file.display().to_string());
    let origin = origin.unwrap_or_else(|| Place::BuiltIn.to_string());
    let otel = otel::read(&sources.env, &mut warnings);
    Ok(Config { origin, store, otel, warnings, left_out: clients.left_out, ..config })
}

/// Reads the settings of the file, if there is one. Returns its full path with them, and mistakes
/// that leave the rest of the file readable.
fn file(sources: &Sources) -> Result<(Table, Option<PathBuf>, Mistakes), ConfigError> {
    let path = sources.file.as_deref().unwrap_or(Path::new(FILE_NAME));
    let text = match read_file(path, sources) {
        Ok(text) => text,
        Err(ConfigError::Unreadable { cause, .. })
            if sources.file.is_none() && cause.kind() == io::ErrorKind::NotFound =>
        {
            return Ok((tree::built_in(WITHOUT_FILE), None, Mistakes::default()));
        }
        Err(error) => return Err(error),
    };
    let (settings, mistakes) = tree::parse_toml(&path.to_string_lossy().into(), &text)?;
    Ok((settings, Some(sources.working_dir.join(path)), mistakes))
}

fn read_file(path: &Path, sources: &Sources) -> Result<String, ConfigError> {
    fs::read_to_string(sources.working_dir.join(path))
        .map_err(|cause| ConfigError::Unreadable { path: path.display().to_string(), cause })
}

/// Reads a table whose keys are ids.
fn named<K: Ord, V, E: fmt::Display>(
    path: &str,
    node: Node,
    parse: impl Fn(&str) -> Result<K, E>,
    read: impl Fn(&str, Node) -> Result<V, ConfigError>,
) -> Result<BTreeMap<K, V>, ConfigError> {
    let (_, table) = node.into_table(path)?;
    let entry = |(name, node): (String, Node)| {
        let id = parse(&name).map_err(|error| node.place.error(error.to_string()))?;
        Ok((id, read(&format!("{path}.{name}"), node)?))
    };
    let mut mistakes = Mistakes::default();
    let read: Vec<_> = table.into_iter().filter_map(|named| mistakes.take(entry(named))).collect();
    mistakes.check()?;
    Ok(read.into_iter().collect())
}

/// Reads a URL, for `deserialize_with`.
fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

impl<'de> Deserialize<'de> for TenantName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
