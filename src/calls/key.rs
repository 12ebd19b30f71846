//! Idempotency keys, and the hashes by which calls are found and compared.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::common::ids::{CallId, ServerId, TenantId};

const KEY_LEN_MAX: usize = 255;

/// The value of `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyKey(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`Idempotency-Key` must be 1 to {KEY_LEN_MAX} visible ASCII characters, bare or in quotes")]
pub struct InvalidKey;

/// Identifies a key of one tenant, for one tool: no two calls with the same scope run at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope([u8; 32]);

/// Tells whether a retry has the arguments of its first call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint(String);

impl IdempotencyKey {
    /// Parses a bare key, or a quoted string of structured fields (RFC 9651), which means the same.
    pub fn parse(value: &str) -> Result<Self, InvalidKey> {
        let key = match value.strip_prefix('"') {
            Some(quoted) => unquoted(quoted).ok_or(InvalidKey)?,
            None => value.to_owned(),
        };
        let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        if is_visible && (1..=KEY_LEN_MAX).contains(&key.len()) {
            return Ok(Self(key));
        }
        Err(InvalidKey)
    }

    /// Returns the key of an asynchronous batch whose caller sent none. Such a key begins with a
    /// space.
    pub fn of_batch(id: CallId) -> Self {
        Self(format!(" {id}"))
    }

    /// Returns the key of one of several calls that share this one, such as the items of a batch.
    /// No caller can send such a key: it contains a space.
    pub fn of_item(&self, item: &str) -> Self {
        Self(format!("{} {item}", self.0))
    }
}

/// Reads the rest of a quoted string: `\"` and `\\` stand for the second character.
fn unquoted(text: &str) -> Option<String> {
    let mut characters = text.strip_suffix('"')?.chars();
    let mut key = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        key.push(match character {
            '"' => return None,
            '\\' => characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?,
            other => other,
        });
    }
    Some(key)
}

impl Scope {
    pub fn new(tenant: &TenantId, server: &ServerId, tool: &str, key: &IdempotencyKey) -> Self {
        let mut hash = Sha256::new_with_prefix(tenant.generation().number().to_le_bytes());
        for part in [tenant.name().as_str(), server.as_str(), tool, &key.0] {
            // With its length, so that no two scopes are spelled alike.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }

    /// Returns the scope of the same key for the tool of a toolset.
    pub fn within(self, toolset: &str) -> Self {
        Self(Sha256::new_with_prefix(self.0).chain_update(toolset).finalize().into())
    }

    /// Returns the form in the store.
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// Spreads scopes evenly.
    pub(super) fn first_byte(&self) -> u8 {
        self.0[0]
    }
}

impl Fingerprint {
    /// Returns the fingerprint of a call's arguments, or of an item of a batch.
    pub fn of(text: impl AsRef<[u8]>) -> Self {
        Self(URL_SAFE_NO_PAD.encode(Sha256::digest(text)))
    }

    pub(super) fn stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::ids::{TenantGeneration, TenantName};

    #[test]
    fn a_key_is_bare_or_quoted_and_visible() {
        let key = |text: &str| IdempotencyKey::parse(text).map(|key| key.0);
        assert_eq!(key("a-1:b"), Ok("a-1:b".to_owned()));
        assert_eq!(key("\"a-1:b\""), key("a-1:b"));
        assert_eq!(key(r#""a\"\\b""#), Ok(r#"a"\b"#.to_owned()));
        assert!(key(&"x".repeat(255)).is_ok());
        let long = "x".repeat(256);
        for bad in ["", "\"\"", "\"", "\"a", "a b", "\"a b\"", r#""a\b""#, "\"a\"b\"", "ü", &long]
        {
            assert_eq!(key(bad), Err(InvalidKey), "{bad:?}");
        }
    }

    #[test]
    fn no_caller_can_send_the_key_of_an_item_and_no_two_are_alike() {
        let key = |key: &str| IdempotencyKey::parse(key).unwrap();
        let item = key("ab").of_item("c");
        assert_ne!(item, key("a").of_item("bc"));
        assert_ne!(item, key("abc"));
        assert_eq!(IdempotencyKey::parse(&item.0), Err(InvalidKey));
        let (one, other) = (CallId::generate(), CallId::generate());
        let of_batch = IdempotencyKey::of_batch(one);
        assert_ne!(of_batch.of_item("a"), IdempotencyKey::of_batch(other).of_item("a"));
        assert_eq!(IdempotencyKey::parse(&of_batch.0), Err(InvalidKey));
    }

    #[test]
    fn no_two_scopes_are_alike() {
        let tenant = |name: &str, generation| {
            let generation = TenantGeneration::from_number(generation);
            TenantName::parse(name).unwrap().of(generation)
        };
        let scope = |tenant: &TenantId, server: &str, tool: &str, key: &str| {
            let key = IdempotencyKey::parse(key).unwrap();
            Scope::new(tenant, &ServerId::parse(server).unwrap(), tool, &key).text()
        };
        let (acme, again) = (tenant("acme", 1), tenant("acme", 2));
        let all = [
            scope(&acme, "std", "echo", "k"),
            scope(&again, "std", "echo", "k"),
            scope(&tenant("acm", 1), "std", "echo", "k"),
            scope(&acme, "st", "decho", "k"),
            scope(&acme, "std", "ech", "ok"),
            scope(&acme, "std", "echo", "l"),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
        assert_eq!(scope(&acme, "std", "echo", "k"), all[0]);
        let key = IdempotencyKey::parse("k").unwrap();
        let plain = Scope::new(&acme, &ServerId::parse("std").unwrap(), "echo", &key);
        assert!(plain.within("a") != plain && plain.within("a") != plain.within("b"));
    }
}
