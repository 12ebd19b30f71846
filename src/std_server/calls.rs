//! Calls: requests that wait for a running call to end, and running calls and how to stop them.

use std::collections::{HashMap, VecDeque};

use serde_json::value::RawValue;
use tokio::task::{self, AbortHandle, JoinSet};
use tracing::error;

use super::protocol::Pending;
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::params::text_of;

/// Requests that may wait. When the queue is full nothing is read.
const LEN_MAX: usize = 1024;
/// Bytes that may wait. One request of the greatest length may exceed this.
const BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Default)]
pub(super) struct CallQueue {
    waiting: VecDeque<WaitingCall>,
    bytes: usize,
}

struct WaitingCall {
    /// Kept for cancellation, which must not parse every line again.
    id: Box<RawValue>,
    /// A copy, so that a short request does not keep a whole read buffer alive.
    line: Box<[u8]>,
}

impl CallQueue {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < LEN_MAX && self.bytes < BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, id: &RawValue, line: &[u8]) {
        self.bytes += line.len();
        self.waiting.push_back(WaitingCall { id: id.to_owned(), line: line.into() });
    }

    /// Returns the next request, with its id.
    pub(super) fn pop(&mut self) -> Option<(Box<RawValue>, Box<[u8]>)> {
        let WaitingCall { id, line } = self.waiting.pop_front()?;
        self.bytes -= line.len();
        Some((id, line))
    }

    /// Removes the requests with that id and returns how many there were.
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

#[derive(Default)]
pub(super) struct Running {
    tasks: JoinSet<Frame>,
    /// Calls that still need an answer. A cancelled one is removed at once, even if its task had
    /// ended before it could be stopped.
    calls: HashMap<task::Id, RunningCall>,
}

pub(super) struct RunningCall {
    pub(super) id: Box<RawValue>,
    abort: AbortHandle,
}

/// A call that has ended, and its answer; `None` if the tool panicked.
pub(super) type EndedCall = (RunningCall, Option<Frame>);

impl Running {
    pub(super) fn start(&mut self, id: &RawValue, answer: Pending) {
        let abort = self.tasks.spawn(answer);
        self.calls.insert(abort.id(), RunningCall { id: id.to_owned(), abort });
    }

    /// Returns the number of running calls, including cancelled ones that have not stopped yet.
    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Waits for the next call to end; `None` if it was cancelled. Cancel-safe: there is no await
    /// after the task was taken out.
    pub(super) async fn next(&mut self) -> Option<EndedCall> {
        let (task, answer) = match self.tasks.join_next_with_id().await? {
            Ok((task, answer)) => (task, Some(answer)),
            Err(error) => {
                if error.is_panic() {
                    error!(%error, "a tool panicked");
                }
                (error.id(), None)
            }
        };
        Some((self.calls.remove(&task)?, answer))
    }

    /// Stops the calls with that id and returns how many there were.
    pub(super) fn cancel(&mut self, id: &RawValue) -> usize {
        let cancelled = self.calls.extract_if(|_, call| same_id(&call.id, id));
        cancelled.map(|(_, call)| call.abort.abort()).count()
    }

    pub(super) fn cancel_all(&mut self) {
        self.calls.clear();
        self.tasks.abort_all();
    }
}

/// Compares ids by type and value. Numbers are compared as written; a string may be escaped in
/// different ways.
fn same_id(one: &RawValue, other: &RawValue) -> bool {
    one.get() == other.get() || text_of(one).is_some_and(|one| text_of(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn ids_are_compared_by_type_and_value() {
        for (one, other) in [("1", "1"), (r#""a""#, r#""\u0061""#), ("null", "null")] {
            assert!(same_id(&id(one), &id(other)), "{one} {other}");
        }
        for (one, other) in
            [("1", "\"1\""), ("1", "1.0"), ("null", "\"null\""), ("\"\\ud800\"", "1")]
        {
            assert!(!same_id(&id(one), &id(other)), "{one} {other}");
        }
    }

    #[test]
    fn the_queue_is_full_by_number_or_by_bytes_and_has_space_again() {
        let mut queue = CallQueue::default();
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

    #[tokio::test]
    async fn a_call_cancelled_after_its_end_is_not_answered() {
        let mut running = Running::default();
        running.start(&id("1"), Box::pin(async { Frame::result(&id("1"), &"late") }));
        tokio::task::yield_now().await;
        assert_eq!(running.cancel(&id("1")), 1);
        assert!(running.next().await.is_none());
        assert!(running.is_empty());
    }

    #[tokio::test]
    async fn the_call_of_a_tool_that_panics_is_known() {
        let mut running = Running::default();
        running.start(&id("7"), Box::pin(async { panic!("on purpose") }));
        let (call, answer) = running.next().await.unwrap();
        assert_eq!(call.id.get(), "7");
        assert!(answer.is_none());
    }
}
