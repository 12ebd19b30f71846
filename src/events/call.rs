//! The record of a call that has ended: for the call log, and to be asked for by its id. Never
//! holds arguments or results.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::explanation::Explanation;
use super::span::TracedRequest;
use crate::common::ids::{CallId, TenantId};
use crate::common::keys::KeyId;

/// Longer names of servers and tools are cut: a caller may invent any.
const NAME_LEN_MAX: usize = 128;
/// The memory of a record beside the record itself and its texts: places in queues, and
/// allocations, which are rounded up.
const OVERHEAD: usize = 384;

/// The caller's own names for a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTags {
    pub request_id: Option<String>,
    pub labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Ok,
    /// The tool ran, and reported a failure of its own.
    ToolError,
    /// No server was given the call.
    Refused,
    /// A server was given the call, and no result came back.
    Failed,
    /// The caller went away first.
    Cancelled,
}

#[derive(Debug)]
pub struct EndedCall {
    pub id: CallId,
    pub tenant: TenantId,
    /// The key that the caller used, if any.
    pub key: Option<KeyId>,
    pub tags: CallTags,
    /// As asked for: it need not exist.
    pub server: Box<str>,
    /// The tool or the method, as asked for.
    pub target: Box<str>,
    pub arrived: Timestamp,
    pub took: Duration,
    pub outcome: CallOutcome,
    /// The error code, unless a result came back.
    pub code: Option<&'static str>,
    /// `yes`, `no` or `unknown`.
    pub executed: &'static str,
    /// Whether the tenant's own limits refused the call.
    pub is_own_limit: bool,
    pub attempts: u32,
    /// From the arrival until the last attempt was dispatched; of a call that never was, the whole
    /// time.
    pub queue: Duration,
    /// From there to the end.
    pub backend: Duration,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub explanation: Explanation,
    /// The code of the server's JSON-RPC error, if that is how it answered.
    pub backend_code: Option<i64>,
    pub traced: Option<Box<TracedRequest>>,
}

impl CallOutcome {
    /// Returns the name that callers and operators see.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::ToolError => "tool_error",
            Self::Refused | Self::Failed => "error",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether a result came back.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Ok | Self::ToolError)
    }
}

impl EndedCall {
    pub fn ended(&self) -> Timestamp {
        self.arrived.checked_add(self.took).unwrap_or(Timestamp::MAX)
    }

    /// Returns the memory that the record takes, roughly and never too little.
    pub(super) fn cost(&self) -> usize {
        let CallTags { request_id, labels } = &self.tags;
        let texts: usize = labels.iter().map(String::capacity).sum();
        let labels = texts + labels.capacity() * size_of::<String>();
        let request_id = request_id.as_ref().map_or(0, String::capacity);
        size_of::<Self>()
            + OVERHEAD
            + self.explanation.heap()
            + self.server.len()
            + self.target.len()
            + request_id
            + labels
            + self.traced.as_ref().map_or(0, |traced| traced.cost())
    }
}

/// A traced request that is no call: the gateway has answered it itself.
#[derive(Debug)]
pub struct EndedRequest {
    pub tenant: TenantId,
    pub traced: Box<TracedRequest>,
    pub arrived: Timestamp,
    pub took: Duration,
    /// The code of the JSON-RPC error, if it was answered with one.
    pub code: Option<i64>,
}

/// Returns the time that was so long ago.
pub fn before_now(took: Duration) -> Timestamp {
    let took = SignedDuration::try_from(took).unwrap_or(SignedDuration::MAX);
    Timestamp::now().checked_sub(took).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns a name that a caller has given, cut to a bounded length.
pub fn bounded_name(name: &str) -> Box<str> {
    name[..name.floor_char_boundary(NAME_LEN_MAX)].into()
}
