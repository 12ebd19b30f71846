//! The identity and the outcome of a call on a connection.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::backend::stdio::process::ExitReason;
use crate::common::ids::{CallId, TenantId};

/// Identifies a call on one connection. The in-flight table and the caller each keep one, and the
/// two are compared before an answer is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallIdentity {
    pub tenant: TenantId,
    pub call: CallId,
    /// The generation of the instance.
    pub generation: u64,
}

impl CallIdentity {
    /// Makes the identity of a request of the gateway itself.
    pub fn gateway(generation: u64) -> Self {
        Self { tenant: TenantId::gateway(), call: CallId::generate(), generation }
    }
}

/// Why a connection was closed. The sentence may be shown to callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The process exited.
    Exited(ExitReason),
    /// The server is out of reach or gave no sign of life, for this reason.
    Lost(String),
    /// The server broke the protocol beyond repair.
    Protocol(String),
    /// The gateway stopped the server.
    Stopped,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(exit) => exit.fmt(f),
            Self::Lost(reason) | Self::Protocol(reason) => f.write_str(reason),
            Self::Stopped => f.write_str("the gateway stopped it"),
        }
    }
}

/// The answer of a server: the `result` or the `error` member of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Result(Bytes),
    Error(Bytes),
}

/// Why a request got no answer. `written` says whether the server may have received the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The connection was closed.
    Closed { reason: CloseReason, written: bool },
    /// The deadline passed.
    Expired { written: bool },
    /// The answer was over the size limit.
    TooLarge,
    /// Too many frames wait to be written.
    Busy,
    /// The answer belonged to another call. It was withheld and the connection closed.
    IdentityMismatch,
    /// The server answered with an HTTP status instead.
    Http { status: u16, retry_after: Option<Duration> },
    /// The request cannot be expressed on this transport, for this reason.
    Unsendable(String),
    /// The server was not reached, or knew at once that it could not take the call. Callers see
    /// `reason`, the operator sees `detail`.
    Unreached { reason: Cow<'static, str>, detail: String },
}

/// An outcome on its way to the caller, with the identity that the in-flight table has for it.
#[derive(Debug)]
pub struct Delivery {
    pub identity: CallIdentity,
    pub outcome: Result<Answer, RequestError>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Completion {
    Delivered,
    /// The caller has gone.
    Late,
    /// No in-flight call has this id.
    NotInFlight,
}

/// How far a call had come when it was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteState {
    /// Its frame will not be written.
    NotWritten,
    /// The server may have received it.
    Written,
    Completed,
}

/// Lets progress extend the deadline of a call: by `step` from each notification on, up to `until`.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineExtension {
    pub step: Duration,
    pub until: Instant,
}
