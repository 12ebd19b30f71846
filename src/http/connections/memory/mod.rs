//! Estimates the memory that a connection takes, from the bytes that arrive on it.
//!
//! hyper and h2 give each connection buffers of fixed length, whether it is used or not. What comes
//! on top is what a client can cause: heads without an end, buffers that a long read has filled,
//! and buffers that stay because an entry of the header table points into them.
//!
//! - [`frames`]: the frames of HTTP/2
//! - [`header_block`]: the fields in the heads of HTTP/2

mod frames;
mod header_block;

use self::frames::Frames;
use crate::http::socket::PREFACE;

/// The task, its timers and the entries in tables: before anything has arrived, and while a
/// connection over HTTP/1 is idle.
pub(super) const BARE: usize = 6 * 1024;
/// A new connection and the buffers for a short request and its response.
const HTTP1: usize = 24 * 1024;
const HTTP2: usize = 32 * 1024;
/// Reads and heads up to this length use no more of the buffers than that.
const SHORT: usize = 4 * 1024;
/// The rest of the buffers, once a long read has used them.
const LONG_READ: usize = 16 * 1024;
/// An unfinished head of HTTP/2 counts in these steps, twice: its buffer doubles as it grows.
const HEAD_STEP: usize = 16 * 1024;
/// The buffer that an entry of the header table may keep.
const PINNED_BUFFER: usize = 16 * 1024;

/// The memory of one connection, as far as its client decides.
#[derive(Debug)]
pub(super) struct Meter {
    protocol: Protocol,
    /// The length of the unfinished head of HTTP/1, or of the last read.
    head: usize,
    has_long_read: bool,
}

#[derive(Debug)]
enum Protocol {
    /// So much has come of the preface of HTTP/2.
    Unknown(usize),
    Http1,
    Http2(Box<Frames>),
}

impl Default for Meter {
    fn default() -> Self {
        Self { protocol: Protocol::Unknown(0), head: 0, has_long_read: false }
    }
}

impl Meter {
    /// Takes note of bytes that have arrived. `is_in_head` is true if a head of HTTP/1 was arriving
    /// before. Returns the memory of the connection with these bytes.
    pub(super) fn read(&mut self, bytes: &[u8], is_in_head: bool) -> usize {
        self.detect(bytes);
        let before = if is_in_head { self.head } else { 0 };
        self.head = before + bytes.len();
        let longest = match self.protocol {
            Protocol::Http2(_) => bytes.len(),
            _ => self.head,
        };
        self.has_long_read |= longest > SHORT;
        let long_read = if self.has_long_read { LONG_READ } else { 0 };
        match &self.protocol {
            Protocol::Unknown(_) => BARE,
            Protocol::Http1 => HTTP1 + long_read,
            Protocol::Http2(frames) => HTTP2 + long_read + of_heads(frames),
        }
    }

    /// Finds out the protocol, and follows the frames of HTTP/2.
    fn detect(&mut self, mut bytes: &[u8]) {
        if let Protocol::Unknown(seen) = self.protocol {
            let expected = &PREFACE[seen..];
            let len = expected.len().min(bytes.len());
            self.protocol = if bytes[..len] != expected[..len] {
                Protocol::Http1
            } else if len < expected.len() {
                Protocol::Unknown(seen + len)
            } else {
                Protocol::Http2(Box::default())
            };
            bytes = &bytes[len..];
        }
        if let Protocol::Http2(frames) = &mut self.protocol {
            frames.read(bytes);
        }
    }
}

fn of_heads(frames: &Frames) -> usize {
    let unfinished = match frames.unfinished_head() {
        ..=SHORT => 0,
        len => 2 * len.next_multiple_of(HEAD_STEP),
    };
    unfinished + frames.pinned_entries() * PINNED_BUFFER
}

#[cfg(test)]
mod tests;
