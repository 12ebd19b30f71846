//! Framing: one message is one line, whatever JSON from outside it carries.
//!
//! - [`Frame`]: writes a message as one line
//! - [`RawObject`]: JSON from outside, checked once and kept as text
//! - [`LineSplitter`]: splits a byte stream into lines, in bounded memory
//!
//! [`RawObject`] prevents two attacks. A line break between two tokens is legal JSON, but on a
//! line-based wire it would let a caller smuggle a second message into the backend. And a deeply
//! nested value can overflow the stack of the next parser.

use std::borrow::Cow;
use std::io::Write;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde_json::value::RawValue;

use super::id_scan::{IdScanner, LineKind};

/// The deepest nesting that is forwarded. Common parsers fail at 100 to 1,000 levels.
pub const DEPTH_MAX: usize = 64;
const READ_LEN: usize = 64 * 1024;
/// A buffer that grew beyond this for a long line is released.
const KEEP_LEN_MAX: usize = 1024 * 1024;

/// Longer objects are not copied into a frame before it is written: many frames may wait.
const SHORT_OBJECT: usize = 64 * 1024;

/// One message with its newline, ready to be written.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    text: Vec<u8>,
    /// A long object, and its place in the text.
    inside: Option<(usize, RawObject)>,
}

impl Frame {
    /// Writes a request. `params` is JSON in pieces, so that a large body is copied only once.
    pub fn request(id: u64, method: &str, params: &[&str]) -> Self {
        let params_len: usize = params.iter().map(|piece| piece.len()).sum();
        Self::write(params_len + method.len() + 72, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
            for piece in params {
                out.extend_from_slice(piece.as_bytes());
            }
            out.push(b'}');
        })
    }

    /// Writes a request with an object of its caller's between two pieces of `params`.
    pub fn request_around(
        id: u64,
        method: &str,
        before: &[&str],
        object: &RawObject,
        after: &[&str],
    ) -> Self {
        if object.byte_len() <= SHORT_OBJECT {
            return Self::request(id, method, &[before, &[object.as_str()], after].concat());
        }
        let mut at = 0;
        let frame = Self::write(256, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":"#);
            before.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
            at = out.len();
            after.iter().for_each(|piece| out.extend_from_slice(piece.as_bytes()));
            out.push(b'}');
        });
        Self { inside: Some((at, object.clone())), ..frame }
    }

    /// Writes a notification. `params` is JSON.
    pub fn notification(method: &str, params: &str) -> Self {
        Self::write(params.len() + method.len() + 48, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        })
    }

    /// Writes a successful answer and echoes the id byte for byte.
    pub fn result(id: &RawValue, result: &impl Serialize) -> Self {
        Self::write(128, |out| {
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{},"result":"#, id.get());
            serde_json::to_writer(&mut *out, result).expect("results are plain data");
            out.push(b'}');
        })
    }

    /// Writes an answer that is passed on from a peer.
    pub fn answer(id: &RawValue, outcome: Result<&RawValue, &RawValue>) -> Self {
        let (member, body) = match outcome {
            Ok(result) => ("result", result),
            Err(error) => ("error", error),
        };
        Self::write(body.get().len() + 64, |out| {
            let _ =
                write!(out, r#"{{"jsonrpc":"2.0","id":{},"{member}":{}}}"#, id.get(), body.get());
        })
    }

    /// Writes an error. Without a readable id JSON-RPC answers with `null`.
    pub fn error(
        id: Option<&RawValue>,
        code: i64,
        message: &(impl Serialize + ?Sized),
        data: Option<&RawValue>,
    ) -> Self {
        #[derive(Serialize)]
        struct Error<'a, M: Serialize + ?Sized> {
            code: i64,
            message: &'a M,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<&'a RawValue>,
        }
        Self::write(128, |out| {
            let id = id.map_or("null", RawValue::get);
            let _ = write!(out, r#"{{"jsonrpc":"2.0","id":{id},"error":"#);
            serde_json::to_writer(&mut *out, &Error { code, message, data })
                .expect("errors are plain data");
            out.push(b'}');
        })
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> usize {
        self.text.len() + self.inside.as_ref().map_or(0, |(_, object)| object.byte_len())
    }

    /// Returns the bytes to write, newline included.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let Some((at, object)) = &self.inside else { return Cow::Borrowed(&self.text) };
        let (before, after) = self.text.split_at(*at);
        Cow::Owned([before, &object.0[..], after].concat())
    }

    pub fn into_bytes(self) -> Vec<u8> {
        match self.inside {
            None => self.text,
            Some(_) => self.bytes().into_owned(),
        }
    }

    /// Ensures that a frame is one line; the only constructor. Line breaks in JSON occur only
    /// between tokens, where a space is equivalent. [`RawObject`] has removed those from
    /// outside already.
    fn write(capacity: usize, body: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        body(&mut bytes);
        blank_line_breaks(&mut bytes);
        bytes.push(b'\n');
        Self { text: bytes, inside: None }
    }
}

/// A JSON object without line breaks and of bounded depth, otherwise byte for byte as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawObject(Bytes);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The parser's message, which names line and column but not the content.
    #[error(
        "the body is not valid JSON: {0}; send the tool's arguments as an object, such as \
        {{\"text\": \"hello\"}}"
    )]
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

    /// Returns the text. This reads all of it.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked by the JSON parser")
    }

    pub fn byte_len(&self) -> usize {
        self.0.len()
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
    check_shape(json, limit, usize::MAX).is_err()
}

/// The bound of its shape that JSON from outside exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeExcess {
    Depth,
    Members,
}

/// Checks how deep arrays and objects nest, and how many members the outermost one has. Works on
/// any bytes, valid JSON or not, in one pass.
pub fn check_shape(json: &[u8], depth_max: usize, members_max: usize) -> Result<(), ShapeExcess> {
    let (mut depth, mut members) = (0_usize, 1_usize);
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'{' | b'[' => {
                depth += 1;
                if depth > depth_max {
                    return Err(ShapeExcess::Depth);
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => at = end_of_string(json, at),
            b',' if depth == 1 => {
                members += 1;
                if members > members_max {
                    return Err(ShapeExcess::Members);
                }
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// Returns the index of the quote that ends the string opened at `open`, or the end of the text.
pub(super) fn end_of_string(json: &[u8], open: usize) -> usize {
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

/// One line of the stream, without its line break.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Whole(Bytes),
    /// A line over the limit, which was skipped.
    TooLong {
        kind: LineKind,
    },
}

/// Buffers the bytes read and returns them line by line, however the reads cut the stream.
#[derive(Debug)]
pub struct LineSplitter {
    buffer: BytesMut,
    /// The length of the buffer's beginning that is known to contain no line break.
    searched: usize,
    line_len_max: usize,
    skipping: Option<SkippedLine>,
}

#[derive(Debug, Default)]
struct SkippedLine {
    scanner: IdScanner,
    len: usize,
}

impl LineSplitter {
    /// Keeps lines of up to `line_len_max` bytes.
    pub fn new(line_len_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, line_len_max, skipping: None }
    }

    /// Returns the buffer for the next read, with free space.
    pub fn space(&mut self) -> &mut BytesMut {
        // Doubling keeps the cost of copying a long line linear in its length.
        self.buffer.reserve(READ_LEN.max(self.buffer.len()));
        &mut self.buffer
    }

    /// Returns how many bytes of the current line have been skipped.
    pub fn skipped_len(&self) -> usize {
        self.skipping.as_ref().map_or(0, |skipping| skipping.len)
    }

    /// Returns the next line that is not empty, if all of it has arrived.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(end) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
                self.searched = self.buffer.len();
                if self.skipping.is_some() || self.buffer.len() > self.line_len_max {
                    self.skip_buffer();
                }
                return None;
            };
            let mut line = self.buffer.split_to(self.searched + end + 1);
            self.searched = 0;
            if self.skipping.is_some() || line.len() > self.line_len_max + 1 {
                let mut skipping = self.skipping.take().unwrap_or_default();
                skipping.scanner.feed(&line);
                return Some(Line::TooLong { kind: skipping.scanner.kind() });
            }
            if line.capacity() > KEEP_LEN_MAX {
                self.buffer = BytesMut::from(&self.buffer[..]);
            }
            line.truncate(line.trim_ascii_end().len());
            if !line.is_empty() {
                return Some(Line::Whole(line.freeze()));
            }
        }
    }

    fn skip_buffer(&mut self) {
        let skipping = self.skipping.get_or_insert_default();
        skipping.scanner.feed(&self.buffer);
        skipping.len += self.buffer.len();
        if self.buffer.capacity() > KEEP_LEN_MAX {
            self.buffer = BytesMut::new();
        }
        self.buffer.clear();
        self.searched = 0;
    }
}

#[cfg(test)]
#[path = "tests/framing.rs"]
mod tests;
