//! Answers questions about kept calls: their state, their outcome, a list; and cancels them.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::follow::{LOOK_FIRST, head_of};
use super::key::{Fingerprint, Scope};
use super::keyed::{LOOK_MAX, cancelled_before};
use super::open_calls::{Answer, Ticket};
use super::outcome::{CANCELLED, Head, OUTCOME_UNKNOWN, Outcome, OutcomeKind, Ran};
use super::request::Details;
use super::{Calls, Refusal};
use crate::cluster::Peer;
use crate::common::ids::CallId;
use crate::common::limit_use::LimitUse;
use crate::store::{CallQuery, CallState, CallbackState, CallbackStatus, StoreError, StoredCall};
use crate::tenants::Tenant;

/// How long a request waits for the reads of its tenant's other ones.
const TURN_WAIT: Duration = Duration::from_secs(1);
/// How long a cancel waits until it has taken effect.
const CANCEL_WAIT: Duration = Duration::from_secs(3);

/// The kind of a record that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Call,
    /// An asynchronous batch.
    Batch,
}

/// A record as its tenant sees it. Times are in milliseconds since 1970.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallView {
    pub id: String,
    pub server: String,
    pub tool: String,
    /// `accepted`, `running` or `ended`.
    pub state: &'static str,
    /// The place among the tenant's calls that wait to begin, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    #[schemars(with = "Option<jiff::Timestamp>")]
    pub created: i64,
    #[schemars(with = "Option<jiff::Timestamp>")]
    pub begun: Option<i64>,
    #[schemars(with = "Option<jiff::Timestamp>")]
    pub ended: Option<i64>,
    #[schemars(with = "Option<jiff::Timestamp>")]
    pub expires: i64,
    pub outcome: Option<OutcomeKind>,
    pub executed: Option<Ran>,
    pub code: Option<String>,
    pub attempts: Option<u32>,
    pub labels: Vec<String>,
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback: Option<CallbackView>,
}

/// The progress of a call's callback.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct CallbackView {
    /// `waiting` for the call's end, `pending`, `delivered` or `given_up`.
    pub state: &'static str,
    pub attempts: u32,
    /// Why the last attempt has failed.
    pub problem: Option<String>,
}

/// Asks for a tenant's calls, the latest first.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub label: Option<String>,
    /// All, if empty.
    pub states: Vec<CallState>,
    pub before: Option<CallId>,
    pub limit: u32,
}

/// The result of waiting for a call by its id.
pub enum Polled {
    Ended(Arc<Outcome>),
    Open(Box<CallView>),
}

/// The result of cancelling a call.
pub enum Cancelled {
    /// The call has ended, now or before.
    Ended(Box<CallView>),
    /// The call is another gateway's to cancel.
    RunsAt(Peer),
}

impl Calls {
    pub async fn view(
        &self,
        tenant: &Tenant,
        kind: RecordKind,
        id: CallId,
    ) -> Result<CallView, Refusal> {
        let record = self.record(tenant, kind, id).await?;
        let has_callback = Details::stored(&record.request).callback.is_some();
        let mut view = self.view_of(record);
        if has_callback {
            let status = self.0.store.callback_status(id).await;
            let status = status.map_err(|_| Refusal::StoreUnavailable { executed: Ran::No })?;
            view.callback = status.map(CallbackView::of);
        }
        Ok(view)
    }

    /// Returns a call's outcome, or its state if it has not ended by `deadline`.
    pub async fn result(
        &self,
        tenant: &Tenant,
        kind: RecordKind,
        id: CallId,
        deadline: Instant,
    ) -> Result<Polled, Refusal> {
        let mut pause = LOOK_FIRST;
        loop {
            let record = self.record(tenant, kind, id).await?;
            if matches!(record.state, CallState::Ended | CallState::Abandoned) {
                if let Some(open) = self.0.open.by_id(id) {
                    // Until its key can be used again, if it can.
                    let _ = timeout(LOOK_MAX, open.over()).await;
                }
                let head = head_of(&record);
                return Ok(Polled::Ended(self.0.replay(&record, head).await.result?));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Polled::Open(Box::new(self.view_of(record))));
            }
            match self.0.open.by_id(id) {
                Some(open) => {
                    let is_over = timeout(left, open.over()).await.is_ok();
                    // The store may be away, and the record not be written for long.
                    sleep(if is_over { LOOK_FIRST } else { Duration::ZERO }).await;
                }
                None => sleep(pause.min(left)).await,
            }
            pause = (pause * 3 / 2).min(LOOK_MAX);
        }
    }

    /// Returns the outcome of the call that has this key, if there is one. No call is made.
    pub async fn made_before(
        &self,
        tenant: &Tenant,
        scope: Scope,
        fingerprint: Fingerprint,
        deadline: Instant,
    ) -> Result<Option<Answer>, Refusal> {
        if let Some(open) = self.0.open.by_scope(scope) {
            return Ticket::attached(open, fingerprint)?.outcome(deadline).await.map(Some);
        }
        let record = {
            let _turn = tenant.store_permits.acquire().await;
            self.0.store.call_of_scope(&scope.text()).await
        };
        let unknown = |_| Refusal::StoreUnavailable { executed: Ran::Unknown };
        let Some(record) = record.map_err(unknown)? else { return Ok(None) };
        if record.expires < self.0.clock.now() {
            return Ok(None);
        }
        if record.fingerprint != fingerprint.as_str() {
            return Err(Refusal::Mismatch);
        }
        match record.state {
            CallState::Accepted | CallState::Begun => Err(Refusal::StillRunning(record.id)),
            CallState::Ended | CallState::Abandoned => {
                let outcome = self.0.replay(&record, head_of(&record)).await.result?;
                Ok(Some(Answer { id: record.id, outcome, is_replay: true }))
            }
        }
    }

    /// Cancels a call. One that has ended stays as it is.
    pub async fn cancel(
        &self,
        tenant: &Tenant,
        kind: RecordKind,
        id: CallId,
    ) -> Result<Cancelled, Refusal> {
        let record = self.record(tenant, kind, id).await?;
        let is_open = matches!(record.state, CallState::Accepted | CallState::Begun);
        let here = self.0.open.by_id(id).filter(|_| is_open);
        // A batch that is accepted may run at its owner.
        let may_run = record.state == CallState::Begun || kind == RecordKind::Batch;
        if here.is_none()
            && is_open
            && may_run
            && let Some(peer) = self.runner(&record).await?
        {
            return Ok(Cancelled::RunsAt(peer));
        }
        match here {
            Some(open) if self.0.cancel_waiting(&open).await => {}
            Some(open) => {
                open.cancel.cancel();
                let _ = timeout(CANCEL_WAIT, open.over()).await;
            }
            None if record.state == CallState::Accepted => {
                // A batch that has begun has made calls.
                let head = match record.begun {
                    Some(_) => Head::without_answer(CANCELLED, Ran::Unknown),
                    None => cancelled_before(),
                };
                let (head, at) = (head.json(), self.0.clock.now());
                let cancelled = self.0.store.cancel_call(id, &head, at).await;
                cancelled.map_err(|_| Refusal::StoreUnavailable { executed: Ran::Unknown })?;
            }
            None => {}
        }
        Ok(Cancelled::Ended(Box::new(self.view(tenant, kind, id).await?)))
    }

    /// Returns the gateway that runs a call, `None` if it is gone. One that has joined lately is
    /// known after a moment.
    async fn runner(&self, record: &StoredCall) -> Result<Option<Peer>, Refusal> {
        let (owners, until) = (&self.0.owners, Instant::now() + CANCEL_WAIT);
        loop {
            let peer = owners.peer(&record.owner);
            if peer.is_some() || *record.owner == *owners.me {
                return Ok(peer);
            }
            let is_alive = owners.is_alive(&record.owner).await;
            match is_alive.map_err(|_| Refusal::StoreUnavailable { executed: Ran::No })? {
                false => return Ok(None),
                true if Instant::now() > until => return Err(Refusal::InProgress(record.id)),
                true => sleep(LOOK_MAX).await,
            }
        }
    }

    /// Returns calls without their results, the latest first.
    pub async fn list(
        &self,
        tenant: &Tenant,
        query: ListQuery,
    ) -> Result<Vec<CallView>, StoreError> {
        let query = CallQuery {
            tenant: tenant.id.clone(),
            label: query.label,
            states: query.states,
            before: query.before,
            limit: query.limit,
        };
        let records = self.0.store.calls(&query).await?;
        Ok(records.into_iter().map(|record| self.view_of(record)).collect())
    }

    async fn record(
        &self,
        tenant: &Tenant,
        kind: RecordKind,
        id: CallId,
    ) -> Result<StoredCall, Refusal> {
        // One read of a tenant at a time: others must find a connection.
        let turn = timeout(TURN_WAIT, tenant.store_permits.acquire()).await;
        let _turn =
            turn.map_err(|_| Refusal::TooManyWaiters(LimitUse::reached("store_requests", 1)))?;
        let record = self.0.store.call(&tenant.id, id).await;
        match record {
            Ok(Some(record))
                if record.expires >= self.0.clock.now()
                    && record.is_batch() == (kind == RecordKind::Batch) =>
            {
                Ok(record)
            }
            Ok(_) => Err(Refusal::NoSuchCall),
            Err(_) => Err(Refusal::StoreUnavailable { executed: Ran::No }),
        }
    }

    fn view_of(&self, record: StoredCall) -> CallView {
        let details = Details::stored(&record.request);
        let head = match record.state {
            CallState::Ended => head_of(&record),
            CallState::Abandoned => Some(Head::without_answer(OUTCOME_UNKNOWN, Ran::Unknown)),
            CallState::Accepted | CallState::Begun => None,
        };
        let here = self.0.open.by_id(record.id);
        CallView {
            id: record.id.to_string(),
            server: record.server.to_string(),
            tool: record.tool,
            state: match record.state {
                // A batch has begun, and stays accepted.
                CallState::Accepted if record.begun.is_none() => "accepted",
                CallState::Accepted | CallState::Begun => "running",
                CallState::Ended | CallState::Abandoned => "ended",
            },
            position: here.and_then(|open| open.account.accepted.position(record.id)),
            created: record.created,
            begun: record.begun,
            ended: record.ended,
            expires: record.expires,
            outcome: head.as_ref().map(|head| head.outcome),
            executed: head.as_ref().map(|head| head.executed),
            attempts: head.as_ref().map(|head| head.attempts),
            code: head.and_then(|head| head.code),
            labels: details.labels,
            request_id: details.request_id,
            callback: None,
        }
    }
}

impl CallbackView {
    fn of(status: CallbackStatus) -> Self {
        let state = match status.state {
            CallbackState::Waiting => "waiting",
            CallbackState::Due => "pending",
            CallbackState::Delivered => "delivered",
            CallbackState::GivenUp => "given_up",
        };
        Self { state, attempts: status.attempts, problem: status.problem }
    }
}

/// Returns the states in the store that a caller knows by this name.
pub fn states_named(name: &str) -> Option<Vec<CallState>> {
    Some(match name {
        "accepted" => vec![CallState::Accepted],
        "running" => vec![CallState::Begun],
        "ended" => vec![CallState::Ended, CallState::Abandoned],
        _ => return None,
    })
}
