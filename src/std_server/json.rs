//! Looks into raw JSON without turning it into something else.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in order.
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

/// A key, borrowed if it has no escapes.
#[derive(serde::Deserialize)]
pub(super) struct Key<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The text of a JSON string, or nothing if it is no string or has an escape that is no character.
pub(super) fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw.get()).ok().map(Cow::Owned)
}

/// What kind of value it is, for sentences.
pub(super) fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes()[0] {
        b'{' => "an object",
        b'[' => "an array",
        b'"' => "a string",
        b't' | b'f' => "a boolean",
        b'n' => "null",
        _ => "a number",
    }
}

/// Whether two ids are the same, in type and value. Numbers are compared as written; of strings, two
/// spellings may mean the same.
pub(super) fn same_id(one: &RawValue, other: &RawValue) -> bool {
    one.get() == other.get() || text(one).is_some_and(|one| text(other) == Some(one))
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn ids_are_the_same_in_type_and_value() {
        for (one, other) in [("1", "1"), (r#""a""#, r#""\u0061""#), ("null", "null")] {
            assert!(same_id(raw(one), raw(other)), "{one} {other}");
        }
        for (one, other) in
            [("1", "\"1\""), ("1", "1.0"), ("null", "\"null\""), ("\"\\ud800\"", "1")]
        {
            assert!(!same_id(raw(one), raw(other)), "{one} {other}");
        }
    }

    #[test]
    fn only_strings_have_text() {
        assert_eq!(text(raw(r#""a\n\"é""#)).unwrap(), "a\n\"é");
        assert_eq!(text(raw(r#""""#)).unwrap(), "");
        for other in ["1", "null", "[]", r#""\ud800""#] {
            assert!(text(raw(other)).is_none(), "{other}");
        }
    }
}
