//! Records of calls: those with an idempotency key, and those answered asynchronously.
//!
//! - `batch`: writes many transitions in one transaction
//! - `find`: reads records
//! - `takeover`: calls of gateways that are gone
//! - `callbacks`: callbacks of calls, and who delivers them
//! - `results`: long results, beside their records
//! - `sweep`: expiry and eviction, in small steps

mod batch;
mod callbacks;
mod find;
mod results;
mod sweep;
mod takeover;

use std::sync::Arc;

use super::open::DatabaseKind;
use super::{Result, StoreError};
use crate::common::ids::{CallId, ServerId, TenantId};

pub use self::batch::{BegunCall, CallBatch, CallConnection, Written};
pub use self::callbacks::{CallbackState, CallbackStatus, NewCallback, TakenCallback};
pub use self::find::CallQuery;
pub use self::sweep::{CallTotal, Evicted};

/// The state of a record, by its number in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallState {
    /// Waits for its turn. No server has seen the call.
    Accepted = 0,
    /// A server may have seen the call.
    Begun = 1,
    Ended = 2,
    /// Begun by a gateway that is gone: nobody knows how it ended.
    Abandoned = 3,
}

impl CallState {
    fn of(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::Accepted,
            1 => Self::Begun,
            2 => Self::Ended,
            3 => Self::Abandoned,
            _ => return Err(StoreError::Corrupt(format!("a call is in the state {number}"))),
        })
    }
}

/// A record that is not in the store yet.
#[derive(Clone, Debug)]
pub struct NewCall {
    pub id: CallId,
    pub tenant: TenantId,
    /// At most one record has it.
    pub scope: Option<String>,
    pub fingerprint: String,
    pub server: ServerId,
    pub tool: String,
    pub state: CallState,
    /// The gateway that has the call.
    pub owner: Arc<str>,
    /// JSON.
    pub request: String,
    /// For calls that another gateway may begin.
    pub arguments: Option<String>,
    pub labels: Vec<String>,
    pub callback: Option<NewCallback>,
    pub created: i64,
    pub expires: i64,
}

impl NewCall {
    /// Returns when the call began, if it begins at once.
    fn begun(&self) -> Option<i64> {
        (self.state != CallState::Accepted).then_some(self.created)
    }
}

/// The end of a call.
#[derive(Clone, Debug)]
pub struct EndedCall {
    pub id: CallId,
    pub tenant: TenantId,
    pub owner: Arc<str>,
    pub at: i64,
    /// JSON.
    pub head: String,
    /// The answer's bytes, unless they are in parts.
    pub result: Option<String>,
    /// The bytes that count for the tenant.
    pub result_len: i64,
    pub parts: i64,
    /// Lets the key be used again.
    pub frees_key: bool,
    pub has_callback: bool,
}

/// A record, without its arguments.
#[derive(Clone, Debug)]
pub struct StoredCall {
    pub id: CallId,
    pub fingerprint: String,
    pub server: ServerId,
    pub tool: String,
    pub state: CallState,
    pub owner: String,
    pub request: String,
    pub created: i64,
    pub begun: Option<i64>,
    pub ended: Option<i64>,
    pub expires: i64,
    pub head: Option<String>,
    pub result: Option<String>,
    pub parts: i64,
}

impl StoredCall {
    /// Returns whether this is an asynchronous batch, which names no tool.
    pub fn is_batch(&self) -> bool {
        self.tool.is_empty()
    }
}

/// An accepted call whose gateway is gone, now this one's.
#[derive(Clone, Debug)]
pub struct ClaimedCall {
    pub id: CallId,
    pub tenant: TenantId,
    pub fingerprint: String,
    pub server: String,
    pub tool: String,
    pub request: String,
    pub arguments: String,
    /// When a batch began, if it did.
    pub begun: Option<i64>,
    pub expires: i64,
}

impl DatabaseKind {
    /// Returns the source of rows that are a JSON array in the first parameter: each row's `value`
    /// is an array or a text.
    fn json_rows(self) -> &'static str {
        match self {
            Self::Sqlite => "(SELECT value FROM json_each($1)) AS batch",
            Self::Postgres => "(SELECT value FROM json_array_elements(CAST($1 AS JSON))) AS batch",
        }
    }

    /// Returns the ids that are a JSON array of texts in the first parameter.
    pub(super) fn json_texts(self) -> &'static str {
        match self {
            Self::Sqlite => "(SELECT value FROM json_each($1))",
            Self::Postgres => "(SELECT value FROM json_array_elements_text(CAST($1 AS JSON)))",
        }
    }
}

fn json(rows: &impl serde::Serialize) -> String {
    serde_json::to_string(rows).expect("rows are plain data")
}

fn call_id(text: &str) -> Result<CallId> {
    CallId::parse(text).ok_or_else(|| StoreError::Corrupt(format!("`{text}` is no id of a call")))
}

/// Returns the part of the counters that a gateway writes.
fn shard_of(owner: &str) -> i64 {
    const SHARDS: u64 = 16;
    let hash = owner.bytes().fold(0_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(byte));
    (hash % SHARDS).cast_signed()
}
