//! Rewrites the definition of a tool as a toolset lists it. Members that the toolset does not
//! change stay byte for byte.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::ChangedTool;
use crate::protocol::jsonrpc::members::{MemberChange, Members, Text};

impl ChangedTool {
    /// Returns the definition under its name in the toolset; `None` if the server's own is
    /// ambiguous.
    pub fn rewrite_definition(&self, definition: &str) -> Option<String> {
        let members = Members::parse(definition).ok()?;
        let schema = match members.get("inputSchema") {
            Some(schema) if !self.arguments.is_empty() => Some(self.rewrite_schema(schema.get())?),
            _ => None,
        };
        let change = |name: &str, _: &RawValue| match name {
            "outputSchema" if self.result.is_any() => MemberChange::Drop,
            "inputSchema" => replaced(schema.clone()),
            "name" => replaced(Some(json(&self.name))),
            _ => MemberChange::Keep,
        };
        let description = self.description.as_deref().map(json);
        let add: Vec<_> = description.iter().map(|text| ("description", text.as_str())).collect();
        Some(members.rewrite(change, &add))
    }

    /// Rewrites an `inputSchema`: hidden arguments go, others may get another description.
    fn rewrite_schema(&self, schema: &str) -> Option<String> {
        let members = Members::parse(schema).ok()?;
        let properties = match members.get("properties") {
            Some(properties) => Some(self.rewrite_properties(properties.get())?),
            None => None,
        };
        let required = members.get("required").map(|names| self.without_hidden(names));
        let change = |name: &str, _: &RawValue| match name {
            "properties" => replaced(properties.clone()),
            "required" => replaced(required.clone()),
            _ => MemberChange::Keep,
        };
        Some(members.rewrite(change, &[]))
    }

    fn rewrite_properties(&self, properties: &str) -> Option<String> {
        let members = Members::parse(properties).ok()?;
        let change = |name: &str, schema: &RawValue| match self.arguments.get(name) {
            Some(change) if change.is_hidden() => MemberChange::Drop,
            Some(change) => {
                replaced(change.description.as_deref().and_then(|it| described(schema, it)))
            }
            None => MemberChange::Keep,
        };
        Some(members.rewrite(change, &[]))
    }

    fn without_hidden(&self, names: &RawValue) -> String {
        let Ok(names) = serde_json::from_str::<Vec<Text<'_>>>(names.get()) else {
            return names.get().to_owned();
        };
        let is_hidden = |name: &str| self.arguments.get(name).is_some_and(|it| it.is_hidden());
        let shown = names.iter().map(|name| &*name.0).filter(|name| !is_hidden(name));
        Value::from_iter(shown).to_string()
    }
}

fn replaced<'a>(value: Option<String>) -> MemberChange<'a> {
    value.map_or(MemberChange::Keep, |value| MemberChange::Replace(Cow::Owned(value)))
}

/// Returns the schema of an argument with another description. A schema that is no object has
/// none.
fn described(schema: &RawValue, description: &str) -> Option<String> {
    let members = Members::parse(schema.get()).ok()?;
    Some(members.rewrite(|_, _| MemberChange::Keep, &[("description", &json(description))]))
}

fn json(text: &str) -> String {
    Value::from(text).to_string()
}
