//! Takes a table apart key by key, so that every complaint names the place, the key and what is
//! allowed.

use super::error::{ConfigError, Place};
use super::tree::{Node, Table, Value};

/// A table being read.
pub(super) struct Section {
    /// The keys that lead here, each followed by a dot.
    path: String,
    place: Place,
    keys: &'static [&'static str],
    table: Table,
}

/// Refuses a table that has other keys than these.
pub(super) fn refuse_unknown(path: &str, table: &Table, keys: &[&str]) -> Result<(), ConfigError> {
    let Some((key, node)) = table.iter().find(|(key, _)| !keys.contains(&key.as_str())) else {
        return Ok(());
    };
    let expected = keys.join("`, `");
    Err(node.place.error(format!("unknown key `{path}{key}`, expected one of `{expected}`")))
}

impl Section {
    /// Takes a table that may have these keys and no others.
    pub(super) fn open(
        path: &str,
        node: Node,
        keys: &'static [&'static str],
    ) -> Result<Self, ConfigError> {
        let (place, table) = into_table(path, node)?;
        let path = if path.is_empty() { String::new() } else { format!("{path}.") };
        refuse_unknown(&path, &table, keys)?;
        Ok(Self { path, place, keys, table })
    }

    /// A key that may be missing. `read` says what is wrong with the value and what is allowed.
    pub(super) fn optional<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(Node) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        debug_assert!(self.keys.contains(&key), "{key} would have been refused as unknown");
        let Some(node) = self.table.remove(key) else {
            return Ok(None);
        };
        let place = node.place.clone();
        read(node)
            .map(Some)
            .map_err(|problem| place.error(format!("`{}{key}` {problem}", self.path)))
    }

    /// A key that is always there, since it has a default.
    pub(super) fn required<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(Node) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        self.optional(key, read)?.ok_or_else(|| self.missing(key, "it has no default"))
    }

    /// The complaint about a key that must be there.
    pub(super) fn missing(&self, key: &str, hint: &str) -> ConfigError {
        self.place.error(format!("`{}{key}` is missing: {hint}", self.path))
    }

    /// A table below this one.
    pub(super) fn table(&mut self, key: &str) -> Option<Node> {
        debug_assert!(self.keys.contains(&key), "{key} would have been refused as unknown");
        self.table.remove(key)
    }

    /// A table below this one that is always there, since it has defaults.
    pub(super) fn required_table(&mut self, key: &str) -> Result<Node, ConfigError> {
        self.table(key).ok_or_else(|| self.missing(key, "it has no default"))
    }

    /// Whether nobody has set the key: it is missing, or has its built-in value.
    pub(super) fn is_built_in(&self, key: &str) -> bool {
        self.table.get(key).is_none_or(|node| node.place == Place::BuiltIn)
    }
}

/// The entries of what must be a table.
pub(super) fn into_table(path: &str, node: Node) -> Result<(Place, Table), ConfigError> {
    let Node { value, place } = node.untexted();
    match value {
        Value::Table(table) => Ok((place, table)),
        value => {
            let kind = Node::new(value, place.clone()).kind();
            Err(place.error(format!("`{path}` must be a table, and it is {kind}")))
        }
    }
}
