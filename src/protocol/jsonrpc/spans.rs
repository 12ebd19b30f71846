//! Walks valid JSON text without building values: where a value ends, and what an object or array
//! holds. Never panics on other text, but may return nonsense then.

use std::borrow::Cow;
use std::ops::Range;

use super::framing::end_of_string;

/// The members of an object, or the items of an array, in order.
pub struct Entries<'a> {
    json: &'a [u8],
    at: usize,
    is_object: bool,
}

/// One member or item. Spans are positions in the text.
pub struct Entry<'a> {
    /// The member's name with its quotes; `None` in an array.
    name: Option<&'a [u8]>,
    pub value: Range<usize>,
}

impl<'a> Entries<'a> {
    /// Starts after the bracket at `open`. Returns `None` for a value that has no entries.
    pub fn of(json: &'a str, open: usize) -> Option<Self> {
        let json = json.as_bytes();
        match json.get(open)? {
            b'{' => Some(Self { json, at: open + 1, is_object: true }),
            b'[' => Some(Self { json, at: open + 1, is_object: false }),
            _ => None,
        }
    }

    pub fn is_object(&self) -> bool {
        self.is_object
    }

    /// Returns the position after the closing bracket, once all entries have been taken.
    pub fn end(&self) -> usize {
        (self.at + 1).min(self.json.len())
    }

    /// Moves to the next entry and returns where its value starts. The caller continues with
    /// [`Entries::skip_to`] after the value, so a nested value is walked once.
    pub fn next_start(&mut self) -> Option<Entry<'a>> {
        self.at = skip_blanks(self.json, self.at);
        if self.json.get(self.at) == Some(&b',') {
            self.at = skip_blanks(self.json, self.at + 1);
        }
        if matches!(self.json.get(self.at)?, b'}' | b']') {
            return None;
        }
        let mut name = None;
        if self.is_object {
            let after_name = value_end(self.json, self.at);
            name = self.json.get(self.at..after_name);
            self.at = skip_blanks(self.json, skip_blanks(self.json, after_name) + 1);
        }
        Some(Entry { name, value: self.at..self.at })
    }

    pub fn skip_to(&mut self, at: usize) {
        self.at = at.max(self.at + 1);
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let mut entry = self.next_start()?;
        entry.value.end = value_end(self.json, self.at);
        self.skip_to(entry.value.end);
        Some(entry)
    }
}

impl Entry<'_> {
    /// Returns whether the member has this name, however it is escaped.
    pub fn is_named(&self, name: &str) -> bool {
        let Some(quoted) = self.name else { return false };
        let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        if memchr::memchr(b'\\', inner).is_none() {
            return inner == name.as_bytes();
        }
        serde_json::from_slice::<Cow<'_, str>>(quoted).is_ok_and(|unescaped| unescaped == name)
    }
}

/// Returns the position after the value that starts at `start`.
pub fn value_end(json: &[u8], start: usize) -> usize {
    let mut at = start;
    let mut depth = 0_usize;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at = end_of_string(json, at) + 1;
                if depth == 0 {
                    return at.min(json.len());
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                // The bracket of the surrounding value ends a number or literal.
                if depth == 0 {
                    return at;
                }
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    json.len()
}

pub fn skip_blanks(json: &[u8], mut at: usize) -> usize {
    while matches!(json.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(json: &str) -> Vec<&str> {
        Entries::of(json, 0).unwrap().map(|entry| &json[entry.value]).collect()
    }

    #[test]
    fn entries_are_found_whatever_stands_between_them() {
        let none: [&str; 0] = [];
        assert_eq!(values("{}"), none);
        assert_eq!(values("[ \n ]"), none);
        assert_eq!(
            values("[1,\t2 , \"a,]\\\"\" ,{\"a\":[3]},[]\r]"),
            ["1", "2", "\"a,]\\\"\"", "{\"a\":[3]}", "[]"]
        );
        assert_eq!(values(r#"{ "a" : true,"b":null , "}":-1e3}"#), ["true", "null", "-1e3"]);
    }

    #[test]
    fn names_are_compared_without_their_escapes() {
        let json = r#"{"\u0024result":1,"a\"b":2,"plain":3}"#;
        let found = |name: &str| {
            let entry = Entries::of(json, 0).unwrap().find(|entry| entry.is_named(name));
            entry.map(|entry| &json[entry.value])
        };
        assert_eq!(found("$result"), Some("1"));
        assert_eq!(found("a\"b"), Some("2"));
        assert_eq!(found("plain"), Some("3"));
        assert_eq!(found("other"), None);
    }

    #[test]
    fn text_that_is_no_json_panics_nowhere() {
        for json in
            ["{", "[", "{\"", "{\"a", "{\"a\"", "{\"a\":", "[1", "[,", "{,}", "{\"\\", "[\""]
        {
            assert!(Entries::of(json, 0).unwrap().count() < 3, "{json}");
        }
    }
}
