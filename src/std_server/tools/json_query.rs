//! `json_query`: one value of a document, exactly as written there (RFC 6901).

use std::collections::HashMap;

use serde_json::json;
use serde_json::value::RawValue;

use super::arguments::Misfit;
use super::{Called, Outcome, ToolSpec};
use crate::protocol::jsonrpc::framing::type_name;

/// Each step reads the rest of the document once, so the number of steps bounds the work.
const STEPS_MAX: usize = 128;

pub(super) const JSON_QUERY: ToolSpec = ToolSpec {
    name: "json_query",
    title: "JSON query",
    description: "Returns the part of a JSON value that a JSON Pointer (RFC 6901, at most 128 \
                 steps) leads to, written as it was given.",
    required: &["json", "pointer"],
    optional: &[],
    properties: || {
        json!({
            "json": {"description": "Any JSON value"},
            "pointer": {
                "type": "string",
                "description": "Such as /users/0/name; empty for the whole value",
            },
        })
    },
    output: None,
    run: |arguments| {
        let pointer = arguments.text("pointer")?;
        let steps = steps(&pointer)?;
        Ok(Called::Done(match walk(arguments.any("json")?, &steps) {
            Ok(found) => Outcome::text(found.get()),
            Err(why) => Outcome::error(format!("nothing is at `{pointer}`: {why}")),
        }))
    },
};

fn steps(pointer: &str) -> Result<Vec<String>, Misfit> {
    if pointer.is_empty() {
        return Ok(Vec::new());
    }
    let misfit = |why: &str| Misfit(format!("`pointer` must {why}, and it is `{pointer}`"));
    let Some(steps) = pointer.strip_prefix('/') else {
        return Err(misfit("be empty or start with `/`"));
    };
    if steps.split('/').count() > STEPS_MAX {
        return Err(Misfit(format!("`pointer` must have at most {STEPS_MAX} steps")));
    }
    if pointer.split('~').skip(1).any(|tail| !tail.starts_with(['0', '1'])) {
        return Err(misfit("have `0` or `1` after each `~`"));
    }
    Ok(steps.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect())
}

fn walk<'a>(document: &'a RawValue, steps: &[String]) -> Result<&'a RawValue, String> {
    steps.iter().try_fold(document, |at, step| {
        let json = at.get();
        let kind = type_name(json);
        let found = match kind {
            "an object" => member(json, step),
            "an array" => item(json, step),
            _ => return Err(format!("`{step}` cannot be looked up in {kind}")),
        };
        let found = found.map_err(|error| error.to_string())?;
        found.ok_or_else(|| format!("`{step}` is not in the {}", &kind[3..]))
    })
}

/// Returns the last of several members with the same name, as most JSON parsers do.
fn member<'a>(object: &'a str, name: &str) -> serde_json::Result<Option<&'a RawValue>> {
    let mut members: HashMap<String, &RawValue> = serde_json::from_str(object)?;
    Ok(members.remove(name))
}

fn item<'a>(array: &'a str, step: &str) -> serde_json::Result<Option<&'a RawValue>> {
    let items: Vec<&RawValue> = serde_json::from_str(array)?;
    Ok(index(step).and_then(|at| items.get(at).copied()))
}

/// Parses digits without leading zeros.
fn index(step: &str) -> Option<usize> {
    let is_plain = step.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain || (step.len() > 1 && step.starts_with('0')) {
        return None;
    }
    step.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(json: &str, pointer: &str) -> (String, bool) {
        let arguments = format!(r#"{{"json":{json},"pointer":{}}}"#, json!(pointer));
        let raw: &RawValue = serde_json::from_str(&arguments).unwrap();
        let Called::Done(outcome) = JSON_QUERY.call(Some(raw)) else { panic!() };
        (outcome.text.into_owned(), outcome.is_error)
    }

    #[test]
    fn the_examples_of_the_standard() {
        let document = concat!(
            r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"#,
            r#""g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#
        );
        for (pointer, found) in [
            ("", document),
            ("/foo", r#"["bar","baz"]"#),
            ("/foo/0", r#""bar""#),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(query(document, pointer), (found.to_owned(), false), "{pointer}");
        }
    }

    #[test]
    fn values_come_back_as_written() {
        let document = r#"[1.10, 12345678901234567890123, 1E400, "\u0061", { "b" : null }]"#;
        for (pointer, found) in [
            ("/0", "1.10"),
            ("/1", "12345678901234567890123"),
            ("/2", "1E400"),
            ("/3", r#""\u0061""#),
            ("/4", r#"{ "b" : null }"#),
            ("/4/b", "null"),
        ] {
            assert_eq!(query(document, pointer), (found.to_owned(), false), "{pointer}");
        }
        assert_eq!(query(r#"{"a":1,"\u0061":2}"#, "/a").0, "2");
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(query(&deep, &"/0".repeat(STEPS_MAX)).0.len(), deep.len() - 2 * STEPS_MAX);
    }

    #[test]
    fn a_missing_value_is_an_error_that_names_the_last_step() {
        for (document, pointer, why) in [
            ("{}", "/a", "`a` is not in the object"),
            ("[1]", "/1", "`1` is not in the array"),
            ("[1]", "/-", "`-` is not in the array"),
            ("[1,2]", "/01", "`01` is not in the array"),
            ("[1]", "/", "`` is not in the array"),
            (r#"{"a":"x"}"#, "/a/0", "`0` cannot be looked up in a string"),
        ] {
            assert_eq!(
                query(document, pointer),
                (format!("nothing is at `{pointer}`: {why}"), true)
            );
        }
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        for pointer in ["a", "/~", "/~2", "#/a", &"/a".repeat(STEPS_MAX + 1)] {
            let (text, is_error) = query("{}", pointer);
            assert!(is_error && text.contains("`pointer` must"), "{text}");
        }
    }
}
