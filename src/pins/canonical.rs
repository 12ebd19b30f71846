//! The canonical form of a definition, and its hash. The form ignores the order of keys, whitespace
//! between tokens, and the way characters are escaped; any other difference counts. Numbers stay as
//! written.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Values nested deeper than this stay as written, so that they cannot exhaust the stack.
const DEPTH_MAX: usize = 64;
const PREFIX: &str = "sha256:";

/// SHA-256 of a definition's canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Hashes a definition in any form.
    pub fn of(definition: &str) -> Self {
        Self(Sha256::digest(canonical(definition)).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is not the hash of a definition, which is `sha256:` and 64 digits of 0-9 and a-f")]
pub struct InvalidHash;

impl FromStr for Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidHash)?;
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.bytes().all(is_digit) {
            return Err(InvalidHash);
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| InvalidHash)?;
        }
        Ok(Self(hash))
    }
}

/// Returns JSON with sorted keys and no whitespace between tokens. Text that is not valid JSON
/// stays as written.
pub fn canonical(json: &str) -> String {
    let mut form = String::with_capacity(json.len());
    let written = json.trim_ascii();
    match write_value(written, 0, &mut form) {
        Ok(()) => form,
        Err(_) => written.to_owned(),
    }
}

fn write_value(json: &str, depth: usize, form: &mut String) -> serde_json::Result<()> {
    match json.as_bytes().first() {
        Some(b'{') if depth < DEPTH_MAX => write_object(json, depth, form)?,
        Some(b'[') if depth < DEPTH_MAX => {
            let items: Vec<&RawValue> = serde_json::from_str(json)?;
            form.push('[');
            for (at, item) in items.into_iter().enumerate() {
                form.push_str(if at == 0 { "" } else { "," });
                write_value(item.get(), depth + 1, form)?;
            }
            form.push(']');
        }
        Some(b'"') => form.push_str(&string(json)),
        _ => form.push_str(json),
    }
    Ok(())
}

fn write_object(json: &str, depth: usize, form: &mut String) -> serde_json::Result<()> {
    let mut parser = serde_json::Deserializer::from_str(json);
    let mut members = parser.deserialize_map(Members)?;
    parser.end()?;
    // A stable sort: the order of duplicates matters, because parsers disagree on which one counts.
    members.sort_by(|(one, _), (other, _)| one.cmp(other));
    form.push('{');
    for (at, (name, value)) in members.into_iter().enumerate() {
        form.push_str(if at == 0 { "" } else { "," });
        form.push_str(&name);
        form.push(':');
        write_value(value.get(), depth + 1, form)?;
    }
    form.push('}');
    Ok(())
}

/// Returns a string with as few escapes as possible. A string that cannot be decoded stays as
/// written.
fn string(written: &str) -> String {
    let decoded = serde_json::from_str::<serde_json::Value>(written);
    decoded.map_or_else(|_| written.to_owned(), |text| text.to_string())
}

/// Reads the members of an object, also duplicates, with the canonical form of each name.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = vec![];
        while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            members.push((string(name.get()), value));
        }
        Ok(members)
    }
}

#[cfg(test)]
#[path = "tests/canonical.rs"]
mod tests;
