//! Errors of the configuration, with the place of the setting.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::common::ids::ServerId;

/// The text of an error is complete and never contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {cause}")]
    Unreadable {
        /// As given.
        path: String,
        /// Not a `source`: the text contains it.
        cause: io::Error,
    },
    /// A setting is unknown, missing or out of bounds.
    #[error("{place}: {problem}")]
    Invalid {
        place: Place,
        /// Names the key, what is wrong and what is allowed.
        problem: String,
    },
    /// The built-in anonymous tenant would be open to other machines.
    #[error(
        "refusing to serve callers without a key on {listen}, which other machines can reach. \
         To allow it, set `anonymous_tenant = \"local\"` under `[auth]` in trunkline.toml, or the \
         environment variable TRUNKLINE_AUTH__ANONYMOUS_TENANT=local. To require keys, use a \
         trunkline.toml without `anonymous_tenant` and make keys by `trunkline key create`. \
         Otherwise listen on 127.0.0.1"
    )]
    OpenByDefault { listen: SocketAddr },
    /// A server needs tenants' secrets, and no key encrypts them.
    #[error(
        "server `{server}` refers to the tenants' secret `{name}`, and no key encrypts secrets: \
         set `keys = [\"${{file:/run/secrets/secrets-key}}\"]` under `[secrets]`"
    )]
    NoSecretKeys {
        server: ServerId,
        /// Of the secret.
        name: String,
    },
}

/// The place of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A default.
    BuiltIn,
    /// A line of a file, counted from 1.
    File {
        /// As given.
        path: Arc<str>,
        line: usize,
    },
    /// A variable of the environment.
    Variable(Arc<str>),
    /// A flag of the command line.
    Flag(&'static str),
}

impl Place {
    /// Returns the place of a byte in a file's text.
    pub(super) fn in_file(path: &Arc<str>, text: &str, offset: usize) -> Self {
        let before = text.as_bytes().iter().take(offset);
        Self::File { path: path.clone(), line: before.filter(|&&byte| byte == b'\n').count() + 1 }
    }

    /// Returns an error about the setting at this place.
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
