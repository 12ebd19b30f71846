//! References of a call's arguments to the results of earlier calls.
//!
//! `{"$result": "a", "pointer": "/x"}` stands for the part of call `a`'s result that the JSON
//! Pointer leads to. `{"$literal": …}` stands for its value, in which nothing is a reference. There
//! is no other syntax: no templates, no expressions.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::protocol::jsonrpc::framing::DEPTH_MAX;
use crate::protocol::jsonrpc::pointer::{InvalidPointer, Pointer};
use crate::protocol::jsonrpc::spans::{Entries, Entry, skip_blanks, value_end};

const RESULT: &str = "$result";
const POINTER: &str = "pointer";
const LITERAL: &str = "$literal";

/// The arguments of one call, with the places where results of earlier calls go.
#[derive(Debug)]
pub struct Arguments {
    text: Bytes,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
enum Piece {
    /// Bytes of the arguments' own text.
    Own(Range<usize>),
    Result(Reference),
}

/// A part of an earlier call's result.
#[derive(Debug)]
pub struct Reference {
    /// The index of the earlier call.
    pub call: usize,
    pointer: Pointer,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    #[error(
        "an object with `$result` must have exactly the members `$result` and `pointer`, both \
         texts; write {{\"$literal\": …}} around an object that is no reference"
    )]
    Result,
    #[error("an object with `$literal` must have no other member")]
    Literal,
    #[error("`$result` names `{0}`, and no call of this batch has that id")]
    UnknownCall(String),
    #[error("`pointer` {0}")]
    Pointer(#[from] InvalidPointer),
    #[error("the arguments are nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
}

/// The bytes of results that the references of one call may read: about 50 ms of a processor.
const READ_MAX: usize = 32 * 1024 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub enum NotComposed {
    /// The result of this call has no such part.
    Missing { call: usize },
    /// The composed arguments are larger than the limit.
    TooLarge,
    /// The references read more than [`READ_MAX`] bytes of results.
    TooMuchRead,
}

impl Arguments {
    /// Reads the arguments' text, which must be valid JSON. `index_of` finds a call by its id.
    pub fn parse(
        text: Bytes,
        index_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<Self, InvalidReference> {
        let json = std::str::from_utf8(&text).expect("checked by the JSON parser");
        let mut pieces = vec![];
        // An escaped `$` is still a `$`.
        if memchr::memchr(b'$', &text).is_some() || json.contains("\\u0024") {
            let mut scan = Scan { json, index_of, pieces: &mut pieces, taken: 0 };
            scan.value(skip_blanks(&text, 0), 0)?;
            let rest = scan.taken..text.len();
            pieces.push(Piece::Own(rest));
        }
        Ok(Self { text, pieces })
    }

    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Result(reference) => Some(reference),
            Piece::Own(_) => None,
        })
    }

    /// Returns the arguments with each reference replaced by the bytes that it stands for.
    pub fn compose<'r>(
        &self,
        size_max: usize,
        result_of: impl Fn(usize) -> Option<&'r str>,
    ) -> Result<Bytes, NotComposed> {
        if self.pieces.is_empty() {
            return if self.text.len() > size_max {
                Err(NotComposed::TooLarge)
            } else {
                Ok(self.text.clone())
            };
        }
        let mut composed = Vec::with_capacity(self.text.len());
        let mut read = 0;
        for piece in &self.pieces {
            let part = match piece {
                Piece::Own(range) => &self.text[range.clone()],
                Piece::Result(Reference { call, pointer }) => result_of(*call)
                    .and_then(|result| pointer.find(result, &mut read))
                    .ok_or(NotComposed::Missing { call: *call })?
                    .as_bytes(),
            };
            if read > READ_MAX {
                return Err(NotComposed::TooMuchRead);
            }
            if composed.len() + part.len() > size_max {
                return Err(NotComposed::TooLarge);
            }
            composed.extend_from_slice(part);
        }
        Ok(composed.into())
    }
}

/// One walk over the arguments. Each byte is read a bounded number of times.
struct Scan<'a, F> {
    json: &'a str,
    index_of: F,
    pieces: &'a mut Vec<Piece>,
    /// The text before this position is in `pieces`.
    taken: usize,
}

impl<F: Fn(&str) -> Option<usize>> Scan<'_, F> {
    /// Walks the value at `start` and returns the position after it.
    fn value(&mut self, start: usize, depth: usize) -> Result<usize, InvalidReference> {
        let Some(mut entries) = Entries::of(self.json, start) else {
            return Ok(self.end_of(start));
        };
        if depth == DEPTH_MAX {
            return Err(InvalidReference::TooDeep);
        }
        let (mut result, mut pointer, mut count) = (None, None, 0);
        while let Some(entry) = entries.next_start() {
            let at = entry.value.start;
            count += 1;
            if entry.is_named(LITERAL) {
                return self.literal(start, &entry, entries, count);
            }
            let end = self.value(at, depth + 1)?;
            if entry.is_named(RESULT) {
                result = Some(at..end);
            } else if entry.is_named(POINTER) {
                pointer = Some(at..end);
            }
            entries.skip_to(end);
        }
        let end = entries.end();
        match (result, pointer, count) {
            (None, ..) => {}
            (Some(result), Some(pointer), 2) => {
                let reference = self.reference(result, pointer)?;
                self.replace(start..end, Piece::Result(reference));
            }
            _ => return Err(InvalidReference::Result),
        }
        Ok(end)
    }

    fn literal(
        &mut self,
        start: usize,
        entry: &Entry<'_>,
        mut entries: Entries<'_>,
        count: usize,
    ) -> Result<usize, InvalidReference> {
        let value = entry.value.start..self.end_of(entry.value.start);
        entries.skip_to(value.end);
        if count > 1 || entries.next_start().is_some() {
            return Err(InvalidReference::Literal);
        }
        let end = entries.end();
        self.replace(start..end, Piece::Own(value));
        Ok(end)
    }

    fn reference(
        &self,
        result: Range<usize>,
        pointer: Range<usize>,
    ) -> Result<Reference, InvalidReference> {
        let text = |range: Range<usize>| -> Result<Cow<'_, str>, InvalidReference> {
            serde_json::from_str(&self.json[range]).map_err(|_| InvalidReference::Result)
        };
        let (id, pointer) = (text(result)?, text(pointer)?);
        let call = (self.index_of)(&id);
        let call = call.ok_or_else(|| InvalidReference::UnknownCall(shown(&id)))?;
        Ok(Reference { call, pointer: Pointer::parse(&pointer)? })
    }

    fn replace(&mut self, span: Range<usize>, by: Piece) {
        self.pieces.push(Piece::Own(self.taken..span.start));
        self.pieces.push(by);
        self.taken = span.end;
    }

    fn end_of(&self, start: usize) -> usize {
        value_end(self.json.as_bytes(), start)
    }
}

/// Cuts text of a caller that an error repeats.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 64;
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
#[path = "tests/references.rs"]
mod tests;
