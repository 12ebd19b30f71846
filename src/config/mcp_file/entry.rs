//! One server, from the client's keys to those of `[servers.*]`.

use std::fs;

use super::env_file;
use super::references::{Surroundings, as_texts};
use crate::common::suggest::did_you_mean;
use crate::config::error::{ConfigError, Mistakes, Place};
use crate::config::tree::{Node, Table, Value};

/// Keys that Trunkline uses. All others are for the MCP client.
const KEYS: [&str; 8] = ["command", "args", "env", "cwd", "url", "headers", "timeout", "transport"];
/// Endings of files that a program makes where there is none.
const DATA: [&str; 6] = [".db", ".sqlite", ".sqlite3", ".json", ".jsonl", ".log"];
/// Keys that another one may be a slip of.
const MEANT: [&str; 5] = ["command", "args", "env", "url", "headers"];
/// Keys that say nothing beyond what other keys say.
const SILENT: [&str; 2] = ["source", "dev"];
/// Clients' names for stdio and Streamable HTTP. Over a URL the older transport is tried, too.
const KINDS: [&str; 7] =
    ["stdio", "local", "http", "streamable-http", "streamableHttp", "streamable_http", "remote"];
/// Clients' names for the address of a server over HTTP.
const URL_KEYS: [&str; 4] = ["url", "serverUrl", "httpUrl", "endpoint"];
/// A larger `timeout` must be in milliseconds: clients allow an hour at most.
const SECONDS_MAX: i64 = 3600;
/// A day.
const MILLISECONDS_MAX: i64 = 24 * 60 * 60 * 1000;

pub(super) enum Entry {
    Server(Node),
    Disabled,
}

/// One entry while it is read.
struct Reader<'a> {
    name: &'a str,
    place: Place,
    table: Table,
    surroundings: &'a Surroundings<'a>,
    warnings: &'a mut Vec<String>,
}

/// Reads an entry.
pub(super) fn read(
    name: &str,
    node: Node,
    surroundings: &Surroundings<'_>,
    warnings: &mut Vec<String>,
) -> Result<Entry, ConfigError> {
    let (place, table) = node.into_table(&format!("mcpServers.{name}"))?;
    let mut reader = Reader { name, place, table, surroundings, warnings };
    if reader.is_disabled()? {
        return Ok(Entry::Disabled);
    }
    reader.rename();
    reader.transport()?;
    reader.expand()?;
    reader.read_env_file()?;
    reader.set_directory();
    reader.set_timeout();
    reader.leave_out_unused();
    Ok(Entry::Server(Node::table(reader.table, reader.place)))
}

impl Reader<'_> {
    /// Returns an error about a key of the entry.
    fn error(&self, key: &str, place: &Place, problem: &str) -> ConfigError {
        place.error(format!("`mcpServers.{}.{key}` {problem}", self.name))
    }

    fn is_disabled(&mut self) -> Result<bool, ConfigError> {
        for (key, disables) in [("disabled", true), ("enabled", false)] {
            if let Some(flag) = self.table.remove(key) {
                match flag.value {
                    Value::Flag(flag) if flag == disables => return Ok(true),
                    Value::Flag(_) => {}
                    _ => return Err(self.error(key, &flag.place, "must be true or false")),
                }
            }
        }
        Ok(false)
    }

    /// Brings the keys of all clients to the same form.
    fn rename(&mut self) {
        let table = &mut self.table;
        if let Some(url) = URL_KEYS.iter().find_map(|key| table.remove(*key)) {
            table.insert("url".to_owned(), url);
        }
        if let Some(env) = table.remove("environment") {
            table.entry("env".to_owned()).or_insert(env);
        }
        let Some(command) = table.get_mut("command") else { return };
        match std::mem::replace(&mut command.value, Value::Other("nothing")) {
            // The program and its arguments in one list.
            Value::List(mut words) if !words.is_empty() => {
                let program = words.remove(0);
                let (place, given) = match table.remove("args") {
                    Some(Node { value: Value::List(args), place }) => (place, args),
                    _ => (program.place.clone(), vec![]),
                };
                words.extend(given);
                table.insert("command".to_owned(), program);
                table.insert("args".to_owned(), Node::new(Value::List(words), place));
            }
            // `{"path": …, "args": […], "env": {…}}`
            Value::Table(mut parts) => {
                table.remove("command");
                if let Some(path) = parts.remove("path") {
                    table.insert("command".to_owned(), path);
                }
                table.append(&mut parts);
            }
            value => command.value = value,
        }
    }

    fn transport(&mut self) -> Result<(), ConfigError> {
        let Some(kind) = self.table.remove("type").or_else(|| self.table.remove("transport"))
        else {
            return Ok(());
        };
        let name = kind.text().unwrap_or_default().to_owned();
        match &*name {
            "sse" => {
                self.table.insert("transport".to_owned(), kind);
                Ok(())
            }
            known if KINDS.contains(&known) => Ok(()),
            _ => {
                let problem = "must be \"stdio\", \"http\" or \"sse\"";
                Err(self.error("type", &kind.place, problem))
            }
        }
    }

    /// Puts in the values that references stand for.
    fn expand(&mut self) -> Result<(), ConfigError> {
        let mut mistakes = Mistakes::default();
        for key in ["command", "url", "cwd", "envFile"] {
            if let Some(node) = self.table.get(key)
                && let Some(text) = node.text()
            {
                let expanded = self.surroundings.expand(text);
                let expanded = expanded.map_err(|what| self.error(key, &node.place, &what));
                if let Some(expanded) = mistakes.take(expanded) {
                    let place = node.place.clone();
                    let node = Node::new(Value::Text(expanded), place);
                    self.table.insert(key.to_owned(), node);
                }
            }
        }
        if let Some(mut args) = self.table.remove("args") {
            if let Value::List(items) = &mut args.value {
                for item in items {
                    let Value::Text(text) = &item.value else { continue };
                    let expanded = self.surroundings.expand(text);
                    let expanded = expanded.map_err(|what| self.error("args", &item.place, &what));
                    if let Some(expanded) = mistakes.take(expanded) {
                        item.value = Value::Text(expanded);
                    }
                }
            }
            self.table.insert("args".to_owned(), args);
        }
        for key in ["env", "headers"] {
            let Some(mut node) = self.table.remove(key) else { continue };
            if let Some(entries) = node.table_mut() {
                as_texts(entries);
                for (name, entry) in entries {
                    let Value::Text(text) = &entry.value else { continue };
                    let translated = self.surroundings.translate(text);
                    let wrong =
                        |what: String| self.error(&format!("{key}.{name}"), &entry.place, &what);
                    if let Some(translated) = mistakes.take(translated.map_err(wrong)) {
                        entry.value = Value::Text(translated);
                    }
                }
            }
            self.table.insert(key.to_owned(), node);
        }
        mistakes.check()
    }

    /// Adds the variables of `envFile`; those of `env` win.
    fn read_env_file(&mut self) -> Result<(), ConfigError> {
        let Some(file) = self.table.remove("envFile") else { return Ok(()) };
        let Some(path) = file.text() else {
            return Err(self.error("envFile", &file.place, "must be the path of a file"));
        };
        let path = self.surroundings.path(path);
        let shown = path.display();
        let text = fs::read_to_string(&path).map_err(|error| {
            let problem = format!("names the file `{shown}`, which cannot be read: {error}");
            self.error("envFile", &file.place, &problem)
        })?;
        let variables = env_file::parse(&text).map_err(|line| {
            let problem = format!("names `{shown}`, whose line {line} is no `NAME=value`");
            self.error("envFile", &file.place, &problem)
        })?;
        let empty = || Node::table(Table::new(), file.place.clone());
        let env = self.table.entry("env".to_owned()).or_insert_with(empty);
        let Some(env) = env.table_mut() else { return Ok(()) };
        for (name, value) in variables {
            let value = Value::Text(value.replace("${", "$${"));
            env.entry(name).or_insert_with(|| Node::new(value, file.place.clone()));
        }
        Ok(())
    }

    /// Lets relative paths start at the directory of the file: in `command`, in `cwd`, and in
    /// arguments that name something there or a file of data. Without such an argument the program
    /// keeps its private directory.
    fn set_directory(&mut self) {
        let at_base = |text: &str| self.surroundings.path(text).display().to_string();
        if let Some(command) = self.table.get_mut("command")
            && let Value::Text(text) = &mut command.value
            && text.contains('/')
            && !text.contains(char::is_whitespace)
        {
            *text = at_base(text);
        }
        if let Some(cwd) = self.table.get_mut("cwd") {
            if let Value::Text(text) = &mut cwd.value {
                *text = at_base(text);
            }
            return;
        }
        let base = &self.surroundings.base;
        let is_relative = |text: &str| {
            let is_marked = text == "." || text.starts_with("./") || text.starts_with("../");
            let is_word = text.starts_with(['-', '/', '~']) || text.is_empty();
            let is_data = DATA.iter().any(|ending| text.ends_with(ending)) && !text.contains(':');
            is_marked || !is_word && (is_data || base.join(text).exists())
        };
        if let Some(Value::List(args)) = self.table.get("args").map(|args| &args.value)
            && let Some(arg) = args.iter().find(|arg| arg.text().is_some_and(is_relative))
            && self.table.contains_key("command")
        {
            let cwd = Node::new(Value::Text(base.display().to_string()), arg.place.clone());
            self.table.insert("cwd".to_owned(), cwd);
        }
    }

    /// Takes over a `timeout`, which some clients count in seconds and some in milliseconds.
    fn set_timeout(&mut self) {
        let Some(Node { value, place }) = self.table.remove("timeout") else { return };
        let name = self.name;
        let Value::Integer(number @ 1..=MILLISECONDS_MAX) = value else {
            return self
                .warnings
                .push(format!("{place}: `timeout` of server `{name}` is not used"));
        };
        let unit = if number <= SECONDS_MAX { "s" } else { "ms" };
        self.warnings.push(format!(
            "{place}: `timeout` {number} of server `{name}` is taken as {number} {unit}"
        ));
        let timeout = Node::new(Value::Text(format!("{number}{unit}")), place);
        self.table.insert("timeout".to_owned(), timeout);
    }

    fn leave_out_unused(&mut self) {
        let (name, warnings) = (self.name, &mut *self.warnings);
        self.table.retain(|key, node| {
            let is_used = KEYS.contains(&key.as_str());
            if !is_used && !SILENT.contains(&key.as_str()) {
                let meant = did_you_mean(key, MEANT);
                warnings
                    .push(format!("{}: `{key}` of server `{name}` is not used{meant}", node.place));
            }
            is_used
        });
    }
}
