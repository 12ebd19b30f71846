//! The top level of one JSON object: its members by name, with what is inside them left raw.
//!
//! Every call's `params` and `_meta` go through here. An object in which a name appears twice is refused:
//! parsers disagree on which of the two counts, so the gateway could check one and the server obey the
//! other.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Up to so many members, comparing all names is quicker than hashing them.
const COMPARED_MAX: usize = 16;
/// A longer name is cut in messages, so that nobody gets back all that they sent.
const SHOWN_CHARS_MAX: usize = 64;

/// The members of one JSON object in the order they were written, each name once.
#[derive(Debug)]
pub struct Members<'a> {
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
}

/// Why a text is no object with members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// With the parser's words, which name the line and column but not the content.
    #[error("not valid JSON: {0}")]
    NotJson(String),
    /// Some other JSON.
    #[error("must be a JSON object, and it is {0}")]
    NotAnObject(&'static str),
    /// The same name twice, however each of them is escaped.
    #[error("the member {0:?} appears twice")]
    Duplicate(String),
}

impl<'a> Members<'a> {
    /// Reads an object.
    pub fn parse(json: &'a str) -> Result<Self, MembersError> {
        let not_json = |error: serde_json::Error| MembersError::NotJson(error.to_string());
        let first = json.trim_ascii_start().bytes().next();
        if let Some(first) = first.filter(|first| *first != b'{') {
            serde_json::from_str::<&RawValue>(json).map_err(not_json)?;
            return Err(MembersError::NotAnObject(super::raw::describe(first)));
        }
        let mut parser = serde_json::Deserializer::from_str(json);
        let list = parser.deserialize_map(ListVisitor).map_err(not_json)?;
        parser.end().map_err(not_json)?;
        match first_duplicate(&list) {
            Some(name) => {
                Err(MembersError::Duplicate(name.chars().take(SHOWN_CHARS_MAX).collect()))
            }
            None => Ok(Self { list }),
        }
    }

    /// The value of the member with exactly this name.
    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.list.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
    }

    /// All of them, in the order they were written.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.list.iter().map(|(name, value)| (&**name, *value))
    }

    /// A member whose name is none of `known` but would pass for one with a reader that ignores case, such
    /// as `Name`. Some servers read so: they would take it where the gateway did not look.
    pub fn folded_twin(&self, known: &[&str]) -> Option<&str> {
        let is_twin =
            |name: &str| !known.contains(&name) && known.iter().any(|known| alike(name, known));
        self.iter().map(|(name, _)| name).find(|name| is_twin(name))
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(8);
        while let Some(member) = map.next_entry_seed(Name, std::marker::PhantomData)? {
            list.push(member);
        }
        Ok(list)
    }
}

/// Borrows a name that has no escapes, which serde's own `Cow<str>` does not.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<Self::Value, D::Error> {
        name.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(name.to_owned()))
    }
}

/// An object of a hundred thousand members must not cost ten thousand million comparisons.
fn first_duplicate<'l>(list: &'l [(Cow<'_, str>, &RawValue)]) -> Option<&'l str> {
    if list.len() <= COMPARED_MAX {
        let again = |at: usize| list[..at].iter().any(|(name, _)| *name == list[at].0);
        return (1..list.len()).find(|at| again(*at)).map(|at| &*list[at].0);
    }
    let mut seen = HashSet::with_capacity(list.len());
    list.iter().map(|(name, _)| &**name).find(|name| !seen.insert(*name))
}

/// Whether two names are one when case is ignored, generously: by way of upper case, so that `ſ` is `s`
/// and the Kelvin sign is `k`, as with parsers that fold by Unicode.
fn alike(a: &str, b: &str) -> bool {
    fn folded(text: &str) -> impl Iterator<Item = char> {
        text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
    }
    a.eq_ignore_ascii_case(b) || (!(a.is_ascii() && b.is_ascii()) && folded(a).eq(folded(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn members_are_found_and_stay_raw() {
        let json = " {\"b\" : 1.10 ,\"a\\u0062\":{\"b\":[ 2 ]}, \"\":\"x\\n\"} ";
        let members = Members::parse(json).unwrap();
        assert_eq!(members.get("b").unwrap().get(), "1.10");
        assert_eq!(members.get("ab").unwrap().get(), "{\"b\":[ 2 ]}");
        assert!(members.get("a\\u0062").is_none());
        let names: Vec<&str> = members.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["b", "ab", ""]);
        assert!(matches!(members.list[0].0, Cow::Borrowed(_)));
    }

    #[test]
    fn a_name_is_there_once_however_it_is_spelled() {
        let twice = |name: &str| MembersError::Duplicate(name.to_owned());
        assert_eq!(Members::parse(r#"{"a":1,"b":2,"\u0061":3}"#).unwrap_err(), twice("a"));
        let many: Vec<String> = (0..1000).map(|n| format!("\"n{}\":0", n % 999)).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(Members::parse(&many).unwrap_err(), twice("n0"));
        let long = format!("{{\"{0}\":1,\"{0}\":2}}", "é".repeat(500));
        assert!(Members::parse(&long).unwrap_err().to_string().chars().count() < 100);
    }

    #[test]
    fn other_texts_are_told_apart() {
        for (json, what) in [("[]", "an array"), (" null", "null"), ("\"{}\"", "a string")] {
            assert_eq!(Members::parse(json).unwrap_err(), MembersError::NotAnObject(what));
        }
        for json in ["", "{", "{\"a\":}", "{} {}", "[1", "{1:2}", "{\"a\":1,}", "{\"a\":1e}"] {
            let refused = Members::parse(json).unwrap_err();
            assert!(matches!(refused, MembersError::NotJson(_)), "{json}");
        }
    }

    #[test]
    fn names_that_differ_in_case_alone_are_found() {
        let twin = |json: &str| {
            let members = Members::parse(json).unwrap();
            members.folded_twin(&["name", "task", "_meta"]).map(str::to_owned)
        };
        assert_eq!(twin(r#"{"name":1,"task":2,"other":3,"nam":4,"nämé":5}"#), None);
        for name in ["Name", "NAME", "tas\u{212a}", "ta\u{17f}k", "_Meta"] {
            assert_eq!(twin(&format!("{{\"name\":1,\"{name}\":2}}")).as_deref(), Some(name));
        }
    }

    proptest! {
        /// Nothing makes it panic, and it takes exactly what the full parser takes.
        #[test]
        fn agrees_with_the_full_parser(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", "\"a\":", "\"\\u0061\":", "\"b\"", ",", ":", "1", " ", "null", "\\", "\"",
            ]), 0..12)
        ) {
            let json = format!("{{{}}}", pieces.concat());
            let full = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&json);
            match Members::parse(&json) {
                Ok(members) => prop_assert_eq!(members.list.len(), full.unwrap().len()),
                Err(MembersError::Duplicate(_)) => prop_assert!(full.is_ok()),
                Err(_) => prop_assert!(full.is_err()),
            }
        }
    }
}
