//! JSON Pointer (RFC 6901) over JSON text: finds a part of it and returns the bytes as they are.

use super::spans::{Entries, skip_blanks, value_end};

/// As deep as any JSON that the gateway passes on.
const STEPS_MAX: usize = super::framing::DEPTH_MAX;

/// A checked pointer; empty for the whole value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPointer {
    #[error("must be empty or start with `/`")]
    NoSlash,
    #[error("must have `0` or `1` after each `~`")]
    Escape,
    #[error("must have at most {STEPS_MAX} steps")]
    TooLong,
}

impl Pointer {
    pub fn parse(text: &str) -> Result<Self, InvalidPointer> {
        if text.is_empty() {
            return Ok(Self(vec![]));
        }
        let steps = text.strip_prefix('/').ok_or(InvalidPointer::NoSlash)?;
        if steps.split('/').count() > STEPS_MAX {
            return Err(InvalidPointer::TooLong);
        }
        if text.split('~').skip(1).any(|tail| !tail.starts_with(['0', '1'])) {
            return Err(InvalidPointer::Escape);
        }
        let unescape = |step: &str| step.replace("~1", "/").replace("~0", "~");
        Ok(Self(steps.split('/').map(unescape).collect()))
    }

    /// Returns the part of `json`, which must be valid JSON, or `None` if it has no such part. Adds
    /// the bytes that were read to `read`.
    pub fn find<'a>(&self, json: &'a str, read: &mut usize) -> Option<&'a str> {
        let bytes = json.as_bytes();
        let mut at = skip_blanks(bytes, 0);
        for step in &self.0 {
            let mut entries = Entries::of(json, at)?;
            let found = if entries.is_object() {
                // Of several members with one name the last counts, as for most parsers.
                entries.by_ref().filter(|entry| entry.is_named(step)).last()
            } else {
                index(step).and_then(|index| entries.nth(index))
            };
            *read += entries.end() - at;
            at = found?.value.start;
        }
        let end = value_end(bytes, at);
        *read += end - at;
        json.get(at..end)
    }
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

    fn find<'a>(pointer: &str, json: &'a str) -> Option<&'a str> {
        Pointer::parse(pointer).unwrap().find(json, &mut 0)
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
            assert_eq!(find(pointer, document), Some(found), "{pointer}");
        }
    }

    #[test]
    fn the_bytes_come_back_as_they_are() {
        let json = " { \"a\" : [ 1.50, {\"b\":\t\"\\u00e9\"} ,3 ] } ";
        assert_eq!(find("", json), Some("{ \"a\" : [ 1.50, {\"b\":\t\"\\u00e9\"} ,3 ] }"));
        assert_eq!(find("/a/0", json), Some("1.50"));
        assert_eq!(find("/a/1/b", json), Some("\"\\u00e9\""));
        assert_eq!(find("/a/2", json), Some("3"));
    }

    #[test]
    fn a_pointer_that_misses_finds_nothing() {
        for pointer in ["/b", "/a/2", "/a/-", "/a/00", "/a/x", "/a/0/c", "/s/0"] {
            assert_eq!(find(pointer, r#"{"a":[0,1],"s":"text"}"#), None, "{pointer}");
        }
    }

    #[test]
    fn of_several_members_with_one_name_the_last_counts() {
        assert_eq!(find("/a", r#"{"a":1,"\u0061":2}"#), Some("2"));
    }

    #[test]
    fn the_bytes_that_were_read_are_counted() {
        let json = r#"{"a":[1,2,3],"b":[4]}"#;
        let mut read = 0;
        Pointer::parse("/b/0").unwrap().find(json, &mut read);
        assert_eq!(read, json.len() + "[4,".len() + "4".len());
    }

    #[test]
    fn a_malformed_pointer_is_refused_with_the_reason() {
        assert_eq!(Pointer::parse("a"), Err(InvalidPointer::NoSlash));
        assert_eq!(Pointer::parse("/a~2"), Err(InvalidPointer::Escape));
        assert_eq!(Pointer::parse("/a~"), Err(InvalidPointer::Escape));
        assert_eq!(Pointer::parse(&"/a".repeat(65)), Err(InvalidPointer::TooLong));
    }
}
