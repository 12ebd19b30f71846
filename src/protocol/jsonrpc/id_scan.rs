//! Finds the id of an answer without keeping its line.
//!
//! An answer over the size limit must fail its own call and no other, so its id is needed. Some
//! servers write the id last. The scanner reads the top level of one JSON object in constant
//! memory, and answers [`LineKind::Unknown`] in doubt.

/// As many digits as the largest id has; longer than any key that is looked for.
const PREFIX_LEN_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    AnswerTo(u64),
    /// A request or a notification of the peer.
    NotAnAnswer,
    Unknown,
}

/// Takes the bytes of a line in order; then [`IdScanner::kind`] says what the line was.
#[derive(Debug, Default)]
pub struct IdScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Set at the top level, between `{` or `,` and `:`.
    in_key: bool,
    key: Prefix,
    /// The value after a top-level `"id":`, while it is read.
    id: Option<Prefix>,
    ids_seen: usize,
    id_value: Option<u64>,
    has_method: bool,
}

/// The first bytes of a text.
#[derive(Debug, Default)]
struct Prefix {
    bytes: Vec<u8>,
    cut: bool,
}

impl IdScanner {
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            if self.in_string {
                rest = self.string_byte(byte, tail);
            } else {
                self.structure(byte);
            }
        }
    }

    /// Classifies the line, once all of it has been fed.
    pub fn kind(&self) -> LineKind {
        match (self.depth, self.ids_seen, self.id_value, self.has_method) {
            (0, _, _, true) => LineKind::NotAnAnswer,
            (0, 1, Some(id), false) => LineKind::AnswerTo(id),
            _ => LineKind::Unknown,
        }
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => {
                self.spoil_id();
                self.depth += 1;
                if self.depth == 1 && byte == b'{' {
                    self.begin_key();
                }
            }
            b'}' | b']' => {
                self.end_value();
                self.depth = self.depth.saturating_sub(1);
            }
            b',' => {
                self.end_value();
                if self.depth == 1 {
                    self.begin_key();
                }
            }
            b':' if self.depth == 1 && self.in_key => self.end_key(),
            b'"' => {
                self.spoil_id();
                self.in_string = true;
            }
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => {
                if let (1, Some(id)) = (self.depth, self.id.as_mut()) {
                    id.push(byte);
                }
            }
        }
    }

    fn begin_key(&mut self) {
        self.in_key = true;
        self.key = Prefix::default();
    }

    fn end_key(&mut self) {
        self.in_key = false;
        match self.key.text() {
            Some(b"id") => {
                self.ids_seen += 1;
                self.id = Some(Prefix::default());
            }
            Some(b"method") => self.has_method = true,
            _ => {}
        }
    }

    fn end_value(&mut self) {
        if self.depth == 1
            && let Some(id) = self.id.take()
        {
            let text = id.text().and_then(|text| std::str::from_utf8(text).ok());
            self.id_value = text.and_then(|text| text.parse().ok());
        }
    }

    /// Invalidates an id that is a string, an array or an object: the gateway issues numbers.
    fn spoil_id(&mut self) {
        if let (1, Some(id)) = (self.depth, self.id.as_mut()) {
            id.cut = true;
        }
    }

    /// Reads a byte of a string and returns the bytes to read next. Skips values with memchr,
    /// because long strings are most of a large result.
    fn string_byte<'a>(&mut self, byte: u8, tail: &'a [u8]) -> &'a [u8] {
        match byte {
            _ if self.escaped => {
                self.escaped = false;
                // No key that is looked for has an escape.
                self.key.cut = true;
            }
            b'\\' => self.escaped = true,
            b'"' => self.in_string = false,
            _ if self.in_key => self.key.push(byte),
            _ => {
                let next = memchr::memchr2(b'"', b'\\', tail).unwrap_or(tail.len());
                return &tail[next..];
            }
        }
        tail
    }
}

impl Prefix {
    fn push(&mut self, byte: u8) {
        if self.bytes.len() < PREFIX_LEN_MAX {
            self.bytes.push(byte);
        } else {
            self.cut = true;
        }
    }

    fn text(&self) -> Option<&[u8]> {
        (!self.cut).then_some(&self.bytes[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::jsonrpc::{Message, decode};
    use proptest::prelude::*;

    fn scan(line: &str) -> LineKind {
        let mut scanner = IdScanner::default();
        for chunk in line.as_bytes().chunks(3) {
            scanner.feed(chunk);
        }
        scanner.kind()
    }

    #[test]
    fn the_id_is_found_first_or_last_and_not_inside() {
        assert_eq!(scan(r#"{"jsonrpc":"2.0","id":7,"result":{"id":8}}"#), LineKind::AnswerTo(7));
        assert_eq!(
            scan(r#"{"result":{"id":8,"x":"\",\"id\":9"},"id" : 7 }"#),
            LineKind::AnswerTo(7)
        );
        assert_eq!(scan(r#"{"result":[{"id":8}],"id":7}"#), LineKind::AnswerTo(7));
    }

    #[test]
    fn a_doubtful_line_is_never_an_answer() {
        for line in [
            r#"{"id":1,"id":2,"result":{}}"#,
            r#"{"id":"1","result":{}}"#,
            r#"{"id":[1],"result":{}}"#,
            r#"{"id":1.0,"result":{}}"#,
            r#"{"id":123456789012345678901234,"result":{}}"#,
            r#"{"result":{}}"#,
            r#"{"id":1,"result":{}"#,
            r#"[{"id":1}]"#,
            "garbage",
        ] {
            assert_eq!(scan(line), LineKind::Unknown, "{line}");
        }
        assert_eq!(
            scan(r#"{"method":"notifications/message","params":{"id":1}}"#),
            LineKind::NotAnAnswer
        );
        assert_eq!(scan(r#"{"id":1,"method":"sampling/createMessage"}"#), LineKind::NotAnAnswer);
    }

    proptest! {
        /// The scanner never finds an id that the full parser does not find.
        #[test]
        fn agrees_with_the_parser(
            members in prop::collection::vec((
               prop::sample::select(vec![
                   "id", "result", "x", "i\\u0064", "idd", "error", "method",
               ]),
               prop::sample::select(vec![
                   "1", "77", "\"1\"", "{\"id\":5}", "[1,{\"id\":2}]", "null",
                    "\"\\\\\"", "{}", "-3",
               ]),
            ), 0..5)
        ) {
            let members = members.iter().map(|(key, value)| format!("\"{key}\":{value}"));
            let members: Vec<String> = members.collect();
            let line = format!("{{\"jsonrpc\":\"2.0\",{}}}", members.join(","));
            if let Ok(Message::Response { id, .. }) = decode(line.as_bytes()) {
                if let LineKind::AnswerTo(found) = scan(&line) {
                    prop_assert_eq!(id.get(), found.to_string());
                } else {
                    let is_number = id.get().parse::<u64>().is_ok();
                    prop_assert!(!is_number || line.contains("\\u0064"), "{}", line);
                }
            }
        }
    }
}
