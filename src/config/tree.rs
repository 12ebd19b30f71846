//! Settings before they have types: a tree in which every value knows its place.
//!
//! The TOML file, the JSON file and the environment are merged into one tree, which `reader` reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Lines, Mistakes, Place};
use super::quotes;

pub(super) type Table = BTreeMap<String, Node>;

/// A value and its place. Has no `Debug`, since the value may be secret.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Place,
}

#[derive(Clone)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Flag(bool),
    /// A number of a JSON file that is no [`Value::Integer`], as it is written.
    Number(String),
    List(Vec<Node>),
    Table(Table),
    /// A kind of value that no setting has, by name.
    Other(&'static str),
}

impl Node {
    pub(super) fn new(value: Value, place: Place) -> Self {
        Self { value, place }
    }

    pub(super) fn table(table: Table, place: Place) -> Self {
        Self::new(Value::Table(table), place)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the text, or an error such as "is a list" that does not show the value.
    pub(super) fn text_or_kind(&self) -> Result<&str, String> {
        self.text().ok_or_else(|| format!("is {}", self.value.kind()))
    }

    /// Reads a variable's text as TOML, for settings that are not texts. Leaves other nodes alone.
    pub(super) fn untexted(self) -> Self {
        match (&self.value, &self.place) {
            (Value::Text(text), Place::Variable(_)) => match Value::parse(text.trim(), &self.place)
            {
                Some(value) => Self::new(value, self.place),
                None => self,
            },
            _ => self,
        }
    }

    pub(super) fn table_mut(&mut self) -> Option<&mut Table> {
        if self.text().is_some() {
            *self = self.clone().untexted();
        }
        match &mut self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the entries of a node that must be a table.
    pub(super) fn into_table(self, path: &str) -> Result<(Place, Table), ConfigError> {
        let Self { value, place } = self.untexted();
        match value {
            Value::Table(table) => Ok((place, table)),
            value => {
                let kind = value.kind();
                Err(place.error(format!("`{path}` must be a table, and it is {kind}")))
            }
        }
    }

    /// Returns the value, for errors about settings that are never secret.
    pub(super) fn show(&self) -> String {
        match &self.value {
            Value::Text(text) => format!("{text:?}"),
            Value::Integer(number) => number.to_string(),
            other => other.kind().to_owned(),
        }
    }
}

impl Value {
    /// Parses a TOML value. All its parts have the same place.
    pub(super) fn parse(text: &str, place: &Place) -> Option<Self> {
        let parsed = DeValue::parse(text).ok()?;
        Some(from_toml(parsed.into_inner(), &|_| place.clone()))
    }

    /// Returns the value without the places of its parts.
    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Integer(number) => (*number).into(),
            Self::Float(number) => (*number).into(),
            Self::Flag(flag) => (*flag).into(),
            Self::Number(_) | Self::Other(_) => Json::Null,
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Table(table) => {
                table.iter().map(|(key, node)| (key.clone(), node.value.to_json())).collect()
            }
        }
    }

    /// Returns the kind, with an article.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number with a point",
            Self::Flag(_) => "a boolean",
            Self::Number(_) => "a number with a point",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

/// Parses the text of a TOML file. Quotes that are missing are mistakes, and are added, so that the
/// mistakes behind them are found in the same run.
pub(super) fn parse_toml(path: &Arc<str>, text: &str) -> Result<(Table, Mistakes), ConfigError> {
    let lines = Lines::of(path, text);
    let place = |offset| lines.place(offset);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut mistakes = Mistakes::default();
    if errors.is_empty() {
        return Ok((table_from_toml(table.into_inner(), &place), mistakes));
    }
    if text.trim_start().starts_with('{') {
        let problem = "it is JSON, not TOML: the file of an MCP client goes to `--mcp-config`";
        return Err(place(0).error(problem));
    }
    let mut mended: Vec<_> = text.lines().map(Cow::Borrowed).collect();
    let mut last = 0;
    for error in errors {
        let offset = error.span().map_or(text.len(), |span| span.start);
        let line = quotes::line_at(text, offset);
        // One mistake is told once, although a parser stumbles over it more often.
        if line.number == last {
            continue;
        }
        last = line.number;
        // Only the message: the full text of the error quotes the line, which may hold a secret.
        let problem = quotes::missing(line.text).unwrap_or_else(|| error.message().to_owned());
        mistakes.add(place(offset).error(format!("not valid TOML: {problem}")));
        if let (Some(quoted), Some(slot)) =
            (quotes::added(line.text), mended.get_mut(line.number - 1))
        {
            *slot = Cow::Owned(quoted);
        }
    }
    let mended = mended.join("\n");
    match DeTable::parse(&mended) {
        Ok(table) => {
            let lines = Lines::of(path, &mended);
            Ok((table_from_toml(table.into_inner(), &|offset| lines.place(offset)), mistakes))
        }
        Err(_) => mistakes.or(None),
    }
}

/// Parses text that is part of the program.
pub(super) fn built_in(text: &str) -> Table {
    let table = DeTable::parse(text).expect("the embedded text is valid TOML");
    table_from_toml(table.into_inner(), &|_| Place::BuiltIn)
}

// The place of an entry is that of its key: the span of a table can begin elsewhere.
fn table_from_toml(table: DeTable<'_>, place: &dyn Fn(usize) -> Place) -> Table {
    let entry = |(key, value): (Spanned<_>, Spanned<_>)| {
        let at = place(key.span().start);
        let key: Cow<'_, str> = key.into_inner();
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
        DeValue::Float(digits) => match digits.as_str().parse() {
            Ok(number) => Value::Float(number),
            Err(_) => Value::Other("a number with a point"),
        },
        DeValue::Datetime(_) => Value::Other("a date or time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_line() {
        let text = "listen = \"x\"\n\n[servers.a]\nargs = [\n  \"one\",\n  2,\n]\n\
                    [servers.a.env]\nK = \"v\"\n";
        let (mut root, _) = parse_toml(&"t.toml".into(), text).unwrap();
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
        assert_eq!(list.value.kind(), "a list");
        let word = Node::new(Value::Text("word".into()), variable).untexted();
        assert_eq!(word.value.kind(), "a text");
        let quoted = Node::new(Value::Text("4".into()), Place::Flag("--x")).untexted();
        assert_eq!(quoted.value.kind(), "a text");
    }
}
