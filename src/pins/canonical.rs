//! The canonical form of a definition, and its hash. The form ignores the order of keys, whitespace
//! between tokens, and the way characters are escaped; any other difference counts. Numbers stay as
//! written.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// Values nested deeper than this stay as written, so that they cannot exhaust the stack.
const DEPTH_MAX: usize = 64;
const PREFIX: &str = "sha256:";

/// SHA-256 of a definition's canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 32]);

impl Hash {
    /// Hashes a definition in any form.
    pub fn of(definition: &str) -> Self {
        Self(Sha256::digest(canonical(definition)).into())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it is not the hash of a definition, which is `sha256:` and 64 digits of 0-9 and a-f")]
pub struct InvalidHash;

impl FromStr for Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidHash)?.as_bytes();
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(InvalidHash),
        };
        let bytes = digits.chunks(2).map(|pair| match pair {
            [high, low] => Ok(value(*high)? << 4 | value(*low)?),
            _ => Err(InvalidHash),
        });
        let bytes: Vec<u8> = bytes.collect::<Result<_, _>>()?;
        bytes.try_into().map(Self).map_err(|_| InvalidHash)
    }
}

/// Returns JSON with sorted keys and no whitespace between tokens. For text that is not valid JSON
/// the form is unspecified, but there is one.
pub fn canonical(json: &str) -> String {
    let mut scan = Scan { json, at: 0 };
    let mut form = String::with_capacity(json.len());
    scan.value(0, &mut form);
    // Empty for valid JSON.
    form += json[scan.at..].trim_ascii();
    form
}

struct Scan<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    /// Skips whitespace and returns the next byte.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.json.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.json.as_bytes().get(self.at).copied()
    }

    fn value(&mut self, depth: usize, form: &mut String) {
        match self.peek() {
            Some(b'{' | b'[') if depth == DEPTH_MAX => form.push_str(self.nested()),
            Some(b'{') => self.object(depth, form),
            Some(b'[') => self.array(depth, form),
            Some(b'"') => self.string(form),
            Some(_) => form.push_str(self.plain()),
            None => {}
        }
    }

    fn object(&mut self, depth: usize, form: &mut String) {
        let mut members = vec![];
        self.at += 1;
        while self.peek() == Some(b'"') {
            let mut member = String::new();
            self.string(&mut member);
            let name_len = member.len();
            if self.peek() == Some(b':') {
                self.at += 1;
                member.push(':');
                self.value(depth + 1, &mut member);
            }
            members.push((member, name_len));
            if self.peek() == Some(b',') {
                self.at += 1;
            }
        }
        // A stable sort: the order of duplicates matters, because parsers disagree on which one
        // counts.
        members.sort_by(|(one, len), (other, other_len)| one[..*len].cmp(&other[..*other_len]));
        let members: Vec<String> = members.into_iter().map(|(member, _)| member).collect();
        form.push('{');
        form.push_str(&members.join(","));
        self.close(b'}', form);
    }

    fn array(&mut self, depth: usize, form: &mut String) {
        form.push('[');
        self.at += 1;
        while self.peek().is_some_and(|byte| byte != b']') {
            let start = self.at;
            self.value(depth + 1, form);
            if self.peek() == Some(b',') {
                form.push(',');
                self.at += 1;
            }
            if self.at == start {
                break;
            }
        }
        self.close(b']', form);
    }

    fn close(&mut self, bracket: u8, form: &mut String) {
        if self.peek() == Some(bracket) {
            form.push(char::from(bracket));
            self.at += 1;
        }
    }

    /// Writes a string with as few escapes as possible. A string that cannot be decoded stays as
    /// written.
    fn string(&mut self, form: &mut String) {
        let written = self.string_as_written();
        match serde_json::from_str::<String>(written) {
            Ok(text) => form.push_str(&serde_json::Value::from(text).to_string()),
            Err(_) => form.push_str(written),
        }
    }

    fn string_as_written(&mut self) -> &'a str {
        let (bytes, start) = (self.json.as_bytes(), self.at);
        self.at += 1;
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => break,
                // An escaped character is never the end. ASCII characters are one byte long.
                b'\\' if bytes.get(self.at).is_some_and(u8::is_ascii) => self.at += 1,
                _ => {}
            }
        }
        &self.json[start..self.at]
    }

    /// Reads a number or a word.
    fn plain(&mut self) -> &'a str {
        let rest = &self.json[self.at..];
        let ends = |c: char| matches!(c, ',' | ':' | ']' | '}' | '"') || c.is_ascii_whitespace();
        let len = rest.find(ends).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// Reads an object or an array as written.
    fn nested(&mut self) -> &'a str {
        let start = self.at;
        let mut open = 0_usize;
        while let Some(byte) = self.json.as_bytes().get(self.at) {
            match byte {
                b'"' => {
                    self.string_as_written();
                    continue;
                }
                b'{' | b'[' => open += 1,
                b'}' | b']' => open -= 1,
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                break;
            }
        }
        // The last byte read is ASCII, or the end, so this cuts at a character boundary.
        &self.json[start..self.at]
    }
}

#[cfg(test)]
#[path = "tests/canonical.rs"]
mod tests;
