//! The requests that wait for a call to end.

use std::collections::VecDeque;

use serde_json::value::RawValue;

use super::json::same_id;

/// How many requests wait before no more are read.
const LEN_MAX: usize = 1024;
/// How many bytes of them, which one request of the greatest length may exceed.
const BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
}

struct Waiting {
    /// For cancellation, which must not read every line again.
    id: Box<RawValue>,
    /// A copy, so that a short request does not keep the whole read buffer it came in.
    line: Box<[u8]>,
}

impl Queue {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < LEN_MAX && self.bytes < BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, id: &RawValue, line: &[u8]) {
        self.bytes += line.len();
        self.waiting.push_back(Waiting { id: id.to_owned(), line: line.into() });
    }

    pub(super) fn pop(&mut self) -> Option<Box<[u8]>> {
        let Waiting { line, .. } = self.waiting.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    /// Forgets the requests with that id and says how many there were.
    pub(super) fn cancel(&mut self, id: &RawValue) -> usize {
        let len_before = self.waiting.len();
        let bytes = &mut self.bytes;
        self.waiting.retain(|waiting| {
            let stays = !same_id(&waiting.id, id);
            if !stays {
                *bytes -= waiting.line.len();
            }
            stays
        });
        len_before - self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn it_is_full_by_number_or_by_bytes_and_has_room_again() {
        let mut queue = Queue::default();
        for _ in 0..LEN_MAX {
            assert!(queue.has_room());
            queue.push(&id("1"), b"x");
        }
        assert!(!queue.has_room());
        assert!(queue.pop().is_some() && queue.has_room());
        queue.push(&id("2"), &vec![b'x'; BYTES_MAX]);
        assert_eq!(queue.cancel(&id("1")), LEN_MAX - 1);
        assert!(!queue.has_room());
        assert_eq!(queue.cancel(&id("2")), 1);
        assert!(queue.has_room() && queue.is_empty() && queue.bytes == 0);
    }
}
