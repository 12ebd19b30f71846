//! What arrives, what waits, what runs and what is to be written.

use std::num::NonZeroUsize;

use bytes::{Buf, BytesMut};
use serde_json::value::RawValue;
use tracing::{debug, error, warn};

use super::LINE_LEN_MAX;
use super::json::{Members, kind};
use super::protocol::{self, Answer};
use super::queue::Queue;
use super::running::{Ended, Running};
use crate::protocol::jsonrpc::id_scan::Whose;
use crate::protocol::jsonrpc::{
    Frame, INTERNAL_ERROR, INVALID_REQUEST, Line, LineSplitter, Malformed, Message, PARSE_ERROR,
    decode,
};
use crate::protocol::mcp::method;

/// With this much unwritten, the client is not reading: no more is read from it and no call is started.
const OUT_LEN_MAX: usize = 1024 * 1024;

pub(super) struct Server {
    max_concurrent: usize,
    queue: Queue,
    pub(super) running: Running,
    /// Answers to be written.
    pub(super) out: BytesMut,
    /// The time of calls is over; only what is answered at once still is.
    stopped: bool,
}

impl Server {
    pub(super) fn new(max_concurrent: NonZeroUsize) -> Self {
        Self {
            max_concurrent: max_concurrent.get(),
            queue: Queue::default(),
            running: Running::default(),
            out: BytesMut::new(),
            stopped: false,
        }
    }

    /// Goes on as far as it can: starts what waits, then takes what has arrived.
    pub(super) fn take_lines(&mut self, lines: &mut LineSplitter) {
        loop {
            self.start_waiting();
            if !self.has_room() {
                return;
            }
            match lines.next_line() {
                Some(Line::Whole(line)) => self.take(&line),
                Some(Line::TooLong { whose: Whose::AnswerTo(_) }) => {
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

    /// Whether more may be read.
    pub(super) fn has_room(&self) -> bool {
        self.queue.has_room() && self.out.len() < OUT_LEN_MAX
    }

    /// Nothing runs, waits or is left to write.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.queue.is_empty() && self.out.is_empty()
    }

    /// A call has ended by itself, or was cancelled.
    pub(super) fn finish(&mut self, ended: Option<Ended>) {
        let Some(Ended { id, era, outcome }) = ended else { return };
        let frame = match outcome {
            Some(outcome) => protocol::call_result(&id, era, &outcome),
            None => Frame::error(Some(&id), INTERNAL_ERROR, "the tool broke down", None),
        };
        self.send(&frame);
    }

    /// So much of `out` was written.
    pub(super) fn written(&mut self, len: usize) {
        self.out.advance(len);
        // What one long answer needed is not kept for the short ones after it.
        if self.out.is_empty() && self.out.capacity() > OUT_LEN_MAX {
            self.out = BytesMut::new();
        }
    }

    /// Stops the calls that run and starts no more of those that take time.
    pub(super) fn stop_calls(&mut self) {
        self.stopped = true;
        self.running.cancel_all();
    }

    fn take(&mut self, line: &[u8]) {
        match decode(line) {
            Ok(Message::Request { id, method, params }) => {
                if self.must_wait(&method) {
                    self.queue.push(id, line);
                } else {
                    self.answer(id, &method, params);
                }
            }
            Ok(Message::Notification { method, params }) => self.notified(&method, params),
            Ok(Message::Response { id, .. }) => {
                warn!(id = id.get(), "ignored an answer: nothing was asked");
            }
            Err(malformed) => self.refuse(&malformed),
        }
    }

    /// Only calls wait for each other, so that a busy server still answers a `ping`. With a maximum of
    /// one all requests do, since then the order is promised.
    fn must_wait(&self, method: &str) -> bool {
        let waits_in_line = method == method::TOOLS_CALL || self.max_concurrent == 1;
        waits_in_line && (!self.queue.is_empty() || !self.may_start())
    }

    fn may_start(&self) -> bool {
        self.running.len() < self.max_concurrent && self.out.len() < OUT_LEN_MAX
    }

    fn start_waiting(&mut self) {
        while self.may_start()
            && let Some(line) = self.queue.pop()
        {
            if let Ok(Message::Request { id, method, params }) = decode(&line) {
                self.answer(id, &method, params);
            }
        }
    }

    fn answer(&mut self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        match protocol::answer(id, method, params) {
            Answer::Now(frame) => self.send(&frame),
            Answer::Later { .. } if self.stopped => {}
            Answer::Later { era, work } => self.running.start(id, era, work),
        }
    }

    fn refuse(&mut self, malformed: &Malformed<'_>) {
        let frame = match *malformed {
            Malformed::NotJson => Frame::error(None, PARSE_ERROR, "the line is not JSON", None),
            Malformed::Batch => {
                Frame::error(None, INVALID_REQUEST, "Batch requests not supported", None)
            }
            Malformed::Invalid { id, why } => Frame::error(id, INVALID_REQUEST, why, None),
        };
        self.send(&frame);
    }

    fn notified(&mut self, method: &str, params: Option<&RawValue>) {
        match method {
            method::CANCELLED => self.cancel(params),
            method::INITIALIZED => {}
            _ => warn!(method, "ignored an unknown notification"),
        }
    }

    /// Ends every request with that id, should a client have used one twice. An id that is not known
    /// has most likely just been answered.
    fn cancel(&mut self, params: Option<&RawValue>) {
        let Some(id) = params.and_then(request_id) else {
            let params = params.map(RawValue::get);
            return error!(params, "notifications/cancelled has no `requestId`");
        };
        let ended = self.queue.cancel(id) + self.running.cancel(id);
        debug!(id = id.get(), ended, "cancelled");
    }

    fn send(&mut self, frame: &Frame) {
        self.out.extend_from_slice(frame.as_bytes());
    }
}

/// The request that a cancellation is about.
fn request_id(params: &RawValue) -> Option<&RawValue> {
    let Members(members) = serde_json::from_str(params.get()).ok()?;
    let (_, id) = members.into_iter().find(|(key, _)| key == "requestId")?;
    matches!(kind(id), "a string" | "a number" | "null").then_some(id)
}
