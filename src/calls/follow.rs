//! Finds out what became of a call that has a record: replays its outcome, or waits for it,
//! wherever it runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::CallsInner;
use super::key::Fingerprint;
use super::keyed::{GRACE, LOOK_MAX, Refused, store_is_away};
use super::open_calls::{Identity, OpenCall, Settlement};
use super::outcome::{Head, Outcome, Ran};
use super::record::{Decision, Found, decide};
use super::refusal::Refusal;
use super::request::CallRequest;
use crate::backend::Backend;
use crate::config::Retry;
use crate::gateway::Caller;
use crate::store::{CallState, StoreError, StoredCall};

/// The first pause between looks at a call that another gateway runs.
pub(super) const LOOK_FIRST: Duration = Duration::from_millis(20);

impl CallsInner {
    /// Returns the record that has the key of a call.
    pub(super) async fn record_of_key(
        &self,
        open: &OpenCall,
        caller: &Caller,
    ) -> Result<Option<StoredCall>, StoreError> {
        let scope = open.scope.expect("a keyed call has a scope").text();
        let _turn = caller.tenant.store_permits.acquire().await;
        self.store.call_of_scope(&scope).await
    }

    /// Follows a record until its call has ended. Returns `Ok` if the call is to run here.
    pub(super) async fn follow(
        &self,
        open: &Arc<OpenCall>,
        caller: &Caller,
        request: &CallRequest,
        mut record: StoredCall,
    ) -> Result<(), Refused> {
        let mut pause = LOOK_FIRST;
        loop {
            let head = head_of(&record);
            let mut found = self.found(open, &record, &head).await.map_err(|_| store_is_away())?;
            if decide(Found { is_repeatable: true, ..found }) == Decision::Repeat {
                found.is_repeatable = self.is_repeatable(caller, request).await;
            }
            let identity = identity_of(&record);
            match decide(found) {
                Decision::RunAfresh => return self.delete(&record).await,
                Decision::Repeat => {
                    let age = self.clock.now() - record.ended.unwrap_or_default();
                    let left = GRACE.as_millis() as i64 - age;
                    sleep(Duration::from_millis(left.max(0).unsigned_abs())).await;
                    return self.delete(&record).await;
                }
                Decision::Mismatch => {
                    let refused = Settlement::refused(Refusal::Mismatch);
                    return Err(Settlement { identity: Some(identity), ..refused });
                }
                Decision::Replay => return Err(self.replay(&record, head).await),
                Decision::OutcomeUnknown => {
                    let result = Err(Refusal::OutcomeUnknown);
                    return Err(Settlement { identity: Some(identity), is_replay: true, result });
                }
                Decision::Abandon => {
                    let at = self.clock.now();
                    let given_up = self.store.abandon_call(record.id, &record.owner, at).await;
                    given_up.map_err(|_| store_is_away())?;
                }
                Decision::Wait => {
                    open.opened(identity.clone(), record.state);
                    if open.is_left() {
                        let refusal = Refusal::InProgress(record.id);
                        return Err(Settlement::refused(refusal));
                    }
                    if let Some(settlement) = self.wait_here(&record, pause).await {
                        return Err(settlement);
                    }
                    pause = (pause * 3 / 2).min(LOOK_MAX);
                }
            }
            // One read of a tenant at a time: others must find a connection.
            let turn = caller.tenant.store_permits.acquire().await;
            let read = self.store.call(&open.tenant, record.id).await;
            drop(turn);
            record = match read {
                Ok(Some(record)) => record,
                // Forgotten: it did not run.
                Ok(None) => return Ok(()),
                Err(_) => return Err(store_is_away()),
            };
        }
    }

    /// Waits for a call for a while, by its task if that is here.
    async fn wait_here(&self, record: &StoredCall, pause: Duration) -> Option<Settlement> {
        let Some(here) = self.open.by_id(record.id) else {
            sleep(pause).await;
            return None;
        };
        timeout(LOOK_MAX, here.over()).await.ok().flatten()
    }

    async fn found(
        &self,
        open: &OpenCall,
        record: &StoredCall,
        head: &Option<Head>,
    ) -> Result<Found, StoreError> {
        let is_open = matches!(record.state, CallState::Accepted | CallState::Begun);
        let is_mine = *record.owner == *self.owners.me;
        Ok(Found {
            state: record.state,
            executed: head.as_ref().map_or(Ran::Unknown, |head| head.executed),
            has_expired: record.expires < self.clock.now(),
            is_owner_alive: match is_open {
                // Its task is gone, and its record was not there or could not be written before.
                true if is_mine => self.open.by_id(record.id).is_some() || self.is_fresh(record),
                true => self.owners.is_alive(&record.owner).await?,
                false => false,
            },
            has_same_arguments: record.fingerprint == open.fingerprint.as_str(),
            is_repeatable: false,
        })
    }

    /// Returns whether a call of this gateway may have ended while its record was read.
    fn is_fresh(&self, record: &StoredCall) -> bool {
        let since = record.begun.unwrap_or(record.created);
        self.clock.now() - since < GRACE.as_millis() as i64
    }

    /// Returns whether a call may run twice: the tool and the operator allow it.
    async fn is_repeatable(&self, caller: &Caller, request: &CallRequest) -> bool {
        if request.server.config().retry != Retry::Safe {
            return false;
        }
        let until = |_: &Backend| Instant::now() + request.details.timeout();
        let ready = self.gateway.ready(caller, request.server.clone(), until).await;
        ready.is_ok_and(|(_, ready)| {
            ready.tools.get(&request.tool).is_some_and(|tool| tool.is_repeatable())
        })
    }

    async fn delete(&self, record: &StoredCall) -> Result<(), Refused> {
        let (me, now) = (&self.owners.me, self.clock.now());
        let deleted = self.store.delete_call(me, record.id, record.ended, now).await;
        deleted.map_err(|_| store_is_away())
    }

    /// Returns the outcome of an ended record.
    pub(super) async fn replay(&self, record: &StoredCall, head: Option<Head>) -> Settlement {
        let result = match head {
            None => Err(Refusal::OutcomeUnknown),
            Some(head) => match head.refusal() {
                Some(refusal) => Err(refusal),
                None => self.stored_outcome(record, head).await,
            },
        };
        Settlement { identity: Some(identity_of(record)), is_replay: true, result }
    }

    async fn stored_outcome(
        &self,
        record: &StoredCall,
        head: Head,
    ) -> Result<Arc<Outcome>, Refusal> {
        match self.vault.answer(record).await {
            Ok(Some(body)) => Ok(Arc::new(Outcome { head, body, held: None, retry_after: None })),
            Ok(None) => Err(Refusal::ResultGone),
            Err(_) => Err(Refusal::StoreUnavailable { executed: head.executed }),
        }
    }
}

pub(super) fn head_of(record: &StoredCall) -> Option<Head> {
    record.head.as_deref().and_then(|head| serde_json::from_str(head).ok())
}

pub(super) fn identity_of(record: &StoredCall) -> Identity {
    let fingerprint = Fingerprint::stored(record.fingerprint.clone());
    Identity { id: record.id, fingerprint, expires: record.expires }
}
