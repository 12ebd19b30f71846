//! Tenants' secrets: what each tenant gives to a server of its own, such as a token. In the store and in memory they are
//! sealed; they are opened when the server is started that they are for.
//!
//! - [`Keyring`] seals and opens. A sealed value is bound to its [`Label`], and in any other place it does not open.
//! - [`Vault`] is what all tenants have stored, held in memory, so that a call never asks the store.

pub mod by_tenant;
mod keyring;
#[cfg(test)]
mod tests;
mod vault;

use std::collections::BTreeSet;
use std::fmt;

use crate::common::ids::{ServerId, TenantId};
use crate::config;

pub use self::keyring::{Keyring, Resealed};
pub use self::vault::{Sealed, SealedSet, Vault};

/// The longest value, in bytes.
pub const VALUE_LEN_MAX: usize = 16 << 10;
/// The longest name.
pub const NAME_LEN_MAX: usize = 64;

/// Why a secret cannot be stored. Never shows its value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    /// The name is none.
    #[error(
        "`{0}` is no name of a secret: use 1 to {NAME_LEN_MAX} letters, digits and `_`, not starting with a digit"
    )]
    Name(String),
    /// Nothing.
    #[error("the value is empty; to take the secret away, remove it")]
    Empty,
    /// Too much.
    #[error("the value has {0} bytes, and may have {VALUE_LEN_MAX}")]
    TooLong(usize),
    /// What no variable can hold.
    #[error("the value contains a zero byte, which is not allowed")]
    Zero,
    /// Nothing to encrypt with.
    #[error(
        "there is no key to store secrets with: set `keys = [\"${{file:/run/secrets/secrets-key}}\"]` under `[secrets]`"
    )]
    NoKeys,
}

/// What a secret is called: whose it is, for which server, under which name.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    /// Whose.
    pub tenant: &'a TenantId,
    /// Who gets it.
    pub server: &'a ServerId,
    /// Which of them.
    pub name: &'a str,
}

impl Label<'_> {
    /// What a sealed value is bound to. None of the three can contain a zero byte.
    fn context(&self) -> Vec<u8> {
        format!("{}\0{}\0{}", self.tenant, self.server, self.name).into_bytes()
    }
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "secret `{}` of tenant `{}` for server `{}`", self.name, self.tenant, self.server)
    }
}

/// The names of the secrets that a server wants, each once.
pub fn wanted(server: &config::Server) -> Vec<String> {
    let names: BTreeSet<&str> = server.secrets().collect();
    names.into_iter().map(str::to_owned).collect()
}
