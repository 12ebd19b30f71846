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
    #[error("tenants connect themselves to server `{server}` (OAuth): set {setting}")]
    NoConnections { server: ServerId, setting: &'static str },
    #[error(
        "server `{server}` is called in the name of callers (OAuth), and no identity provider's \
         tokens are accepted: set `[auth.oauth]`"
    )]
    NoCallerTokens { server: ServerId },
    /// More than one mistake, in the order of their places.
    #[error("{}", in_lines(.0))]
    Several(Vec<Self>),
}

/// Mistakes that are told; further ones are counted.
const TOLD_MAX: usize = 20;

fn in_lines(mistakes: &[ConfigError]) -> String {
    let mut text = format!("{} mistakes", mistakes.len());
    for mistake in mistakes.iter().take(TOLD_MAX) {
        text += &format!("\n  {mistake}");
    }
    if let Some(more) = mistakes.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
        text += &format!("\n  and {more} more");
    }
    text
}

/// Collects mistakes, so that one run tells all of them.
#[derive(Default)]
pub(super) struct Mistakes(Vec<ConfigError>);

impl Mistakes {
    pub(super) fn add(&mut self, error: ConfigError) {
        match error {
            ConfigError::Several(errors) => self.0.extend(errors),
            error => self.0.push(error),
        }
    }

    /// Returns the value of what has succeeded, and keeps the mistake of what has not.
    pub(super) fn take<T>(&mut self, outcome: Result<T, ConfigError>) -> Option<T> {
        outcome.map_err(|error| self.add(error)).ok()
    }

    /// Returns the mistakes, if there are any.
    pub(super) fn check(self) -> Result<(), ConfigError> {
        let mut errors = self.0;
        errors.sort_by_cached_key(|error| match error.place() {
            Some(Place::File { path, line }) => (path.to_string(), *line),
            _ => (String::new(), 0),
        });
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(ConfigError::Several(errors)),
        }
    }

    /// Returns the value if there are no mistakes.
    pub(super) fn or<T>(self, value: Option<T>) -> Result<T, ConfigError> {
        self.check()?;
        Ok(value.expect("what is missing is a mistake"))
    }
}

impl ConfigError {
    fn place(&self) -> Option<&Place> {
        match self {
            Self::Invalid { place, .. } => Some(place),
            _ => None,
        }
    }

    /// Returns whether all of it is about one file.
    pub(super) fn is_of_file(&self, path: &str) -> bool {
        match self {
            Self::Several(errors) => errors.iter().all(|error| error.is_of_file(path)),
            error => matches!(error.place(), Some(Place::File { path: of, .. }) if **of == *path),
        }
    }

    /// Returns the mistakes, each in words.
    pub(super) fn in_words(&self) -> Vec<String> {
        match self {
            Self::Several(errors) => errors.iter().map(ToString::to_string).collect(),
            error => vec![error.to_string()],
        }
    }
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
    /// Returns an error about the setting at this place.
    pub(super) fn error(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { place: self.clone(), problem: problem.into() }
    }
}

/// The lines of a file. Their ends are looked for once: a file may have thousands of settings.
pub(super) struct Lines {
    path: Arc<str>,
    /// The bytes at which lines end.
    ends: Vec<usize>,
}

impl Lines {
    pub(super) fn of(path: &Arc<str>, text: &str) -> Self {
        Self { path: path.clone(), ends: memchr::memchr_iter(b'\n', text.as_bytes()).collect() }
    }

    /// Returns the place of a byte of the text.
    pub(super) fn place(&self, offset: usize) -> Place {
        let before = self.ends.partition_point(|end| *end < offset);
        Place::File { path: self.path.clone(), line: before + 1 }
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
