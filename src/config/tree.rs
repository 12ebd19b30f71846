//! Settings before they have types: a tree in which every value remembers where it stands. The TOML
//! file, the JSON file and the environment all end up in one, so that one reader checks them all.

use std::collections::BTreeMap;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place};

/// A table's entries.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and its place. Cannot be printed, since it may be a secret.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// The kinds of values that settings have.
#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Flag(bool),
    List(Vec<Node>),
    Table(Table),
    /// What no setting is, by name.
    Other(&'static str),
}

impl Node {
    pub(super) fn new(value: Value, place: Place) -> Self {
        Self { value, place }
    }

    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What to take for any other kind than text. All variables of the environment are texts; for a
    /// setting that is none, theirs is read as TOML would read it.
    pub(super) fn untexted(self) -> Self {
        let (Value::Text(text), Place::Variable(_)) = (&self.value, &self.place) else {
            return self;
        };
        let Ok(parsed) = DeValue::parse(text.trim()) else {
            return self;
        };
        let place = self.place.clone();
        Self::new(from_toml(parsed.into_inner(), &|_| place.clone()), place)
    }

    /// The entries, if it is a table.
    pub(super) fn table_mut(&mut self) -> Option<&mut Table> {
        if self.text().is_some() {
            *self = self.clone().untexted();
        }
        match &mut self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The kind, with an article.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a text",
            Value::Integer(_) => "an integer",
            Value::Flag(_) => "a boolean",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }
}

/// Adds the defaults of what is not there.
pub(super) fn fill(table: &mut Table, defaults: &Table) {
    for (key, node) in defaults {
        table.entry(key.clone()).or_insert_with(|| node.clone());
    }
}

/// Reads a TOML file's text.
pub(super) fn parse_toml(path: &Arc<str>, text: &str) -> Result<Table, ConfigError> {
    let place = |offset| Place::in_file(path, text, offset);
    match DeTable::parse(text) {
        Ok(table) => Ok(table_from_toml(table.into_inner(), &place)),
        // Only the message: the error's full text quotes the line, and that may hold a secret.
        Err(error) => {
            let offset = error.span().map_or(text.len(), |span| span.start);
            Err(place(offset).error(format!("not valid TOML: {}", error.message())))
        }
    }
}

/// Reads the defaults that are part of the program.
pub(super) fn parse_built_in(text: &str) -> Table {
    let table = DeTable::parse(text).expect("the embedded defaults are valid TOML");
    table_from_toml(table.into_inner(), &|_| Place::BuiltIn)
}

// An entry stands where its key does: a table's own span can begin elsewhere.
fn table_from_toml(table: DeTable<'_>, place: &dyn Fn(usize) -> Place) -> Table {
    let entry = |(key, value): (Spanned<_>, Spanned<_>)| {
        let at = place(key.span().start);
        let key: std::borrow::Cow<'_, str> = key.into_inner();
        (key.into_owned(), Node::new(from_toml(value.into_inner(), place), at))
    };
    table.into_iter().map(entry).collect()
}

fn from_toml(value: DeValue<'_>, place: &dyn Fn(usize) -> Place) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Other("a huge number"),
        },
        DeValue::Boolean(flag) => Value::Flag(flag),
        DeValue::Array(items) => {
            let item = |item: Spanned<_>| {
                let at = place(item.span().start);
                Node::new(from_toml(item.into_inner(), place), at)
            };
            Value::List(items.into_iter().map(item).collect())
        }
        DeValue::Table(table) => Value::Table(table_from_toml(table, place)),
        DeValue::Float(_) => Value::Other("a number with a point"),
        DeValue::Datetime(_) => Value::Other("a date or time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let text = "listen = \"x\"\n\n[servers.a]\nargs = [\n  \"one\",\n  2,\n]\n[servers.a.env]\nK = \"v\"\n";
        let mut root = parse_toml(&"t.toml".into(), text).unwrap();
        let line = |node: &Node| match &node.place {
            Place::File { line, .. } => *line,
            other => panic!("{other}"),
        };
        assert_eq!(line(&root["listen"]), 1);
        let servers = root.get_mut("servers").unwrap().table_mut().unwrap();
        let server = servers.get_mut("a").unwrap();
        assert_eq!(line(server), 3);
        let server = server.table_mut().unwrap();
        let Value::List(args) = &server["args"].value else { panic!() };
        assert_eq!((line(&args[0]), line(&args[1])), (5, 6));
        assert_eq!(line(&server["env"]), 8);
        assert_eq!(line(&server.get_mut("env").unwrap().table_mut().unwrap()["K"]), 9);
    }

    #[test]
    fn a_syntax_error_names_the_line_and_does_not_quote_it() {
        let text = "a = 1\nkey = \"hunter2\nb = 2\n";
        let error = parse_toml(&"t.toml".into(), text).err().unwrap();
        let text = format!("{error} {error:?}");
        assert!(text.starts_with("t.toml:2: not valid TOML: "), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn only_the_environments_texts_are_read_as_toml() {
        let variable = Place::Variable("X".into());
        let list = Node::new(Value::Text("[\"a\"]".into()), variable.clone()).untexted();
        assert_eq!(list.kind(), "a list");
        let word = Node::new(Value::Text("word".into()), variable).untexted();
        assert_eq!(word.kind(), "a text");
        let quoted = Node::new(Value::Text("4".into()), Place::Flag("--x")).untexted();
        assert_eq!(quoted.kind(), "a text");
    }
}
