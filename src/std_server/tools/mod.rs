//! The tools. None of them uses anything outside the process but the clock.

mod arguments;
mod basic;
mod json_query;

use std::borrow::Cow;
use std::pin::Pin;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use arguments::{Arguments, Misfit};

/// All tools, in the order of `tools/list`.
const TOOLS: [ToolSpec; 7] = [
    basic::ECHO,
    basic::SLEEP,
    basic::TIME,
    basic::HASH,
    basic::UUID,
    json_query::JSON_QUERY,
    basic::FAIL,
];

struct ToolSpec {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    required: &'static [&'static str],
    optional: &'static [&'static str],
    /// Returns the schemas of the arguments.
    properties: fn() -> Value,
    /// Returns the schemas of the structured result's members, all of which are always present.
    output: Option<fn() -> Value>,
    run: for<'a> fn(&Arguments<'a>) -> Result<Called<'a>, Misfit>,
}

/// The result of a call.
#[derive(Debug)]
pub(super) struct Outcome<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) structured: Option<Value>,
    pub(super) is_error: bool,
}

pub(super) type Work = Pin<Box<dyn Future<Output = Outcome<'static>> + Send>>;

pub(super) enum Called<'a> {
    Done(Outcome<'a>),
    Later(Work),
}

/// Calls a tool; `None` if there is none of that name.
pub(super) fn call<'a>(name: &str, arguments: Option<&'a RawValue>) -> Option<Called<'a>> {
    let tool = TOOLS.iter().find(|tool| tool.name == name)?;
    Some(tool.call(arguments))
}

pub(super) fn definitions() -> Vec<Value> {
    TOOLS.iter().map(ToolSpec::definition).collect()
}

impl ToolSpec {
    fn call<'a>(&self, arguments: Option<&'a RawValue>) -> Called<'a> {
        let called = Arguments::read(arguments, self.required, self.optional)
            .and_then(|arguments| (self.run)(&arguments));
        called.unwrap_or_else(|Misfit(why)| {
            // A tool error, so that the model can read it and call again.
            let text = format!("the arguments do not fit `{}`: {why}", self.name);
            Called::Done(Outcome::error(text))
        })
    }

    fn definition(&self) -> Value {
        let mut definition = json!({
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": schema(&(self.properties)(), self.required),
            // True of every tool here: each only computes, waits or reads the clock.
            "annotations": {
                "readOnlyHint": true,
                "destructiveHint": false,
                "idempotentHint": true,
                "openWorldHint": false,
            },
        });
        if let Some(output) = self.output {
            let properties = output();
            let names = properties.as_object().into_iter().flat_map(|it| it.keys());
            let names: Vec<&str> = names.map(String::as_str).collect();
            definition["outputSchema"] = schema(&properties, &names);
        }
        definition
    }
}

fn schema(properties: &Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

impl<'a> Outcome<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), structured: None, is_error: false }
    }

    /// Returns a structured result, with its JSON as text for clients that do not know such
    /// results.
    fn structured(value: Value) -> Self {
        Self { text: value.to_string().into(), structured: Some(value), is_error: false }
    }

    fn error(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), structured: None, is_error: true }
    }
}

/// Calls a tool, which must answer at once.
#[cfg(test)]
fn outcome(name: &str, arguments: &Value) -> Outcome<'static> {
    let raw = serde_json::value::to_raw_value(arguments).unwrap();
    let Some(Called::Done(Outcome { text, structured, is_error })) = call(name, Some(&raw)) else {
        panic!("`{name}` did not answer at once")
    };
    Outcome { text: text.into_owned().into(), structured, is_error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn schemas_name_the_arguments_that_are_read() {
        for tool in &TOOLS {
            let properties = (tool.properties)();
            let described: BTreeSet<&str> =
                properties.as_object().unwrap().keys().map(String::as_str).collect();
            let read = tool.required.iter().chain(tool.optional).copied().collect();
            assert_eq!(described, read, "{}", tool.name);
        }
    }

    #[test]
    fn structured_results_agree_with_their_schema_and_their_text() {
        for (name, arguments) in [
            ("time", json!({})),
            ("uuid", json!({})),
            ("hash", json!({"algorithm": "sha256", "text": ""})),
        ] {
            let definition = definitions().into_iter().find(|it| it["name"] == name).unwrap();
            let described = definition["outputSchema"]["properties"].as_object().unwrap().clone();
            let outcome = outcome(name, &arguments);
            let structured = outcome.structured.unwrap();
            assert_eq!(serde_json::from_str::<Value>(&outcome.text).unwrap(), structured);
            let members = structured.as_object().unwrap();
            assert!(members.keys().eq(described.keys()), "{structured}");
            for (key, value) in members {
                let kind = if value.is_string() { "string" } else { "integer" };
                assert_eq!(described[key]["type"], kind, "{key}");
            }
        }
    }
}
