//! The clients' ways to refer to variables, translated into Trunkline's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::Sources;
use crate::config::secret::{expand, is_variable_name};
use crate::config::tree::{Node, Table, Value};

/// The values that references of a file stand for.
pub(super) struct Surroundings<'a> {
    /// The directory that relative paths start at.
    pub(super) base: PathBuf,
    /// The defaults of values that an editor would ask for.
    inputs: BTreeMap<String, String>,
    sources: &'a Sources,
}

impl<'a> Surroundings<'a> {
    pub(super) fn new(base: PathBuf, inputs: Option<Node>, sources: &'a Sources) -> Self {
        let items = match inputs.map(|node| node.value) {
            Some(Value::List(items)) => items,
            _ => vec![],
        };
        let input = |item: Node| match item.value {
            Value::Table(table) => {
                let text = |key: &str| table.get(key).and_then(Node::text).map(str::to_owned);
                text("id").zip(text("default"))
            }
            _ => None,
        };
        Self { base, inputs: items.into_iter().filter_map(input).collect(), sources }
    }

    /// Reads a text that has no reference to a tenant's secret. An error follows the setting's
    /// name.
    pub(super) fn expand(&self, text: &str) -> Result<String, String> {
        let translated = self.translate(text)?;
        expand(&translated, self.sources).map(|text| text.expose().to_owned())
    }

    /// Returns the full path of a file or directory.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        match text.strip_prefix("~/").zip(self.variable("HOME")) {
            Some((rest, home)) => Path::new(home).join(rest),
            None => self.base.join(text),
        }
    }

    /// Rewrites a text so that its references are those of `[servers.*]`: values that only a
    /// client knows are put in.
    pub(super) fn translate(&self, text: &str) -> Result<String, String> {
        if let Some(name) = text.strip_prefix('$').filter(|name| is_variable_name(name)) {
            return Ok(format!("${{{name}}}"));
        }
        let mut translated = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            translated.push_str(before);
            let Some((reference, after)) = from[1..].split_once('}') else {
                rest = from;
                break;
            };
            let has_dollar = before.ends_with('$');
            let is_escaped = before.ends_with("$$");
            if is_escaped || !has_dollar && !is_of_opencode(reference) {
                translated.push('{');
                rest = &from[1..];
                continue;
            }
            if !has_dollar {
                translated.push('$');
            }
            match self.value(reference)? {
                Reference::Same(reference) => translated += &format!("{{{reference}}}"),
                Reference::Value(value) => {
                    translated.pop();
                    translated += &value.replace("${", "$${");
                }
            }
            rest = after;
        }
        translated.push_str(rest);
        Ok(translated)
    }

    fn value(&self, reference: &str) -> Result<Reference, String> {
        let name = reference.strip_prefix("env:").unwrap_or(reference);
        if let Some((name, default)) = name.split_once(":-").filter(|it| is_variable_name(it.0)) {
            let value = self.variable(name).filter(|value| !value.is_empty());
            return Ok(Reference::Value(value.unwrap_or(default).to_owned()));
        }
        if let Some(path) = reference.strip_prefix("file:") {
            return Ok(Reference::Same(format!("file:{}", self.path(path).display())));
        }
        if let Some(id) = reference.strip_prefix("input:") {
            let default = self.inputs.get(id).cloned();
            return default.map(Reference::Value).ok_or_else(|| {
                format!(
                    "refers to the input `{id}`, which only an editor can ask for: write \
                     `${{NAME}}` instead, and set that variable of the environment"
                )
            });
        }
        let value = match reference {
            "workspaceFolder" | "workspaceRoot" | "cwd" => self.base.display().to_string(),
            "workspaceFolderBasename" => {
                self.base.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
            "userHome" => return Ok(Reference::Same("HOME".to_owned())),
            "pathSeparator" | "/" => "/".to_owned(),
            _ => return Ok(Reference::Same(name.to_owned())),
        };
        Ok(Reference::Value(value))
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let mut variables = self.sources.env.iter();
        variables.find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

enum Reference {
    /// Trunkline's own, without the braces.
    Same(String),
    Value(String),
}

/// Recognises `{env:NAME}` and `{file:PATH}`, which stand without a dollar.
fn is_of_opencode(reference: &str) -> bool {
    reference.starts_with("env:") || reference.starts_with("file:")
}

/// Returns the entries of a table as texts: clients write numbers and booleans, too.
pub(super) fn as_texts(table: &mut Table) {
    for node in table.values_mut() {
        let text = match &node.value {
            Value::Integer(number) => number.to_string(),
            Value::Number(number) => number.clone(),
            Value::Flag(flag) => flag.to_string(),
            _ => continue,
        };
        node.value = Value::Text(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let env = [("TOKEN", "t ${X}"), ("HOME", "/home/u"), ("EMPTY", "")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let sources = Sources { env: env.to_vec(), ..Sources::default() };
        Surroundings::new("/srv/app".into(), None, &sources).expand(text)
    }

    #[test]
    fn the_clients_references_are_understood() {
        for (text, value) in [
            ("plain {a} $5", "plain {a} $5"),
            ("<${TOKEN}>", "<t ${X}>"),
            ("<${env:TOKEN}>", "<t ${X}>"),
            ("$TOKEN", "t ${X}"),
            ("{env:TOKEN}", "t ${X}"),
            ("${TOKEN:-d} ${GONE:-d} ${env:EMPTY:-e}", "t ${X} d e"),
            ("${GONE:-}${EMPTY:-e}", "e"),
            ("${workspaceFolder}/x${/}y", "/srv/app/x/y"),
            ("${workspaceFolderBasename} ${userHome}", "app /home/u"),
            ("$${TOKEN}", "${TOKEN}"),
            ("a${", "a${"),
        ] {
            match expanded(text) {
                Ok(expanded) => assert_eq!(expanded, value, "{text}"),
                Err(error) => assert!(text == "a${", "{text}: {error}"),
            }
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(expanded("${env:GONE}").unwrap_err().contains("`GONE`, which is not set"));
        assert!(expanded("${input:key}").unwrap_err().contains("the input `key`, which only"));
    }
}
