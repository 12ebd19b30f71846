//! Batches: many calls in one request, with dependencies and references to earlier results.
//!
//! - [`accepted`]: batches that are answered asynchronously
//! - [`request`]: reads and checks the request; nothing runs before all of it is right
//! - `references`: puts parts of results into arguments
//! - `graph`: which call waits for which
//! - [`run`]: starts each call when its turn has come
//! - `item`: makes one call, as if it had come alone; with a key, `kept`
//! - `limited`: waits for the tenant's own limits
//! - [`outcome`]: how a call ended, written as JSON

pub mod accepted;
mod graph;
mod item;
mod kept;
mod limited;
pub mod outcome;
mod references;
pub mod request;
pub mod run;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::Instant;

use self::accepted::Stop;
use self::limited::LimitWait;
use self::outcome::{HeldBytes, ItemOutcome, Problem};
use self::request::Batch;
use super::{Calls, Details, IdempotencyKey, OutcomeKind, Refusal};
use crate::common::byte_budget::TenantBytes;
use crate::common::ids::CallId;
use crate::gateway::{CallError, Caller};

/// A batch, and the state that all its calls share.
pub struct RunningBatch<R> {
    calls: Calls,
    rights: R,
    pub batch: Batch,
    pub options: Options,
    deadline: Instant,
    /// The results that are held for references and for the answer.
    held: Arc<HeldBytes>,
    limit_wait: LimitWait,
    /// The batch was charged one call before it was read. The first call takes that.
    is_paid: AtomicBool,
    /// Only for an asynchronous batch.
    stop: Option<Stop>,
    /// Counts the results of an asynchronous batch; those of others are unsent bytes.
    results: Option<Arc<TenantBytes>>,
}

/// The part of a request that all its calls share.
pub struct Options {
    /// Each call's own key is made of it.
    pub key: Option<IdempotencyKey>,
    /// The timeout in them is not used.
    pub details: Details,
    /// Give a tool's own failure the status 422.
    pub tool_errors_fail: bool,
    /// The longest wait for a call that an earlier request has begun.
    pub wait: Option<Duration>,
}

/// Says on whose behalf a batch runs. Asked before each call: rights may change meanwhile.
pub trait Rights: Send + Sync {
    fn caller(&self) -> impl Future<Output = Result<Caller, Problem>> + Send;
}

/// The reason why a call of a batch has no result.
#[derive(Debug)]
pub enum ItemError {
    Call(CallError),
    Kept(Refusal),
    /// The call was not made, because of another one.
    DependencyFailed(String),
    /// The arguments, once their references are replaced, are larger than a body may be.
    ArgumentsTooLarge {
        limit: usize,
    },
    /// The tool has run, and there is no room for its result.
    ResultTooLarge,
    /// The batch's caller may make no calls any more.
    NoRights(Problem),
}

/// Writes an error of a call of a batch as its caller sees it.
pub type RenderItemError = fn(ItemError, Option<CallId>) -> Problem;

impl From<CallError> for ItemError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<Refusal> for ItemError {
    fn from(refusal: Refusal) -> Self {
        Self::Kept(refusal)
    }
}

impl Options {
    /// Returns the status of the whole answer.
    pub fn status(&self, outcomes: &[ItemOutcome]) -> u16 {
        let is_ok = outcomes.iter().all(|outcome| outcome.kind() == OutcomeKind::Ok);
        if self.tool_errors_fail && !is_ok { 422 } else { 200 }
    }
}

impl<R: Rights> RunningBatch<R> {
    /// `arrived`: the time from which the batch's own timeout counts.
    pub fn new(calls: &Calls, rights: R, batch: Batch, options: Options, arrived: Instant) -> Self {
        Self {
            deadline: arrived + batch.timeout,
            held: HeldBytes::new(calls.0.batch.max_results),
            limit_wait: LimitWait::new(arrived),
            is_paid: AtomicBool::new(true),
            stop: None,
            results: None,
            calls: calls.clone(),
            rights,
            batch,
            options,
        }
    }

    /// Makes the batch one that nobody waits for. Half of the tenant's unsent bytes bound its
    /// results: its answer must find room.
    fn asynchronous(self, stop: Stop, results: Arc<TenantBytes>) -> Self {
        let inner = &self.calls.0;
        let unsent = inner.directory.budgets().unsent.tenant_max() / 2;
        let held = HeldBytes::new(inner.batch.max_results.min(unsent));
        Self { held, stop: Some(stop), results: Some(results), ..self }
    }

    /// Runs all calls, and tells `ended` of each, in the order in which they end. Dropping the
    /// future cancels the calls that run, except those with a key.
    pub async fn run(&self, ended: impl FnMut(usize, ItemOutcome)) {
        run::run(&self.batch, self, self.calls.0.max_body, ended).await;
    }
}
