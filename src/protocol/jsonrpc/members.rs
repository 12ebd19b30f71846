//! Parses the top level of one JSON object and leaves the values raw. Writes objects, and copies of
//! objects with some members changed.
//!
//! Every call's `params` and `_meta` go through here. An object with a duplicate name is refused.
//! Parsers disagree on which of the two counts, so the gateway could check one and the server obey
//! the other.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Up to this many members, comparing all names is faster than hashing them.
const COMPARED_MAX: usize = 16;
/// The most members of a caller's object that the gateway takes apart. No method defines 20, and a
/// body of `max_body` can have a million, each of which would be compared with all known names.
pub const MEMBERS_MAX: usize = 256;
/// Longer names are cut in error messages, so that no error echoes a large request.
const SHOWN_CHARS_MAX: usize = 64;

/// The members of one JSON object in their original order, each name once.
#[derive(Debug)]
pub struct Members<'a> {
    list: Vec<(Cow<'a, str>, &'a RawValue)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// The parser's message, which names line and column but not the content.
    #[error("not valid JSON: {0}")]
    NotJson(String),
    #[error("must be a JSON object, and it is {0}")]
    NotAnObject(&'static str),
    /// A name appears twice, perhaps escaped in different ways.
    #[error("the member {0:?} appears twice")]
    Duplicate(String),
    #[error("has more than {0} members: put them into an object inside")]
    TooMany(usize),
}

impl<'a> Members<'a> {
    /// Parses an object of a server's, which may have any number of members.
    pub fn parse(json: &'a str) -> Result<Self, MembersError> {
        Self::parse_up_to(json, usize::MAX)
    }

    /// Parses an object of a caller's, which may have at most [`MEMBERS_MAX`] members. Reads no
    /// further than that.
    pub fn of_caller(json: &'a str) -> Result<Self, MembersError> {
        Self::parse_up_to(json, MEMBERS_MAX)
    }

    fn parse_up_to(json: &'a str, max: usize) -> Result<Self, MembersError> {
        let not_json = |error: serde_json::Error| MembersError::NotJson(error.to_string());
        let text = json.trim_ascii_start();
        if !text.is_empty() && !text.starts_with('{') {
            serde_json::from_str::<&RawValue>(json).map_err(not_json)?;
            return Err(MembersError::NotAnObject(super::framing::type_name(text)));
        }
        let mut parser = serde_json::Deserializer::from_str(json);
        let is_over = Cell::new(false);
        let list = parser.deserialize_map(ListVisitor { max, is_over: &is_over });
        if is_over.get() {
            return Err(MembersError::TooMany(max));
        }
        let list = list.map_err(not_json)?;
        parser.end().map_err(not_json)?;
        match first_duplicate(&list) {
            Some(name) => {
                Err(MembersError::Duplicate(name.chars().take(SHOWN_CHARS_MAX).collect()))
            }
            None => Ok(Self { list }),
        }
    }

    pub fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.list.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.list.iter().map(|(name, value)| (&**name, *value))
    }

    /// Returns a member whose name differs from a `known` one in case only, such as `Name`. Some
    /// servers ignore case: they would obey a member that the gateway did not check.
    pub fn case_variant(&self, known: &[&str]) -> Option<&str> {
        let is_variant =
            |name: &str| !known.contains(&name) && known.iter().any(|known| alike(name, known));
        self.iter().map(|(name, _)| name).find(|name| is_variant(name))
    }
}

struct ListVisitor<'v> {
    max: usize,
    /// Set if the object has more members.
    is_over: &'v Cell<bool>,
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::with_capacity(8);
        while let Some((Text(name), value)) = map.next_entry()? {
            if list.len() == self.max {
                self.is_over.set(true);
                break;
            }
            list.push((name, value));
        }
        Ok(list)
    }
}

/// A string, borrowed if it has no escapes. A plain `Cow<str>` never borrows with serde.
#[derive(Deserialize)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Hashes the names of large objects: comparing all pairs would take quadratic time.
fn first_duplicate<'l>(list: &'l [(Cow<'_, str>, &RawValue)]) -> Option<&'l str> {
    if list.len() <= COMPARED_MAX {
        let again = |at: usize| list[..at].iter().any(|(name, _)| *name == list[at].0);
        return (1..list.len()).find(|at| again(*at)).map(|at| &*list[at].0);
    }
    let mut seen = HashSet::with_capacity(list.len());
    list.iter().map(|(name, _)| &**name).find(|name| !seen.insert(*name))
}

/// Compares names without case, as parsers do that fold by Unicode: `ſ` equals `s`, and the Kelvin
/// sign equals `k`.
fn alike(a: &str, b: &str) -> bool {
    fn folded(text: &str) -> impl Iterator<Item = char> {
        text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
    }
    a.eq_ignore_ascii_case(b) || (!(a.is_ascii() && b.is_ascii()) && folded(a).eq(folded(b)))
}

/// A change of one member in [`Members::rewrite`].
#[derive(Debug)]
pub enum MemberChange<'a> {
    /// Keeps the value byte for byte.
    Keep,
    /// Replaces the value by this JSON.
    Replace(Cow<'a, str>),
    Drop,
}

impl<'a> Members<'a> {
    /// Applies `change` to each member and then adds the members of `add` (names and JSON).
    /// Existing members with a name in `add` are dropped.
    pub fn rewrite(
        &self,
        mut change: impl FnMut(&str, &'a RawValue) -> MemberChange<'a>,
        add: &[(&str, &str)],
    ) -> String {
        let size = |(name, value): (&str, &str)| name.len() + value.len() + 4;
        let old_size: usize = self.iter().map(|(name, value)| size((name, value.get()))).sum();
        let new_size: usize = add.iter().copied().map(size).sum();
        let mut out = ObjectWriter::with_capacity(old_size + new_size + 2);
        for (name, value) in self.iter().filter(|(name, _)| !add.iter().any(|new| new.0 == *name)) {
            match change(name, value) {
                MemberChange::Keep => out.member(name, value.get()),
                MemberChange::Replace(value) => out.member(name, &value),
                MemberChange::Drop => {}
            }
        }
        for (name, value) in add {
            out.member(name, value);
        }
        out.finish()
    }
}

/// Inserts a first member into the text of an object, without parsing. The object must not have
/// that member. Text that is no object comes back unchanged.
pub fn with_first_member(json: &str, name: &str, value: &str) -> String {
    let Some(rest) = json.trim_ascii_start().strip_prefix('{') else {
        return json.to_owned();
    };
    let mut out = ObjectWriter::with_capacity(json.len() + name.len() + value.len() + 5);
    out.member(name, value);
    if !rest.trim_ascii_start().starts_with('}') {
        out.text.push(',');
    }
    out.text.push_str(rest);
    out.text
}

/// Writes text as a JSON string. Fast for names, which hardly ever need an escape.
pub fn write_name(out: &mut String, name: &str) {
    if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&serde_json::json!(name).to_string());
    } else {
        out.push('"');
        out.push_str(name);
        out.push('"');
    }
}

/// Writes an object member by member. The caller must not write a name twice.
#[derive(Debug)]
pub struct ObjectWriter {
    text: String,
}

impl ObjectWriter {
    pub fn with_capacity(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes);
        text.push('{');
        Self { text }
    }

    /// Adds a member; `value` is JSON.
    pub fn member(&mut self, name: &str, value: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        write_name(&mut self.text, name);
        self.text.push(':');
        self.text.push_str(value);
    }

    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
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
    fn a_duplicate_name_is_refused_however_it_is_escaped() {
        let twice = |name: &str| MembersError::Duplicate(name.to_owned());
        assert_eq!(Members::parse(r#"{"a":1,"b":2,"\u0061":3}"#).unwrap_err(), twice("a"));
        let many: Vec<String> = (0..1000).map(|n| format!("\"n{}\":0", n % 999)).collect();
        let many = format!("{{{}}}", many.join(","));
        assert_eq!(Members::parse(&many).unwrap_err(), twice("n0"));
        let long = format!("{{\"{0}\":1,\"{0}\":2}}", "é".repeat(500));
        assert!(Members::parse(&long).unwrap_err().to_string().chars().count() < 100);
    }

    #[test]
    fn a_caller_s_object_is_read_no_further_than_its_bound() {
        let object = |members: usize| {
            let members: Vec<String> = (0..members).map(|n| format!("\"n{n}\":[{n}]")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Members::of_caller(&object(MEMBERS_MAX)).is_ok());
        let over = object(MEMBERS_MAX + 1);
        assert_eq!(Members::of_caller(&over).unwrap_err(), MembersError::TooMany(MEMBERS_MAX));
        assert!(Members::parse(&over).is_ok());
        // Not even valid JSON beyond it.
        let broken = format!("{},?", over.trim_end_matches('}'));
        assert_eq!(Members::of_caller(&broken).unwrap_err(), MembersError::TooMany(MEMBERS_MAX));
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (json, what) in [("[]", "an array"), (" null", "null"), ("\"{}\"", "a string")] {
            assert_eq!(Members::parse(json).unwrap_err(), MembersError::NotAnObject(what));
        }
        for json in ["", "{", "{\"a\":}", "{} {}", "[1", "{1:2}", "{\"a\":1,}", "{\"a\":1e}"] {
            let refused = Members::parse(json).unwrap_err();
            assert!(matches!(refused, MembersError::NotJson(_)), "{json}");
        }
    }

    #[test]
    fn names_that_differ_in_case_only_are_found() {
        let variant = |json: &str| {
            let members = Members::parse(json).unwrap();
            members.case_variant(&["name", "task", "_meta"]).map(str::to_owned)
        };
        assert_eq!(variant(r#"{"name":1,"task":2,"other":3,"nam":4,"nämé":5}"#), None);
        for name in ["Name", "NAME", "tas\u{212a}", "ta\u{17f}k", "_Meta"] {
            assert_eq!(variant(&format!("{{\"name\":1,\"{name}\":2}}")).as_deref(), Some(name));
        }
    }

    proptest! {
        /// Never panics, and accepts exactly what the full parser accepts.
        #[test]
        fn agrees_with_the_full_parser(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", "\"a\":", "\"\\u0061\":", "\"b\"", ",", ":", "1", " ", "null",
                "\\", "\"",
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

    fn rewrite<'a>(
        json: &'a str,
        change: impl FnMut(&str, &'a RawValue) -> MemberChange<'a>,
        add: &[(&str, &str)],
    ) -> String {
        Members::parse(json).unwrap().rewrite(change, add)
    }

    #[test]
    fn an_object_is_copied_with_changes() {
        let json = r#"{"a": 1.10,"b\"":{ "x":1 },"c":3,"d":[]}"#;
        let new = "4".to_owned();
        let change = |name: &str, _: &_| match name {
            "c" => MemberChange::Replace(Cow::from(&new)),
            "d" => MemberChange::Drop,
            _ => MemberChange::Keep,
        };
        assert_eq!(
            rewrite(json, change, &[("e\n", "5"), ("a", "0")]),
            r#"{"b\"":{ "x":1 },"c":4,"e\n":5,"a":0}"#
        );
        assert_eq!(rewrite(json, |_, _| MemberChange::Drop, &[]), "{}");
    }

    #[test]
    fn a_first_member_is_spliced_in() {
        for (json, with) in [
            ("{}", r#"{"n":1}"#),
            (" { } ", r#"{"n":1 } "#),
            (r#"{"a":2}"#, r#"{"n":1,"a":2}"#),
            ("{ \"a\":2}", "{\"n\":1, \"a\":2}"),
        ] {
            assert_eq!(with_first_member(json, "n", "1"), with);
        }
        assert_eq!(with_first_member("{}", "\"", "1"), r#"{"\"":1}"#);
        assert_eq!(with_first_member("[]", "n", "1"), "[]");
    }

    proptest! {
        /// A copy parses to the same object, however odd the names.
        #[test]
        fn a_copy_parses_to_the_same_object(
           names in prop::collection::hash_set(".{0,4}|[a-c\"\\\\\n]{1,3}", 0..24)
        ) {
           let members = names.into_iter().zip(0..);
           let members = members.map(|(name, n): (String, i32)| (name, n.into()));
           let object = serde_json::Value::Object(members.collect());
            let copy = rewrite(&object.to_string(), |_, _| MemberChange::Keep, &[]);
            prop_assert_eq!(&serde_json::from_str::<serde_json::Value>(&copy).unwrap(), &object);
        }
    }
}
