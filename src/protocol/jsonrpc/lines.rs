//! Splits a byte stream into lines, in bounded memory.

use bytes::{Bytes, BytesMut};

use super::id_scan::{IdScanner, LineKind};

const READ_LEN: usize = 64 * 1024;
/// A buffer that grew beyond this for a long line is released.
const KEEP_LEN_MAX: usize = 1024 * 1024;

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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(splitter: &mut LineSplitter, chunk: &[u8], lines: &mut Vec<Line>) {
        splitter.space().extend_from_slice(chunk);
        while let Some(line) = splitter.next_line() {
            lines.push(line);
        }
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_arriving_together_or_split_are_all_kept() {
        let mut splitter = LineSplitter::new(100);
        let mut lines = vec![];
        feed(&mut splitter, b"one\ntwo\r\n\n  \nthr", &mut lines);
        assert_eq!(lines, [whole("one"), whole("two")]);
        feed(&mut splitter, b"", &mut lines);
        feed(&mut splitter, b"ee\n", &mut lines);
        assert_eq!(lines[2..], [whole("three")]);
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_kept_and_one_more_byte_is_not() {
        let mut splitter = LineSplitter::new(4);
        let mut lines = vec![];
        feed(&mut splitter, b"1234\n12345\nx\n", &mut lines);
        assert_eq!(lines, [whole("1234"), Line::TooLong { kind: LineKind::Unknown }, whole("x")]);
    }

    #[test]
    fn the_id_of_an_overlong_line_is_found_in_bounded_memory() {
        let mut splitter = LineSplitter::new(1000);
        let mut lines = vec![];
        feed(&mut splitter, b"{\"result\":\"", &mut lines);
        for _ in 0..1000 {
            feed(&mut splitter, &[b'x'; 10_000], &mut lines);
            assert!(splitter.buffer.capacity() <= 2 * READ_LEN);
        }
        assert!(splitter.skipped_len() > 9_000_000);
        feed(&mut splitter, b"\",\"id\":42}\nnext\n", &mut lines);
        assert_eq!(lines, [Line::TooLong { kind: LineKind::AnswerTo(42) }, whole("next")]);
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_lines(
            texts in prop::collection::vec("[a-z{}\"]{0,30}", 0..20),
            cuts in prop::collection::vec(1..9_usize, 1..60),
        ) {
            let stream: String = texts.iter().map(|text| format!("{text}\n")).collect();
            let stream = stream.into_bytes();
            let mut whole_lines = vec![];
            feed(&mut LineSplitter::new(20), &stream, &mut whole_lines);

            let mut splitter = LineSplitter::new(20);
            let mut cut_lines = vec![];
            let mut rest = &stream[..];
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
                feed(&mut splitter, chunk, &mut cut_lines);
                rest = tail;
            }
            prop_assert_eq!(whole_lines, cut_lines);
        }
    }
}
