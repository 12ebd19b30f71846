//! JSON from outside, checked once and kept as text.
//!
//! Prevents two attacks. A line break between two tokens is legal JSON, but on a line-based wire it
//! would let a caller smuggle a second message into the backend. And a deeply nested value can
//! overflow the stack of the next parser.

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

/// The deepest nesting that is forwarded. Common parsers fail at 100 to 1,000 levels.
pub const DEPTH_MAX: usize = 64;

/// A JSON object without line breaks and of bounded depth, otherwise byte for byte as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawObject(Bytes);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The parser's message, which names line and column but not the content.
    #[error("the body is not valid JSON: {0}")]
    NotJson(String),
    #[error(
        "the body must be a JSON object holding the tool's arguments, such as \
        {{\"text\": \"hello\"}}, and it is {0}"
    )]
    NotAnObject(&'static str),
    #[error("the body is nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
}

impl RawObject {
    pub fn empty() -> Self {
        Self(Bytes::from_static(b"{}"))
    }

    pub fn parse(body: Bytes) -> Result<Self, RawError> {
        // First, because this check is a plain loop: nothing recursive may see the body before it.
        if deeper_than(&body, DEPTH_MAX) {
            return Err(RawError::TooDeep);
        }
        let value: &RawValue =
            serde_json::from_slice(&body).map_err(|error| RawError::NotJson(error.to_string()))?;
        if !value.get().starts_with('{') {
            return Err(RawError::NotAnObject(type_name(value.get())));
        }
        Ok(Self::in_one_line(body.slice_ref(value.get().as_bytes())))
    }

    fn in_one_line(object: Bytes) -> Self {
        if memchr::memchr2(b'\n', b'\r', &object).is_none() {
            return Self(object);
        }
        let mut object = BytesMut::from(object);
        blank_line_breaks(&mut object);
        Self(object.freeze())
    }

    /// Takes a part of `message`, which must be valid JSON.
    pub fn of(message: &Bytes, part: &RawValue) -> Result<Self, RawError> {
        let text = part.get().as_bytes();
        if text[0] != b'{' {
            return Err(RawError::NotAnObject(type_name(part.get())));
        }
        if deeper_than(text, DEPTH_MAX) {
            return Err(RawError::TooDeep);
        }
        Ok(Self::in_one_line(message.slice_ref(text)))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked by the JSON parser")
    }
}

/// Replaces each line break by a space. In valid JSON they occur only between tokens, because
/// inside strings they must be escaped.
pub fn blank_line_breaks(json: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &json[at..]) {
        json[at + found] = b' ';
        at += found + 1;
    }
}

/// Returns whether arrays and objects nest deeper than `limit`. Works on any bytes, valid JSON or
/// not.
pub fn deeper_than(json: &[u8], limit: usize) -> bool {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(json, at),
            _ => {}
        }
        at += 1;
    }
    false
}

/// Returns the index of the quote that ends the string opened at `open`, or the end of the text.
fn end_of_string(json: &[u8], open: usize) -> usize {
    let mut at = open + 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', json.get(at..).unwrap_or_default()) {
        at += found;
        if json[at] == b'"' {
            return at;
        }
        at += 2;
    }
    json.len()
}

/// Names the type of a JSON value, for messages.
pub fn type_name(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<RawObject, RawError> {
        RawObject::parse(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn everything_but_line_breaks_stays_byte_for_byte() {
        let text =
            "{\"n\": 12345678901234567890123,\t\"x\":1.10, \"z\":0,\"a\":{\"\\u00e9\":\"\\n é\"}}";
        assert_eq!(parse(text).unwrap().as_str(), text);
        assert_eq!(parse("\n {\"a\":\r\n1}\n").unwrap().as_str(), "{\"a\":  1}");
    }

    #[test]
    fn a_hundred_thousand_levels_are_refused() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(parse(&deep), Err(RawError::TooDeep));
    }

    #[test]
    fn the_limit_is_exact_and_brackets_in_strings_do_not_count() {
        let nested =
            |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&nested(DEPTH_MAX - 1)).is_ok());
        assert_eq!(parse(&nested(DEPTH_MAX)), Err(RawError::TooDeep));
        let text = format!("{{\"a\":\"\\\"{}\"}}", "[".repeat(1000));
        assert!(parse(&text).is_ok());
    }

    #[test]
    fn other_values_are_named() {
        for (text, name) in [
            ("[]", "an array"),
            ("\"x\"", "a string"),
            ("null", "null"),
            ("1", "a number"),
            ("true", "a boolean"),
        ] {
            assert_eq!(parse(text), Err(RawError::NotAnObject(name)));
        }
        assert!(matches!(parse("{\"a\":1} {}"), Err(RawError::NotJson(_))));
        assert!(matches!(parse("{\"a\":\"\n\"}"), Err(RawError::NotJson(_))));
        assert!(matches!(parse(""), Err(RawError::NotJson(_))));
    }

    proptest! {
        /// Any accepted body is one line and means the same; a second message stays inside the
        /// first.
        #[test]
        fn accepted_bodies_are_one_line_and_mean_the_same(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", "\"", "\\", ":", ",", "\n", "\r", " ", "1", "\"a\"", "\"a\":",
                "\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}\n", "\\n", "é",
            ]), 0..40)
        ) {
            let text = format!("{{{}}}", pieces.concat());
            if let Ok(object) = parse(&text) {
                prop_assert!(!object.as_str().contains(['\n', '\r']));
                let before: serde_json::Value = serde_json::from_str(&text).unwrap();
                let after: serde_json::Value = serde_json::from_str(object.as_str()).unwrap();
                prop_assert_eq!(before, after);
            }
        }

        #[test]
        fn depth_agrees_with_a_recursive_count(value in json_value()) {
            let text = value.to_string();
            let depth = depth_of(&value);
            prop_assert!(!deeper_than(text.as_bytes(), depth));
            prop_assert!(depth == 0 || deeper_than(text.as_bytes(), depth - 1));
        }
    }

    fn depth_of(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
            serde_json::Value::Object(members) => {
                1 + members.values().map(depth_of).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    fn json_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(serde_json::Value::from),
            "[\\[\\]{}\"\\\\a]{0,6}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(6, 64, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::hash_map("[a\"{]{0,3}", inner, 0..4)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }
}
