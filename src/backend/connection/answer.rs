//! What becomes of a call on a connection, and whose it is.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::common::ids::{CallId, TenantId};

/// Whose a call is. Kept both with the slot and with the waiter, and compared when they meet again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who pays.
    pub tenant: TenantId,
    /// Which call of theirs.
    pub call: CallId,
    /// Which run of the server.
    pub generation: u64,
}

impl Owner {
    /// The gateway's own requests.
    pub fn gateway(generation: u64) -> Self {
        Self { tenant: TenantId::gateway(), call: CallId::generate(), generation }
    }
}

/// Why a connection ended, in words that may be shown to callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The process ended, or closed its output.
    Exited(String),
    /// The server broke the protocol beyond repair.
    Protocol(String),
    /// The gateway stopped it.
    Stopped,
}

impl End {
    /// In words that callers may see.
    pub fn reason(&self) -> &str {
        match self {
            Self::Exited(reason) | Self::Protocol(reason) => reason,
            Self::Stopped => "it was stopped",
        }
    }
}

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The `result` member.
    Result(Bytes),
    /// The `error` member.
    Error(Bytes),
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connection ended.
    Ended {
        /// Why.
        end: End,
        /// Whether the server may have seen the request.
        written: bool,
    },
    /// The deadline passed.
    Expired {
        /// Whether the server may have seen the request.
        written: bool,
    },
    /// The answer was over the size limit.
    TooLarge,
    /// Too many frames wait to be written.
    Busy,
    /// The answer belonged to another call. It was withheld and the connection closed.
    Mixup,
    /// The server answered with an HTTP status instead.
    Http {
        /// Which.
        status: u16,
        /// When to come back, if it said.
        retry_after: Option<Duration>,
    },
    /// It could not be sent as it is, for this reason.
    Unsendable(String),
    /// The server was not reached, or knew at once that it could not take the call.
    Unreached {
        /// In words that may be shown to callers.
        reason: Cow<'static, str>,
        /// The whole story, for the operator.
        detail: String,
    },
}

/// What a waiter receives: the outcome, and whose it is by the slot's own record.
#[derive(Debug)]
pub struct Delivery {
    /// Whose outcome this is.
    pub owner: Owner,
    /// The outcome.
    pub outcome: Result<Answer, Failure>,
}

/// Why a call could not be registered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection has ended.
    Closed(End),
    /// The id is in use. Cannot happen with ids that never repeat.
    IdInUse,
}

/// What became of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Completion {
    /// Handed to its waiter.
    Delivered,
    /// Nobody waits any more.
    Late,
    /// No slot has this id.
    NoSlot,
}

/// How far a call had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its frame was still queued and will not be written.
    NotWritten,
    /// The server may have seen it.
    Written,
    /// It was over already.
    Done,
}

/// How progress moves the deadline of a call.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From each word of progress on, so much time.
    pub step: Duration,
    /// But never beyond this.
    pub until: Instant,
}
