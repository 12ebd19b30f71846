//! Decodes `text/event-stream`: chunks of bytes in, events out.
//!
//! The decoder buffers one event at most. It reports an event over the limit without keeping it.

use std::time::Duration;

/// A line has the name of its field beside the data.
const FIELD_LEN_MAX: usize = 16;
/// A longer id could not be sent back in a header.
const ID_LEN_MAX: usize = 1024;
const RETRY_MAX: Duration = Duration::from_secs(3600);
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// The data of an event of the type `message`.
    Message(Vec<u8>),
    /// The data of an event of the type `endpoint`: where the older transport takes messages.
    Endpoint(Vec<u8>),
    /// An event was over the limit. The rest of it will be skipped.
    TooLarge,
}

#[derive(Debug, Default)]
pub struct SseDecoder {
    data_len_max: usize,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
    /// Set while a comment, or a line that is too long, is skipped.
    skips_line: bool,
    /// Set after a CR that ended a line: an LF that follows belongs to it.
    after_cr: bool,
    is_past_first_line: bool,
    event: PartialEvent,
    /// The id of the last complete event that had one.
    last_id: Option<String>,
    retry: Option<Duration>,
}

#[derive(Debug, Default)]
struct PartialEvent {
    data: Option<Vec<u8>>,
    id: Option<String>,
    kind: EventKind,
    is_too_large: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EventKind {
    #[default]
    Message,
    Endpoint,
    Other,
}

impl SseDecoder {
    /// Starts at the beginning of a stream; `data_len_max` limits the data of one event.
    pub fn new(data_len_max: usize) -> Self {
        Self { data_len_max, ..Self::default() }
    }

    /// Decodes the next bytes and adds every completed event to `items`.
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

    /// Prepares for a new stream that continues this one. Keeps the last id and `retry`.
    pub fn restart(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry);
        *self = Self { last_id, retry, ..Self::new(self.data_len_max) };
    }

    /// Returns the id from which the stream can be resumed.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Returns the pause that the server asked for before a reconnect.
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
        let is_first = !std::mem::replace(&mut self.is_past_first_line, true);
        if std::mem::take(&mut self.skips_line) {
            return;
        }
        let text = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| is_first).unwrap_or(&line);
        if text.is_empty() {
            self.end_event(items);
        } else {
            self.field(text, items);
        }
        // Reuse the buffer for the next line, unless it has grown large.
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
            b"event" => {
                self.event.kind = match value {
                    b"" | b"message" => EventKind::Message,
                    b"endpoint" => EventKind::Endpoint,
                    _ => EventKind::Other,
                }
            }
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
            // An empty id resets the last one.
            self.last_id = Some(id).filter(|id| !id.is_empty());
        }
        let Some(data) = event.data.filter(|data| !data.is_empty()) else { return };
        match event.kind {
            EventKind::Message => items.push(Item::Message(data)),
            EventKind::Endpoint => items.push(Item::Endpoint(data)),
            EventKind::Other => {}
        }
    }
}

#[cfg(test)]
#[path = "tests/sse.rs"]
mod tests;
