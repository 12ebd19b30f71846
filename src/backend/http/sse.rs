//! Reads `text/event-stream`: bytes in, however they were cut, and events out.
//!
//! It holds the data of one event at most, up to a limit. Of an event over the limit no more is kept than
//! that there was one.

use std::time::Duration;

/// Beyond the data itself, a line has the name of its field.
const FIELD_LEN_MAX: usize = 16;
/// A longer id is not one that could be sent back in a header.
const ID_LEN_MAX: usize = 1024;
/// Nobody comes back after more than this.
const RETRY_MAX: Duration = Duration::from_secs(3600);
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// The data of an event that is a message.
    Message(Vec<u8>),
    /// An event was over the limit. What is left of it will be skipped.
    TooLarge,
}

/// A stream that is being read.
#[derive(Debug)]
pub struct SseDecoder {
    data_len_max: usize,
    /// What has come of a line whose end has not.
    line: Vec<u8>,
    /// The line so far is a comment, or too long: it is not kept.
    skips_line: bool,
    /// The last line ended with CR: an LF that follows belongs to it.
    after_cr: bool,
    is_first_line: bool,
    event: Event,
    /// Only an event that has come whole counts.
    last_id: Option<String>,
    retry: Option<Duration>,
}

/// An event whose end has not come.
#[derive(Debug, Default)]
struct Event {
    data: Option<Vec<u8>>,
    id: Option<String>,
    /// It is of another kind than `message`.
    is_other: bool,
    is_too_large: bool,
}

impl SseDecoder {
    /// A stream from its beginning; `data_len_max` limits the data of one event.
    pub fn new(data_len_max: usize) -> Self {
        Self {
            data_len_max,
            line: vec![],
            skips_line: false,
            after_cr: false,
            is_first_line: true,
            event: Event::default(),
            last_id: None,
            retry: None,
        }
    }

    /// Takes the next bytes; what is complete with them is added to `items`.
    pub fn push(&mut self, mut bytes: &[u8], items: &mut Vec<Item>) {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) else {
                return self.keep(bytes, items);
            };
            self.keep(&bytes[..end], items);
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line(items);
        }
    }

    /// A new stream takes the place of one that has ended; its id and its `retry` are still good.
    pub fn begin_again(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { last_id, retry, ..Self::new(self.data_len_max) };
    }

    /// The id of the last event that had one: where to go on.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// How long to wait before coming back, if the server has said.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    fn keep(&mut self, part: &[u8], items: &mut Vec<Item>) {
        if self.skips_line || part.is_empty() {
            return;
        }
        if self.line.is_empty() && part[0] == b':' {
            self.skips_line = true;
        } else if self.line.len() + part.len() > self.data_len_max + FIELD_LEN_MAX {
            self.skips_line = true;
            self.too_large(items);
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn end_line(&mut self, items: &mut Vec<Item>) {
        let mut line = std::mem::take(&mut self.line);
        let is_first = std::mem::replace(&mut self.is_first_line, false);
        if std::mem::take(&mut self.skips_line) {
            return;
        }
        let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(&line);
        if text.is_empty() {
            self.end_event(items);
        } else {
            self.field(text, items);
        }
        // Its memory serves the next one, unless it is much.
        line.clear();
        if line.capacity() <= 4096 {
            self.line = line;
        }
    }

    fn field(&mut self, line: &[u8], items: &mut Vec<Item>) {
        let colon = memchr::memchr(b':', line);
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => self.data(value, items),
            b"event" => self.event.is_other = !value.is_empty() && value != b"message",
            b"id" if value.len() <= ID_LEN_MAX && !value.contains(&0) => {
                self.event.id = String::from_utf8(value.to_vec()).ok();
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry = Some(millis.map_or(RETRY_MAX, Duration::from_millis).min(RETRY_MAX));
            }
            _ => {}
        }
    }

    fn data(&mut self, value: &[u8], items: &mut Vec<Item>) {
        let len = self.event.data.as_ref().map_or(0, |data| data.len() + 1);
        if len + value.len() > self.data_len_max {
            return self.too_large(items);
        }
        if self.event.is_too_large {
            return;
        }
        match &mut self.event.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            none => *none = Some(value.to_vec()),
        }
    }

    fn too_large(&mut self, items: &mut Vec<Item>) {
        self.event.data = None;
        if !std::mem::replace(&mut self.event.is_too_large, true) {
            items.push(Item::TooLarge);
        }
    }

    fn end_event(&mut self, items: &mut Vec<Item>) {
        let event = std::mem::take(&mut self.event);
        if let Some(id) = event.id {
            // An empty one takes back those before.
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        match event.data {
            Some(data) if !data.is_empty() && !event.is_other => items.push(Item::Message(data)),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "tests/sse.rs"]
mod tests;
