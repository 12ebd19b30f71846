//! What is wrong with a configuration, and where.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::common::ids::ServerId;

/// Why there is no configuration. The text says all of it, and never contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was asked for cannot be read.
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// The path, as given.
        path: String,
        /// Not a `source`: the text has it already.
        cause: io::Error,
    },
    /// A setting is unknown, missing or out of bounds.
    #[error("{place}: {problem}")]
    Invalid {
        /// Where the setting stands.
        place: Place,
        /// Its key, what is wrong with it and what is allowed.
        problem: String,
    },
    /// Nobody asked for callers without a key, and `listen` is open to other machines.
    #[error(
        "refusing to serve callers without a key on {listen}, which other machines can reach: to allow it, \
         set `anonymous_tenant = \"local\"` under `[auth]` in trunkline.toml or the environment variable \
         TRUNKLINE_AUTH__ANONYMOUS_TENANT=local; to serve callers with keys, have a trunkline.toml without \
         `anonymous_tenant` and make keys by `trunkline key create`; otherwise listen on 127.0.0.1"
    )]
    OpenByDefault {
        /// The address that is not a loopback one.
        listen: SocketAddr,
    },
    /// A server needs tenants' secrets, and there is nothing to encrypt them with.
    #[error(
        "server `{server}` refers to the tenants' secret `{name}`, and there is no key to store secrets with: \
         set `keys = [\"${{file:/run/secrets/secrets-key}}\"]` under `[secrets]`"
    )]
    NoSecretKeys {
        /// The server.
        server: ServerId,
        /// The secret's name.
        name: String,
    },
}

/// Where a setting stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nobody set it.
    BuiltIn,
    /// In a file, at a line counted from 1.
    File {
        /// The file's path, as given.
        path: Arc<str>,
        /// The line.
        line: usize,
    },
    /// In the environment.
    Variable(Arc<str>),
    /// On the command line.
    Flag(&'static str),
}

impl Place {
    /// The place of a byte in a file's text.
    pub(super) fn in_file(path: &Arc<str>, text: &str, offset: usize) -> Self {
        let before = text.as_bytes().iter().take(offset);
        Self::File { path: path.clone(), line: before.filter(|&&byte| byte == b'\n').count() + 1 }
    }

    /// Something wrong at this place.
    pub(super) fn error(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { place: self.clone(), problem: problem.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in defaults"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => f.write_str(flag),
        }
    }
}
