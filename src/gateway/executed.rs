//! Whether the tool of a failed call has run.

use std::time::Duration;

/// Says whether the tool has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The server never received the call, or refused it.
    No,
    Unknown,
}

impl Executed {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }

    pub(super) fn if_written(written: bool) -> Self {
        if written { Self::Unknown } else { Self::No }
    }

    /// Reads an HTTP status. Most 3xx and 4xx are refusals. Those that may come after the work or
    /// in the middle of it are not: 301 and 302 are often sent as 303 is, to show a result. 503 is
    /// a refusal if it says when to come back. All others prove nothing: proxies send them when the
    /// server behind them does not answer.
    pub(super) fn by_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            301..=303 | 408 | 409 | 499 => Self::Unknown,
            300..=499 => Self::No,
            503 if retry_after.is_some() => Self::No,
            _ => Self::Unknown,
        }
    }
}
