//! The state of the server: requests that wait, calls that run, and answers to write.

use std::num::NonZeroUsize;

use bytes::{Buf, Bytes, BytesMut};
use serde_json::value::RawValue;
use tokio::task::spawn_blocking;
use tracing::{debug, error, warn};

use super::LINE_LEN_MAX;
use super::calls::{CallQueue, EndedCall, Running, RunningCall};
use super::protocol::{self, RpcAnswer};
use crate::protocol::jsonrpc::framing::type_name;
use crate::protocol::jsonrpc::id_scan::LineKind;
use crate::protocol::jsonrpc::{
    Frame, INTERNAL_ERROR, INVALID_REQUEST, Line, LineSplitter, Malformed, Members, Message,
    PARSE_ERROR, decode,
};
use crate::protocol::mcp::method;

/// Longer requests are read and worked on by another thread: one loop answers all callers, and
/// nobody's computation may keep the others waiting.
const LONG: usize = 4 * 1024;
/// With this many unwritten bytes the client is not reading: nothing is read and no call starts.
const OUT_LEN_MAX: usize = 1024 * 1024;

pub(super) struct StdServer {
    max_concurrent: usize,
    queue: CallQueue,
    pub(super) running: Running,
    /// Answers to be written.
    pub(super) out: BytesMut,
    /// Set when calls were stopped. Requests that need no call are still answered.
    stopped: bool,
}

impl StdServer {
    pub(super) fn new(max_concurrent: NonZeroUsize) -> Self {
        Self {
            max_concurrent: max_concurrent.get(),
            queue: CallQueue::default(),
            running: Running::default(),
            out: BytesMut::new(),
            stopped: false,
        }
    }

    /// Makes progress as far as possible: starts waiting requests, then handles new lines.
    pub(super) fn take_lines(&mut self, lines: &mut LineSplitter) {
        loop {
            self.start_waiting();
            if !self.has_room() {
                return;
            }
            match lines.next_line() {
                Some(Line::Whole(line)) => self.take(&line),
                Some(Line::TooLong { kind: LineKind::AnswerTo(_) }) => {
                    warn!("ignored an answer: nothing was asked");
                }
                Some(Line::TooLong { .. }) => {
                    let why = format!("the message is longer than {LINE_LEN_MAX} bytes");
                    self.send(&Frame::error(None, INVALID_REQUEST, &why, None));
                }
                None => return,
            }
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room() && self.out.len() < OUT_LEN_MAX
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty() && self.out.is_empty()
    }

    /// Answers a call that has ended; `None` if it was cancelled.
    pub(super) fn finish(&mut self, ended: Option<EndedCall>) {
        let Some((RunningCall { id, .. }, answer)) = ended else { return };
        let answer = answer.unwrap_or_else(|| {
            Frame::error(Some(&id), INTERNAL_ERROR, "the tool failed unexpectedly", None)
        });
        self.send(&answer);
    }

    /// Removes the bytes that were written from `out`.
    pub(super) fn written(&mut self, len: usize) {
        self.out.advance(len);
        // A buffer that one long answer needed is released.
        if self.out.is_empty() && self.out.capacity() > OUT_LEN_MAX {
            self.out = BytesMut::new();
        }
    }

    /// Stops running calls and starts no more.
    pub(super) fn stop_calls(&mut self) {
        self.stopped = true;
        self.running.cancel_all();
    }

    fn take(&mut self, line: &Bytes) {
        if line.len() > LONG
            && let Some(id) = leading_id(line)
        {
            // The thread that answers reads the rest.
            match self.must_wait(method::TOOLS_CALL) {
                true => self.queue.push(id, line),
                false => self.answer_on_thread(id, line.clone()),
            }
            return;
        }
        match decode(line) {
            Ok(Message::Request { id, method, .. }) if self.must_wait(&method) => {
                self.queue.push(id, line);
            }
            Ok(Message::Request { id, .. }) if line.len() > LONG => {
                self.answer_on_thread(id, line.clone());
            }
            Ok(Message::Request { id, method, params }) => self.answer(id, &method, params),
            Ok(Message::Notification { method, params }) => self.notified(&method, params),
            Ok(Message::Response { id, .. }) => {
                warn!(id = id.get(), "ignored an answer: nothing was asked");
            }
            Err(malformed) => self.send(&refusal(&malformed)),
        }
    }

    /// Only calls wait for each other, so that a busy server still answers a `ping`. With a maximum
    /// of one all requests do, since then the order is promised.
    fn must_wait(&self, method: &str) -> bool {
        let waits_in_line = method == method::TOOLS_CALL || self.max_concurrent == 1;
        waits_in_line && (!self.queue.is_empty() || !self.may_start())
    }

    fn may_start(&self) -> bool {
        self.running.len() < self.max_concurrent && self.out.len() < OUT_LEN_MAX
    }

    fn start_waiting(&mut self) {
        while self.may_start()
            && let Some((id, line)) = self.queue.pop()
        {
            if line.len() > LONG {
                self.answer_on_thread(&id, line.into());
            } else if let Ok(Message::Request { id, method, params }) = decode(&line) {
                self.answer(id, &method, params);
            }
        }
    }

    fn answer(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        match protocol::answer(id, method, params) {
            RpcAnswer::Now(frame) => self.send(&frame),
            RpcAnswer::Later(_) if self.stopped => {}
            RpcAnswer::Later(answer) => self.running.start(id, answer),
        }
    }

    /// Answers a long request without keeping the loop from its other work.
    fn answer_on_thread(&mut self, id: &RawValue, line: Bytes) {
        if self.stopped {
            return;
        }
        let read = move || match decode(&line) {
            Ok(Message::Request { id, method, params }) => protocol::answer(id, &method, params),
            Ok(_) => unreachable!("it begins as a request"),
            Err(malformed) => RpcAnswer::Now(refusal(&malformed)),
        };
        let answer = async move {
            match spawn_blocking(read).await {
                Ok(RpcAnswer::Now(frame)) => frame,
                Ok(RpcAnswer::Later(answer)) => answer.await,
                // The request is answered as one whose tool has panicked.
                Err(error) => panic!("{error}"),
            }
        };
        self.running.start(id, Box::pin(answer));
    }

    fn notified(&mut self, method: &str, params: Option<&RawValue>) {
        match method {
            method::CANCELLED => self.cancel(params),
            method::INITIALIZED => {}
            _ => warn!(method, "ignored an unknown notification"),
        }
    }

    /// Cancels every request with that id; a client may have used it twice. A request with an
    /// unknown id has most likely just been answered.
    fn cancel(&mut self, params: Option<&RawValue>) {
        let Some(id) = params.and_then(request_id) else {
            let params = params.map(RawValue::get);
            return error!(params, "notifications/cancelled has no `requestId`");
        };
        let ended = self.queue.cancel(id) + self.running.cancel(id);
        debug!(id = id.get(), ended, "cancelled");
    }

    fn send(&mut self, frame: &Frame) {
        self.out.extend_from_slice(&frame.bytes());
    }
}

fn refusal(malformed: &Malformed<'_>) -> Frame {
    match *malformed {
        Malformed::NotJson => Frame::error(None, PARSE_ERROR, "the line is not JSON", None),
        Malformed::Batch => {
            Frame::error(None, INVALID_REQUEST, "Batch requests not supported", None)
        }
        Malformed::Invalid { id, why } => Frame::error(id, INVALID_REQUEST, why, None),
    }
}

/// Returns the id of a request whose line begins as most clients write it, without reading more.
fn leading_id(line: &[u8]) -> Option<&RawValue> {
    let rest = line.strip_prefix(br#"{"jsonrpc":"2.0","id":"#)?;
    let is_short = rest.first().is_some_and(|first| matches!(first, b'"' | b'-' | b'0'..=b'9'));
    let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
    let id = is_short.then(|| values.next()?.ok()).flatten()?;
    rest[values.byte_offset()..].starts_with(br#","method":""#).then_some(id)
}

/// Returns the id of the request to cancel.
fn request_id(params: &RawValue) -> Option<&RawValue> {
    let id = Members::parse(params.get()).ok()?.get("requestId")?;
    matches!(type_name(id.get()), "a string" | "a number" | "null").then_some(id)
}
