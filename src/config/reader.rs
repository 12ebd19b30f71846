//! Reads the merged tree by serde. Every error gets the place and the path of its setting here.

use std::collections::btree_map;
use std::fmt;
use std::marker::PhantomData;
use std::vec;

use serde::Deserialize;
use serde::de::value::{StrDeserializer, StringDeserializer};
use serde::de::{self, DeserializeSeed, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use super::Sources;
use super::error::{ConfigError, Place};
use super::kind::{Kind, TABLE};
use super::reference::SECTIONS;
use super::section::Section;
use super::tree::{Node, Table, Value};

/// Reads a section. `path` is empty at the top.
pub(super) fn read<'de, T: Deserialize<'de>>(
    path: &str,
    node: Node,
    sources: &Sources,
) -> Result<T, ConfigError> {
    read_value(path, node, &TABLE, sources)
}

/// Reads a value of a kind.
pub(super) fn read_value<'de, T: Deserialize<'de>>(
    path: &str,
    node: Node,
    kind: &'static Kind,
    sources: &Sources,
) -> Result<T, ConfigError> {
    let place = node.place.clone();
    let value = setting(path.to_owned(), node, kind, sources, PhantomData);
    value.map_err(|error| match error {
        ReadError::Config(error) => error,
        other => place.error(format!("`{path}`: {other}")),
    })
}

/// Refuses a table with other keys than these.
pub(super) fn refuse_unknown(path: &str, table: &Table, keys: &[&str]) -> Result<(), ConfigError> {
    match table.iter().find(|(key, _)| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some((key, node)) => Err(node.place.error(format!(
            "unknown key `{}`, expected one of `{}`",
            join(path, key),
            keys.join("`, `")
        ))),
    }
}

fn setting<'de, S: DeserializeSeed<'de>>(
    path: String,
    node: Node,
    kind: &'static Kind,
    sources: &Sources,
    seed: S,
) -> Result<S::Value, ReadError> {
    let (key, place, shown) = (path.clone(), node.place.clone(), kind.show(&node));
    let wrong = |what: &str| {
        let problem = format!("`{key}` must be {}, and {what}", (kind.allowed)());
        ReadError::Config(place.error(problem))
    };
    let value = (kind.read)(node, sources).map_err(|what| wrong(&what))?;
    let node = Node::new(value, place.clone());
    seed.deserialize(Reader { path, node, kind, sources }).map_err(|error| match error {
        ReadError::Type(what) if !kind.is_hidden => wrong(&what),
        ReadError::Item(what) => wrong(&what),
        ReadError::Unlike | ReadError::Type(_) => wrong(&format!("it is {shown}")),
        done => done,
    })
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[derive(Debug)]
enum ReadError {
    /// The value is not what its type needs.
    Unlike,
    /// The type's own words for that. They may repeat the value.
    Type(String),
    /// An item of a list is wrong. The words repeat no hidden value.
    Item(String),
    Missing(&'static str),
    Config(ConfigError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            _ => f.write_str("a value is not allowed"),
        }
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Type(message.to_string())
    }

    fn invalid_type(_: Unexpected<'_>, _: &dyn de::Expected) -> Self {
        Self::Unlike
    }

    fn invalid_value(_: Unexpected<'_>, _: &dyn de::Expected) -> Self {
        Self::Unlike
    }

    fn unknown_variant(_: &str, _: &'static [&'static str]) -> Self {
        Self::Unlike
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

/// Deserializes one node.
struct Reader<'a> {
    path: String,
    node: Node,
    kind: &'static Kind,
    sources: &'a Sources,
}

impl<'a> Reader<'a> {
    fn entries(self, section: Option<&'static Section>, table: Table) -> Entries<'a> {
        let Self { path, kind, sources, .. } = self;
        Entries { path, section, kind, sources, entries: table.into_iter(), next: None }
    }

    /// Adds the defaults of a section and refuses unknown keys.
    fn complete(&self, section: &Section, table: &mut Table) -> Result<(), ConfigError> {
        let keys: Vec<_> = section.keys().collect();
        refuse_unknown(&self.path, table, &keys)?;
        for setting in section.settings {
            if let Some(default) = setting.default {
                table.entry(setting.key.to_owned()).or_insert_with(|| {
                    let value = Value::parse(default, &Place::BuiltIn);
                    Node::built_in(value.expect("defaults are TOML"))
                });
            }
        }
        Ok(())
    }
}

impl<'de> de::Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    /// Visits a value that need not be a text.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.node.clone().untexted().value {
            Value::Text(text) => visitor.visit_string(text),
            Value::Integer(number) => visitor.visit_i64(number),
            Value::Flag(flag) => visitor.visit_bool(flag),
            Value::List(items) => {
                visitor.visit_seq(Items { items: items.into_iter(), number: 0, reader: self })
            }
            Value::Table(table) => visitor.visit_map(self.entries(None, table)),
            Value::Other(_) => Err(ReadError::Unlike),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
            return self.deserialize_any(visitor);
        };
        let node = self.node.clone().untexted();
        let Value::Table(mut table) = node.value else { return Err(ReadError::Unlike) };
        self.complete(section, &mut table).map_err(ReadError::Config)?;
        let path = self.path.clone();
        let entries = self.entries(Some(section), table);
        visitor.visit_map(entries).map_err(|error| match error {
            ReadError::Missing(key) => {
                let allowed = section.get(key).map(|it| (it.kind.allowed)()).unwrap_or_default();
                let key = join(&path, key);
                ReadError::Config(
                    node.place.error(format!("`{key}` is missing: it must be {allowed}")),
                )
            }
            other => other,
        })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let word: StrDeserializer<'_, ReadError> =
            self.node.text().ok_or(ReadError::Unlike)?.into_deserializer();
        visitor.visit_enum(word)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_str(self.node.text().ok_or(ReadError::Unlike)?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct
        seq tuple tuple_struct map identifier ignored_any
    }
}

/// The entries of a table: settings of a section, or of one kind under keys of any name.
struct Entries<'a> {
    path: String,
    section: Option<&'static Section>,
    kind: &'static Kind,
    sources: &'a Sources,
    entries: btree_map::IntoIter<String, Node>,
    next: Option<(String, Node)>,
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ReadError> {
        let Some((key, node)) = self.entries.next() else { return Ok(None) };
        let text: StringDeserializer<ReadError> = key.clone().into_deserializer();
        let place = node.place.clone();
        self.next = Some((key, node));
        seed.deserialize(text).map(Some).map_err(|error| match error {
            ReadError::Type(what) => {
                ReadError::Config(place.error(format!("`{}`: {what}", self.path)))
            }
            other => other,
        })
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let (key, node) = self.next.take().expect("serde asks for the key first");
        let of_section = self.section.and_then(|section| section.get(&key));
        let of_entry = self.kind.entry.unwrap_or(&TABLE);
        let kind = of_section.map_or(of_entry, |setting| &setting.kind);
        setting(join(&self.path, &key), node, kind, self.sources, seed)
    }
}

/// The items of a list.
struct Items<'a> {
    items: vec::IntoIter<Node>,
    /// Counted from 1.
    number: usize,
    reader: Reader<'a>,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadError> {
        let Some(node) = self.items.next() else { return Ok(None) };
        self.number += 1;
        let Reader { ref path, kind, sources, .. } = self.reader;
        let shown = kind.show(&node);
        let item = Reader { path: path.clone(), node, kind, sources };
        seed.deserialize(item).map(Some).map_err(|error| match error {
            ReadError::Type(what) if !kind.is_hidden => ReadError::Item(what),
            ReadError::Config(error) => ReadError::Config(error),
            _ => ReadError::Item(format!("item {} is {shown}", self.number)),
        })
    }
}
