//! Reads sections of the merged tree: checks every value by its kind, then serde makes the struct.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::Sources;
use super::error::{ConfigError, Mistakes, Place};
use super::kind::{Kind, it_is};
use super::reference::SECTIONS;
use super::section::{Section, Settings};
use super::tree::{Node, Table, Value};
use crate::common::suggest::closest;

/// Reads a section. `path` is empty at the top.
pub(super) fn read<T: Settings + DeserializeOwned>(
    path: &str,
    node: Node,
    sources: &Sources,
) -> Result<T, ConfigError> {
    let place = node.place.clone();
    let checked = section(path, node, &T::SECTION, sources)?;
    // Without serde's own words: they may repeat a secret.
    let wrong = |_| place.error(format!("`{path}` has a value that its type cannot hold"));
    serde_json::from_value(checked).map_err(wrong)
}

/// Refuses the keys of a table that are none of these.
pub(super) fn refuse_unknown(path: &str, table: &Table, keys: &[&str]) -> Mistakes {
    let mut mistakes = Mistakes::default();
    for (key, node) in table.iter().filter(|(key, _)| !keys.contains(&key.as_str())) {
        let path = join(path, key);
        mistakes.add(node.place.error(match closest(key, keys.iter().copied()) {
            Some(meant) => format!("unknown key `{path}`; did you mean `{meant}`?"),
            None => match section_of(key) {
                Some(header) => format!("unknown key `{path}`: `{key}` belongs under `[{header}]`"),
                None => format!("unknown key `{path}`, expected one of `{}`", keys.join("`, `")),
            },
        }));
    }
    mistakes
}

/// Returns the section of the configuration that alone has a key.
fn section_of(key: &str) -> Option<&'static str> {
    let mut with_it = SECTIONS.iter().filter(|section| section.keys().any(|it| it == key));
    let header = with_it.next()?.header.split(" with ").next()?;
    with_it.next().is_none().then_some(header).filter(|header| !header.is_empty())
}

/// Checks a section, and returns the values as serde reads them.
pub(super) fn section(
    path: &str,
    node: Node,
    section: &Section,
    sources: &Sources,
) -> Result<Json, ConfigError> {
    let (place, mut table) = node.into_table(path)?;
    let mut mistakes = refuse_unknown(path, &table, &section.keys().collect::<Vec<_>>());
    let mut values = serde_json::Map::new();
    for setting in section.settings {
        let path = join(path, setting.key);
        let node = match (table.remove(setting.key), setting.default) {
            (Some(node), _) => node,
            (None, Some(default)) => {
                let value = Value::parse(default, &Place::BuiltIn);
                Node::new(value.expect("defaults are TOML"), Place::BuiltIn)
            }
            (None, None) if setting.is_optional() => continue,
            (None, None) => {
                let allowed = setting.kind.allowed();
                let problem = format!("`{path}` is missing: it must be {allowed}");
                mistakes.add(place.error(problem));
                continue;
            }
        };
        let value = mistakes.take(value(&path, node, &setting.kind, sources));
        values.extend(value.map(|value| (setting.key.to_owned(), value)));
    }
    mistakes.check()?;
    Ok(values.into())
}

/// Checks a value by its kind.
pub(super) fn value(
    path: &str,
    node: Node,
    kind: &Kind,
    sources: &Sources,
) -> Result<Json, ConfigError> {
    let place = node.place.clone();
    let checked = match kind {
        Kind::Value(_, read) => read(node, sources),
        Kind::Count(max) => match node.clone().untexted().value {
            Value::Integer(number) if (1..=(*max).into()).contains(&number) => Ok(number.into()),
            _ => Err(it_is(&node)),
        },
        Kind::Section(of_table) => return section(path, node, of_table, sources),
        Kind::Table { name, entry } => {
            let read = |(key, node): (String, Node)| {
                let path = join(path, &key);
                let wrong = |problem| node.place.error(format!("`{path}` {problem}"));
                Ok((name(&key).map_err(wrong)?, value(&path, node, entry, sources)?))
            };
            let (_, table) = node.into_table(path)?;
            let mut mistakes = Mistakes::default();
            let read: Vec<_> =
                table.into_iter().filter_map(|entry| mistakes.take(read(entry))).collect();
            mistakes.check()?;
            return Ok(read.into_iter().collect());
        }
    };
    checked.map_err(|what| place.error(format!("`{path}` must be {}, and {what}", kind.allowed())))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
