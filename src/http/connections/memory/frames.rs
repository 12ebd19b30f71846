//! Follows the frames of HTTP/2 that arrive, as far as they decide about memory.

use super::header_block::HeaderBlock;

const HEAD_LEN: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// The bytes of a priority at the start of a frame.
const PRIORITY_LEN: usize = 5;

/// The frames of one connection, after its preface.
#[derive(Debug, Default)]
pub(super) struct Frames {
    head: [u8; HEAD_LEN],
    head_len: usize,
    /// The bytes that are left of the frame's payload.
    left: usize,
    fragment: Fragment,
    /// The bytes of a head that has no end yet.
    unfinished_head: usize,
    block: HeaderBlock,
}

/// The part of a head that a frame carries.
#[derive(Debug, Default)]
struct Fragment {
    /// True before the length of the padding was read.
    is_padding_ahead: bool,
    /// The bytes of a priority that are left.
    priority: usize,
    /// The bytes at the end of the frame that belong to no field.
    padding: usize,
}

impl Frames {
    /// Returns the length of the head that has begun and not ended.
    pub(super) fn unfinished_head(&self) -> usize {
        self.unfinished_head
    }

    /// Returns the most entries of the header table that may each keep a buffer.
    pub(super) fn pinned_entries(&self) -> usize {
        self.block.pinned_entries()
    }

    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let is_in_payload = self.left > 0;
            let wanted = if is_in_payload { self.left } else { HEAD_LEN - self.head_len };
            let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
            if is_in_payload {
                self.payload(part)
            } else {
                self.frame_head(part)
            }
            bytes = rest;
        }
    }

    fn frame_head(&mut self, part: &[u8]) {
        self.head[self.head_len..][..part.len()].copy_from_slice(part);
        self.head_len += part.len();
        if self.head_len < HEAD_LEN {
            return;
        }
        let [a, b, c, kind, flags, ..] = self.head;
        self.left = u32::from_be_bytes([0, a, b, c]) as usize;
        let has = |flag| kind == HEADERS && flags & flag != 0;
        let priority = if has(PRIORITY) { PRIORITY_LEN } else { 0 };
        self.fragment = Fragment { is_padding_ahead: has(PADDED), priority, padding: 0 };
        if self.left == 0 {
            self.frame_ends();
        }
    }

    fn payload(&mut self, part: &[u8]) {
        self.left -= part.len();
        if self.carries_head() {
            self.unfinished_head += part.len();
            self.block.read(self.fragment.fields(part, self.left));
        }
        if self.left == 0 {
            self.frame_ends();
        }
    }

    fn frame_ends(&mut self) {
        self.head_len = 0;
        if self.carries_head() && self.head[4] & END_HEADERS != 0 {
            self.unfinished_head = 0;
            self.block.ends();
        }
    }

    fn carries_head(&self) -> bool {
        matches!(self.head[3], HEADERS | CONTINUATION)
    }
}

impl Fragment {
    /// Returns what is about fields; `left` bytes of the frame come after this part.
    fn fields<'a>(&mut self, mut part: &'a [u8], left: usize) -> &'a [u8] {
        if self.is_padding_ahead
            && let [padding, rest @ ..] = part
        {
            (self.is_padding_ahead, self.padding) = (false, usize::from(*padding));
            part = rest;
        }
        let priority = self.priority.min(part.len());
        self.priority -= priority;
        part = &part[priority..];
        let padding = self.padding.saturating_sub(left);
        &part[..part.len().saturating_sub(padding)]
    }
}
