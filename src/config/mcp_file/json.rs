//! JSON with comments and trailing commas, as editors write it, read into a tree of places.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use toml::de::DeTable;

use crate::config::error::{ConfigError, Lines, Place};
use crate::config::tree::{Node, Table, Value};

const CHECKED: &str = "checked by the JSON parser";

/// Parses a file whose root is an object. Returns the place of its beginning, too.
pub(super) fn parse(path: &Arc<str>, text: &str) -> Result<(Table, Place), ConfigError> {
    let text = plain_json(text.strip_prefix('\u{feff}').unwrap_or(text));
    let lines = Lines::of(path, &text);
    let place = |offset| lines.place(offset);
    // Checks syntax and depth first, since `node` is recursive.
    if let Err(error) = serde_json::from_str::<serde_json::Value>(&text) {
        let place = Place::File { path: path.clone(), line: error.line() };
        let is_toml = DeTable::parse(&text).is_ok();
        return Err(place.error(match is_toml && !text.trim().is_empty() {
            true => "it is TOML, not JSON: Trunkline's own configuration goes to `--config`".into(),
            false => format!("not valid JSON: {error}"),
        }));
    }
    let raw: &RawValue = serde_json::from_str(&text).expect(CHECKED);
    let root = node(raw, &|part| place(part.as_ptr().addr() - text.as_ptr().addr()));
    match root.value {
        Value::Table(root) => Ok((root, place(0))),
        _ => Ok((Table::new(), place(0))),
    }
}

/// Replaces comments, and commas before the end of a list or object, by spaces. All other bytes
/// keep their places.
fn plain_json(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = bytes.to_vec();
    let mut last_comma = None;
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => end_of_text(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |len| at + len)
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let close = memchr::memmem::find(&bytes[at + 2..], b"*/");
                close.map_or(bytes.len(), |len| at + 2 + len + 2)
            }
            _ => at + 1,
        };
        match bytes[at] {
            b'/' if end > at + 1 => {
                let comment = plain[at..end].iter_mut();
                comment.filter(|it| !matches!(**it, b'\n' | b'\r')).for_each(|it| *it = b' ');
            }
            b',' => last_comma = Some(at),
            b'}' | b']' => {
                if let Some(comma) = last_comma.take() {
                    plain[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => last_comma = None,
        }
        at = end;
    }
    // Only whole characters outside of texts were replaced, and by ASCII.
    String::from_utf8(plain).unwrap_or_else(|_| text.to_owned())
}

/// Returns the offset behind a text that begins at `begin`.
fn end_of_text(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns a tree with the place of every value.
fn node(raw: &RawValue, place: &dyn Fn(&str) -> Place) -> Node {
    let text = raw.get();
    let value = match text.as_bytes()[0] {
        b'"' => Value::Text(serde_json::from_str(text).expect(CHECKED)),
        b't' | b'f' => Value::Flag(text == "true"),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).expect(CHECKED);
            Value::List(items.into_iter().map(|item| node(item, place)).collect())
        }
        b'{' => {
            let mut entries: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).expect(CHECKED);
            // Clients write null for a key that is not set.
            entries.retain(|_, raw| raw.get() != "null");
            let entry = |(key, raw)| (key, node(raw, place));
            Value::Table(entries.into_iter().map(entry).collect())
        }
        b'n' => Value::Other("null"),
        _ => match text.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Number(text.to_owned()),
        },
    };
    Node::new(value, place(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_left_out() {
        for (text, plain) in [
            ("{} // x", "{}     "),
            ("{/* , */\"a\": 1,}", "{       \"a\": 1 }"),
            ("[1, // x\n]", "[1      \n]"),
            ("{\"a//b\": \"/* \\\" */\",\n}", "{\"a//b\": \"/* \\\" */\" \n}"),
            ("[1,,]", "[1, ]"),
            ("/* é", "     "),
            ("1 / 2", "1 / 2"),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(plain_json(text), plain, "{text}");
        }
    }
}
