//! How a call of a batch ended, and the bytes of results that a batch holds.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::calls::{Answer, OutcomeKind, Ran};
use crate::common::decimal::millis;
use crate::common::ids::CallId;
use crate::gateway::{Held, Reply};
use crate::protocol::jsonrpc::framing::blank_line_breaks;

/// Outcomes are written into pieces of about this size.
pub const PIECE_LEN: usize = 64 * 1024;
/// The length of a short outcome.
const OUTCOME_LEN: usize = 384;
/// The status of a tool's own failure, if the caller asks for it.
const FAILED: u16 = 422;

/// The outcome of one call of a batch.
pub struct ItemOutcome {
    call: CallId,
    status: u16,
    kind: OutcomeKind,
    executed: Ran,
    pub(super) attempts: u32,
    queue: Duration,
    backend: Duration,
    /// Whether the outcome is that of an earlier request with the same key.
    pub(super) is_replay: bool,
    body: OutcomeBody,
    /// The room of a server's own error; a result has its own.
    _held: Option<Held>,
}

enum OutcomeBody {
    Result(Bytes),
    Problem(Bytes),
}

/// An error as its caller sees it.
#[derive(Debug)]
pub struct Problem {
    pub status: u16,
    pub executed: Ran,
    pub body: Bytes,
}

impl ItemOutcome {
    /// Returns the outcome of a call that was answered with this result.
    pub(super) fn answered(
        call: CallId,
        reply: &Reply,
        result: Bytes,
        tool_errors_fail: bool,
    ) -> Self {
        let kind = OutcomeKind::from(reply.kind);
        Self {
            call,
            status: if kind == OutcomeKind::ToolError && tool_errors_fail { FAILED } else { 200 },
            kind,
            executed: Ran::Yes,
            attempts: reply.attempts,
            queue: reply.queue,
            backend: reply.backend,
            is_replay: false,
            body: OutcomeBody::Result(result),
            _held: None,
        }
    }

    /// Returns the outcome of a call for whose result there is no room.
    pub(super) fn too_large(call: CallId, reply: &Reply, problem: Problem) -> Self {
        Self {
            attempts: reply.attempts,
            queue: reply.queue,
            backend: reply.backend,
            ..Self::failed(call, problem, None)
        }
    }

    pub(super) fn failed(call: CallId, problem: Problem, held: Option<Held>) -> Self {
        let Problem { status, executed, body } = problem;
        Self {
            call,
            status,
            kind: OutcomeKind::Error,
            executed,
            attempts: 0,
            queue: Duration::ZERO,
            backend: Duration::ZERO,
            is_replay: false,
            body: OutcomeBody::Problem(body),
            _held: held,
        }
    }

    /// Returns the kept outcome of a call that has this result.
    pub(super) fn kept(answer: &Answer, result: Bytes, tool_errors_fail: bool) -> Self {
        let kind = answer.outcome.head.outcome;
        let is_failed = kind == OutcomeKind::ToolError && tool_errors_fail;
        let status = if is_failed { FAILED } else { 200 };
        Self { status, kind, body: OutcomeBody::Result(result), ..Self::kept_error(answer) }
    }

    /// Returns the kept outcome of a call that has no result.
    pub(super) fn kept_error(answer: &Answer) -> Self {
        let head = &answer.outcome.head;
        Self {
            call: answer.id,
            status: head.status,
            kind: OutcomeKind::Error,
            executed: head.executed,
            attempts: head.attempts,
            queue: Duration::from_micros(head.queue_us),
            backend: Duration::from_micros(head.backend_us),
            is_replay: answer.is_replay,
            body: OutcomeBody::Problem(answer.outcome.body.clone()),
            _held: None,
        }
    }

    /// Returns the outcome of a call for whose kept result there is no room here.
    pub(super) fn kept_too_large(answer: &Answer, problem: Problem) -> Self {
        let Problem { status, executed, body } = problem;
        let body = OutcomeBody::Problem(body);
        Self { status, executed, body, ..Self::kept_error(answer) }
    }

    pub fn kind(&self) -> OutcomeKind {
        self.kind
    }

    /// Writes the outcome of the call with this id, on one line.
    pub fn write(&self, id: &str, out: &mut Vec<u8>) {
        let Self { call, status, attempts, .. } = self;
        let (outcome, executed) = (self.kind.as_str(), self.executed.as_str());
        let (queue, backend) = (millis(self.queue), millis(self.backend));
        let replayed = if self.is_replay { "\"replayed\":true," } else { "" };
        let (name, body) = match &self.body {
            OutcomeBody::Result(result) => ("result", result),
            OutcomeBody::Problem(problem) => ("problem", problem),
        };
        // The id is plain text, so nothing needs an escape.
        let _ = write!(
            out,
            "{{\"id\":\"{id}\",\"call_id\":\"{call}\",\"status\":{status},\
             \"outcome\":\"{outcome}\",\"executed\":\"{executed}\",{replayed}\
             \"attempts\":{attempts},\"queue_ms\":{queue},\"backend_ms\":{backend},\"{name}\":"
        );
        let start = out.len();
        out.extend_from_slice(body);
        blank_line_breaks(&mut out[start..]);
        out.push(b'}');
    }
}

/// Writes an answer with all outcomes, in pieces: results are not copied all at once. `ids`: those
/// of the calls, in the same order.
pub fn write_all(
    ids: Vec<String>,
    outcomes: Vec<ItemOutcome>,
) -> impl Iterator<Item = Bytes> + Send {
    let mut outcomes = ids.into_iter().zip(outcomes).peekable();
    let mut before = "{\"results\":[";
    std::iter::from_fn(move || {
        outcomes.peek()?;
        let mut piece = Vec::with_capacity(PIECE_LEN.min(outcomes.len() * OUTCOME_LEN));
        while piece.len() < PIECE_LEN
            && let Some((id, outcome)) = outcomes.next()
        {
            piece.extend_from_slice(before.as_bytes());
            outcome.write(&id, &mut piece);
            before = ",";
        }
        if outcomes.peek().is_none() {
            piece.extend_from_slice(b"]}\n");
        }
        Some(piece.into())
    })
}

/// Bounds the bytes of results that one batch holds.
pub(super) struct HeldBytes {
    held: AtomicUsize,
    max: usize,
}

impl HeldBytes {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), max })
    }

    /// Counts a result until its last copy is dropped. Returns `None` if there is no room for it.
    pub(super) fn hold(self: &Arc<Self>, result: Bytes, unsent: Held) -> Option<Bytes> {
        let len = result.len();
        let before = self.held.fetch_add(len, Ordering::Relaxed);
        let held = HeldResult { result, all: self.clone(), _unsent: unsent };
        (before + len <= self.max).then(|| Bytes::from_owner(held))
    }
}

struct HeldResult {
    result: Bytes,
    all: Arc<HeldBytes>,
    /// Its share of the tenant's unsent bytes.
    _unsent: Held,
}

impl AsRef<[u8]> for HeldResult {
    fn as_ref(&self) -> &[u8] {
        &self.result
    }
}

impl Drop for HeldResult {
    fn drop(&mut self) {
        self.all.held.fetch_sub(self.result.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::byte_budget::BytePermit;

    #[test]
    fn an_outcome_is_one_line() {
        let body = Bytes::from_static(b"{\r\n \"code\": \"x\"\n}");
        let problem = Problem { status: 502, executed: Ran::No, body };
        let mut out = vec![];
        ItemOutcome::failed(CallId::generate(), problem, None).write("a", &mut out);
        assert!(!out.iter().any(|byte| matches!(byte, b'\r' | b'\n')), "{out:?}");
        assert!(out.ends_with(b"\"problem\":{   \"code\": \"x\" }}"), "{out:?}");
    }

    #[test]
    fn results_are_held_until_their_last_copy_is_gone() {
        let held = HeldBytes::new(10);
        let hold = |result| held.hold(result, Arc::new(BytePermit::nothing()));
        let first = hold(Bytes::from_static(b"12345678")).unwrap();
        assert!(hold(Bytes::from_static(b"123")).is_none());
        let copy = first.slice(2..4);
        drop(first);
        assert!(hold(Bytes::from_static(b"123")).is_none());
        drop(copy);
        assert_eq!(hold(Bytes::from_static(b"1234567890")).unwrap(), "1234567890");
        assert_eq!(held.held.load(Ordering::Relaxed), 0);
    }
}
