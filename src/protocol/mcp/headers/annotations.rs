//! Finds the `x-mcp-header` annotations in a tool's schema and checks them.
//!
//! An annotation must be reachable by a chain of `properties` only, so that everybody finds the
//! same value for it in the arguments. Anywhere else it makes the tool invalid.

use serde_json::Value;

use super::params::HeaderParam;
use super::shown;
use crate::protocol::jsonrpc::framing::DEPTH_MAX;

const ANNOTATION: &str = "x-mcp-header";
/// HTTP servers accept about a hundred headers in all.
const PARAMS_MAX: usize = 64;

/// Returns the annotated parameters of an `inputSchema`, or the rule that one of them breaks.
pub(super) fn find(json: &str) -> Result<Vec<HeaderParam>, String> {
    // Most schemas have no annotation. The name could also be written with escapes.
    let is_named = contains(json, ANNOTATION);
    if !is_named && !contains(json, "\\u00") {
        return Ok(vec![]);
    }
    let schema = match serde_json::from_str(json) {
        Ok(schema) => schema,
        Err(_) if is_named => return Err("the schema cannot be read".to_owned()),
        Err(_) => return Ok(vec![]),
    };
    let mut search = Search::default();
    search.schema(&schema, Place::Root)?;
    Ok(search.found)
}

/// A position in a schema.
#[derive(Clone, Copy)]
enum Place {
    Root,
    /// At the end of a chain of `properties` only: annotations are allowed.
    Property,
    Elsewhere,
}

#[derive(Default)]
struct Search {
    path: Vec<String>,
    depth: usize,
    found: Vec<HeaderParam>,
}

impl Search {
    fn schema(&mut self, schema: &Value, place: Place) -> Result<(), String> {
        let Some(members) = schema.as_object() else { return Ok(()) };
        // Arguments nested deeper than this are refused, so a deeper annotation never has a value.
        if self.depth == DEPTH_MAX {
            return Ok(());
        }
        self.depth += 1;
        for (keyword, value) in members {
            match (keyword.as_str(), place, value) {
                (ANNOTATION, Place::Property, _) => self.annotation(value, members.get("type"))?,
                (ANNOTATION, ..) => {
                    return Err(format!("`{ANNOTATION}` stands where no property is"));
                }
                ("properties", Place::Root | Place::Property, Value::Object(properties)) => {
                    for (name, property) in properties {
                        self.path.push(name.clone());
                        self.schema(property, Place::Property)?;
                        self.path.pop();
                    }
                }
                (
                    "properties" | "patternProperties" | "dependentSchemas" | "dependencies"
                    | "$defs" | "definitions",
                    _,
                    Value::Object(schemas),
                ) => {
                    schemas.values().try_for_each(|schema| self.schema(schema, Place::Elsewhere))?
                }
                // Data, in which the name of the annotation has no meaning.
                ("default" | "const" | "enum" | "examples", ..) => {}
                (_, _, Value::Array(schemas)) => {
                    schemas.iter().try_for_each(|schema| self.schema(schema, Place::Elsewhere))?;
                }
                _ => self.schema(value, Place::Elsewhere)?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn annotation(&mut self, name: &Value, kind: Option<&Value>) -> Result<(), String> {
        let name = name.as_str().ok_or(format!("`{ANNOTATION}` must be a string"))?;
        if name.is_empty() || !name.bytes().all(is_token) {
            let name = shown(name);
            return Err(format!(
                "`{ANNOTATION}` must be a part of a header's name, and is '{name}'"
            ));
        }
        if !matches!(kind.and_then(Value::as_str), Some("string" | "integer" | "boolean")) {
            let why = "is for parameters of the type string, integer or boolean";
            return Err(format!("`{ANNOTATION}` {why}, and '{}' is none", shown(name)));
        }
        let name = format!("Mcp-Param-{name}");
        let key = name.to_ascii_lowercase();
        let name = shown(&name);
        if self.found.iter().any(|other| other.key == key) {
            return Err(format!("two parameters ask for the header {name}"));
        }
        if self.found.len() == PARAMS_MAX {
            return Err(format!("more than {PARAMS_MAX} parameters ask for headers"));
        }
        self.found.push(HeaderParam { name, key, path: self.path.clone() });
        Ok(())
    }
}

fn contains(text: &str, part: &str) -> bool {
    memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some()
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(schema: &Value) -> Result<Vec<HeaderParam>, String> {
        find(&schema.to_string())
    }

    #[test]
    fn schemas_without_annotations_cost_nothing_and_ask_for_nothing() {
        for schema in [
            json!({"type": "object"}),
            json!(true),
            json!({"properties": {"x-mcp-header": {"type": "object"}}}),
            json!({"properties": {"a": {"default": {"x-mcp-header": "A"}}}}),
            json!({"properties": {"a": {"enum": [{"x-mcp-header": 1}]}}}),
            json!({"description": "mentions x-mcp-header"}),
        ] {
            assert_eq!(found(&schema), Ok(vec![]), "{schema}");
        }
    }

    #[test]
    fn an_annotation_written_with_escapes_is_found() {
        let schema = r#"{"properties":{"a":{"type":"string","x-mcp-\u0068eader":"A"}}}"#;
        assert_eq!(find(schema).unwrap()[0].path, ["a"]);
        assert_eq!(find(r#"{"title":"\u00e9 \ud83d"}"#), Ok(vec![]));
    }

    #[test]
    fn annotations_that_break_the_rules_are_refused() {
        let of = |kind: &str, name: Value| json!({"type": kind, "x-mcp-header": name});
        let mut schemas: Vec<Value> = vec![
            of("string", json!("Root")),
            json!({"properties": {
               "a": of("string", json!("Same")),
               "b": of("string", json!("sAME")),
            }}),
            json!({"properties": {"a": {"x-mcp-header": "Untyped"}}}),
        ];
        for name in [json!(""), json!("a b"), json!("a:b"), json!("é"), json!("a\tb"), json!(1)] {
            schemas.push(json!({"properties": {"a": of("string", name)}}));
        }
        for kind in ["number", "object", "array", "null"] {
            schemas.push(json!({"properties": {"a": of(kind, json!("A"))}}));
        }
        let inner = of("string", json!("A"));
        for keyword in ["items", "not", "if", "then", "additionalProperties", "contains"] {
            schemas.push(json!({"properties": {"a": {keyword: inner}}}));
            schemas.push(json!({keyword: {"properties": {"a": inner}}}));
        }
        for keyword in ["oneOf", "anyOf", "allOf", "prefixItems"] {
            schemas.push(json!({"properties": {"a": {keyword: [inner]}}}));
        }
        for keyword in ["$defs", "definitions", "patternProperties", "dependentSchemas"] {
            schemas.push(json!({keyword: {"a": {"properties": {"b": inner}}}}));
        }
        for schema in schemas {
            assert!(found(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_deeply_nested_schema_does_no_harm() {
        let deep = |levels| {
            let (open, close) = ("{\"properties\":{\"a\":".repeat(levels), "}}".repeat(levels));
            let schema = format!("{open}{{\"type\":\"string\",\"x-mcp-header\":\"A\"}}{close}");
            find(&schema).map_or(0, |found| found.len())
        };
        assert_eq!(deep(30), 1);
        assert_eq!(deep(70), 0);
        assert_eq!(deep(100_000), 0);
    }
}
