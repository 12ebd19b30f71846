//! How a call of a batch ended, and the bytes of results that a batch holds.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;

use crate::common::ids::CallId;
use crate::gateway::{CallError, Held, Reply};
use crate::http::error::{HttpError, problem_json};
use crate::http::headers::millis;
use crate::protocol::jsonrpc::framing::blank_line_breaks;
use crate::protocol::mcp::results::ResultKind;

/// The outcome of one call.
pub(super) struct Outcome {
    call: CallId,
    status: StatusCode,
    outcome: &'static str,
    executed: &'static str,
    attempts: u32,
    queue: Duration,
    backend: Duration,
    body: OutcomeBody,
    /// The room of a server's own error; a result has its own.
    _held: Option<Held>,
}

enum OutcomeBody {
    Result(Bytes),
    Problem(Vec<u8>),
}

impl Outcome {
    /// Returns the outcome of a call that was answered. `result` is the held result, or `None` if
    /// there was no room for it.
    pub(super) fn answered(
        call: CallId,
        reply: &Reply,
        result: Option<Bytes>,
        tool_errors_fail: bool,
    ) -> Self {
        let (body, status, outcome) = match result {
            Some(result) if reply.kind == ResultKind::ToolError && tool_errors_fail => {
                (OutcomeBody::Result(result), StatusCode::UNPROCESSABLE_ENTITY, "tool_error")
            }
            Some(result) => (OutcomeBody::Result(result), StatusCode::OK, reply.kind.as_str()),
            None => {
                let (status, problem) = problem_json(&HttpError::ResultTooLarge);
                (OutcomeBody::Problem(problem), status, "error")
            }
        };
        Self {
            call,
            status,
            outcome,
            executed: "yes",
            attempts: reply.attempts,
            queue: reply.queue,
            backend: reply.backend,
            body,
            _held: None,
        }
    }

    pub(super) fn failed(call: CallId, error: &HttpError) -> Self {
        let (status, problem) = problem_json(error);
        let call_error = match error {
            HttpError::Call(error) => Some(error),
            _ => None,
        };
        Self {
            call,
            status,
            outcome: "error",
            executed: call_error.map_or("no", |error| error.executed().as_str()),
            attempts: call_error.map_or(0, |error| error.attempts()),
            queue: Duration::ZERO,
            backend: Duration::ZERO,
            body: OutcomeBody::Problem(problem),
            _held: call_error.and_then(CallError::held),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.outcome
    }

    pub(super) fn is_ok(&self) -> bool {
        self.outcome == "ok"
    }

    /// Writes the outcome of the call with this id, on one line.
    pub(super) fn write(&self, id: &str, out: &mut Vec<u8>) {
        let Self { call, outcome, executed, attempts, .. } = self;
        let (status, queue) = (self.status.as_u16(), millis(self.queue));
        let backend = millis(self.backend);
        let (name, body) = match &self.body {
            OutcomeBody::Result(result) => ("result", &result[..]),
            OutcomeBody::Problem(problem) => ("problem", &problem[..]),
        };
        // The id is plain text, so nothing needs an escape.
        let _ = write!(
            out,
            "{{\"id\":\"{id}\",\"call_id\":\"{call}\",\"status\":{status},\
             \"outcome\":\"{outcome}\",\"executed\":\"{executed}\",\"attempts\":{attempts},\
             \"queue_ms\":{queue},\"backend_ms\":{backend},\"{name}\":"
        );
        let start = out.len();
        out.extend_from_slice(body);
        blank_line_breaks(&mut out[start..]);
        out.push(b'}');
    }
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
