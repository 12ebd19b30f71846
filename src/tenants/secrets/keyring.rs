//! Seals and opens secrets.

use super::{InvalidSecret, Label, NAME_LEN_MAX, VALUE_LEN_MAX};
use crate::common::seal::{Purpose, Sealer};
use crate::config::Secret;

/// Separates these keys from those of session tokens.
const KEY_LABEL: &[u8] = b"trunkline tenant secrets 1\0";

/// The first key seals, all open.
#[derive(Debug, Default)]
pub struct Keyring(Option<Sealer>);

#[derive(Debug, PartialEq, Eq)]
pub enum Resealed {
    /// Sealed by the first key already.
    Already,
    /// Sealed by the first key now.
    Anew(String),
    /// No key opens it in this place.
    Unreadable,
}

impl Keyring {
    pub fn new(keys: &[Secret]) -> Self {
        Self((!keys.is_empty()).then(|| Sealer::labelled(KEY_LABEL, keys)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn seal(&self, label: Label<'_>, value: &Secret) -> Result<String, InvalidSecret> {
        let sealer = self.0.as_ref().ok_or(InvalidSecret::NoKeys)?;
        if !is_name(label.name) {
            return Err(InvalidSecret::Name(label.name.chars().take(NAME_LEN_MAX).collect()));
        }
        let bytes = value.expose().as_bytes();
        if bytes.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        if bytes.len() > VALUE_LEN_MAX {
            return Err(InvalidSecret::TooLong(bytes.len()));
        }
        if bytes.contains(&0) {
            return Err(InvalidSecret::Zero);
        }
        Ok(sealer.seal(Purpose::TenantSecret, &context(label), bytes))
    }

    /// Seals the id of a connection, which is noted beside the secrets.
    pub fn seal_mark(&self, label: Label<'_>, id: &str) -> Option<String> {
        let sealer = self.0.as_ref()?;
        Some(sealer.seal(Purpose::TenantSecret, &context(label), id.as_bytes()))
    }

    /// Returns the value, if one of the keys sealed it for this label.
    pub fn open(&self, label: Label<'_>, sealed: &str) -> Option<Secret> {
        let value = self.0.as_ref()?.open(Purpose::TenantSecret, &context(label), sealed)?;
        String::from_utf8(value).ok().map(Secret::new)
    }

    /// Seals the same value with the first key.
    pub fn reseal(&self, label: Label<'_>, sealed: &str) -> Resealed {
        let Some(sealer) = &self.0 else { return Resealed::Unreadable };
        let context = context(label);
        match sealer.open_by(Purpose::TenantSecret, &context, sealed) {
            None => Resealed::Unreadable,
            Some((0, _)) => Resealed::Already,
            Some((_, value)) => {
                Resealed::Anew(sealer.seal(Purpose::TenantSecret, &context, &value))
            }
        }
    }
}

/// Binds a sealed value. No part can contain a zero byte.
pub(super) fn context(label: Label<'_>) -> Vec<u8> {
    format!("{}\0{}\0{}", label.tenant, label.server, label.name).into_bytes()
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_LEN_MAX
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
