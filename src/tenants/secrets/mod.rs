//! Tenants' secrets: values that a tenant gives to a server of its own, such as a token. They are
//! sealed in the store and in memory, and opened when their server starts.
//!
//! - [`Keyring`] seals and opens. A sealed value is bound to its [`Label`], and opens in no other
//!   place.
//! - [`Vault`] holds the sealed secrets of all tenants in memory, so that a call never queries the
//!   store.

pub mod by_tenant;
mod keyring;
#[cfg(test)]
mod tests;
mod vault;

use std::collections::BTreeSet;

use crate::config;

pub use self::keyring::{Keyring, Resealed};
pub use self::vault::{SealedSet, Vault};
pub use crate::store::{CONNECTION, Label};

/// In bytes.
pub const VALUE_LEN_MAX: usize = 16 << 10;
pub const NAME_LEN_MAX: usize = 64;

/// Never shows the value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    #[error(
        "`{0}` is not a secret's name: use 1 to {NAME_LEN_MAX} letters, digits and `_`, not \
         starting with a digit"
    )]
    Name(String),
    #[error("the value is empty; remove the secret instead")]
    Empty,
    #[error("the value has {0} bytes, over {VALUE_LEN_MAX}")]
    TooLong(usize),
    /// Environment variables cannot contain it.
    #[error("the value contains a zero byte, which is not allowed")]
    Zero,
    #[error(
        "there is no key to store secrets with: \
         set `keys = [\"${{file:/run/secrets/secrets-key}}\"]` under `[secrets]`"
    )]
    NoKeys,
}

/// Returns the names of all that a tenant's process of a server is started with: secrets, and the
/// connection.
pub fn started_with(server: &config::ServerConfig) -> Vec<String> {
    let connection = server.needs_connection().then(|| CONNECTION.to_owned());
    wanted(server).into_iter().chain(connection).collect()
}

/// Returns the names of the secrets that a server requires, each once.
pub fn wanted(server: &config::ServerConfig) -> Vec<String> {
    let names: BTreeSet<&str> = server.secrets().collect();
    names.into_iter().map(str::to_owned).collect()
}
