//! The in-flight calls of one connection: registered under an id and not yet completed. Plain data
//! behind one short lock; nothing here awaits.
//!
//! ```text
//!                  claim: the writer takes the frame       complete
//!   insert ──▶ Queued ─────────────────────────▶ Written ──────────▶ answered
//!                │                                  │
//!                │ abandon                          │ abandon
//!                ▼                                  ▼
//!             Unwanted                          Abandoned
//!                │ claim                            │ complete, or expire after the grace period
//!                ▼                                  ▼
//!             removed, never written             removed
//! ```
//!
//! `close` fails all calls that somebody waits for, and refuses new ones.
//!
//! A call holds its permits as long as it is in the table, so a caller that sends and hangs up
//! cannot pile up work. An abandoned call stays until the server answers or the grace period ends.
//! An unwanted call stays until the writer reaches its frame.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::call::{
    Answer, CallIdentity, CallPermits, CloseReason, Completion, DeadlineExtension, Delivery,
    RequestError, WriteState,
};
use super::call_notifications::{CallNotification, NotificationSender, Passed};
use super::live_calls::AttemptInfo;
use super::liveness::{Claim, OverdueCalls, StuckEvidence};
use super::tenants_seen::{TenantsSeen, UnansweredCalls, latest_tenants};
use crate::backend::queue::TenantPause;
use crate::common::ids::TenantId;
use crate::protocol::mcp::LogLevel;

#[derive(Default)]
pub struct InFlightCalls {
    pub(super) table: Mutex<InFlightTable>,
}

#[derive(Default)]
pub(super) struct InFlightTable {
    pub(super) calls: HashMap<u64, InFlightCall>,
    /// The ends of grace periods and the ids of abandoned calls, earliest first.
    abandoned: VecDeque<(Instant, u64)>,
    tenants: TenantsSeen,
    /// Calls whose grace period ended without an answer. The server may still work on them.
    unanswered: UnansweredCalls,
    overdue: OverdueCalls,
    /// The number of calls that the writer has claimed.
    claimed_count: u64,
    /// Under the same lock as the calls: a call is either inserted in time for `close` to fail it,
    /// or refused.
    closed: Option<CloseReason>,
    /// Set with `closed`: see [`InFlightCalls::tenants_at_close`].
    tenants_at_close: Vec<TenantId>,
}

/// One entry of the table. `claim` and `waiter` together are its state in the diagram.
pub(super) struct InFlightCall {
    pub(super) identity: CallIdentity,
    pub(super) deadline: Instant,
    pub(super) deadline_extension: Option<DeadlineExtension>,
    /// Set when the writer has claimed the frame.
    pub(super) claim: Option<Claim>,
    /// Whether the writer has dropped the frame, because the deadline had passed.
    pub(super) is_discarded: bool,
    /// `None` once the caller has gone.
    pub(super) waiter: Option<oneshot::Sender<Delivery>>,
    pub(super) listener: Option<NotificationSender>,
    /// Both are `None` for requests of the gateway itself.
    pub(super) permits: Option<CallPermits>,
    pub(super) attempt: Option<AttemptInfo>,
}

impl InFlightCalls {
    /// Adds a call. From here on its waiter gets exactly one delivery, unless it is abandoned.
    pub(super) fn insert(&self, id: u64, call: InFlightCall) -> Result<(), RequestError> {
        let mut table = self.table.lock();
        if let Some(reason) = &table.closed {
            return Err(RequestError::Closed { reason: reason.clone(), written: false });
        }
        let InFlightTable { calls, tenants, .. } = &mut *table;
        let Entry::Vacant(entry) = calls.entry(id) else {
            // Cannot happen with ids that never repeat.
            return Err(RequestError::IdentityMismatch);
        };
        if call.permits.is_some() {
            tenants.add(&call.identity.tenant);
        }
        entry.insert(call);
        Ok(())
    }

    /// Notes that a request of the gateway was made for this tenant, such as a subscription.
    pub fn note_tenant(&self, tenant: &TenantId) {
        self.table.lock().tenants.add(tenant);
    }

    /// Returns the deadline of call `id`, which progress may have extended.
    pub fn deadline(&self, id: u64) -> Option<Instant> {
        self.table.lock().calls.get(&id).map(|call| call.deadline)
    }

    /// Returns the way to pause the tenant of call `id`; `None` for requests of the gateway itself.
    pub fn tenant_pause(&self, id: u64) -> Option<TenantPause> {
        let table = self.table.lock();
        Some(table.calls.get(&id)?.permits.as_ref()?.slot.tenant_pause())
    }

    /// Passes a notification about call `id` to its listener.
    pub fn notify(&self, id: u64, notification: CallNotification) -> Passed {
        let mut table = self.table.lock();
        let InFlightTable { calls, overdue, .. } = &mut *table;
        let Some(call) = calls.get_mut(&id) else { return Passed::Unwanted };
        if matches!(notification, CallNotification::Progress(_)) {
            if let Some(DeadlineExtension { step, until }) = call.deadline_extension {
                call.deadline = call.deadline.max((Instant::now() + step).min(until));
            }
            if call.permits.is_some() && call.waiter.is_some() {
                overdue.note_sign();
            }
        }
        call.pass_on(notification)
    }

    /// Passes on a log message that names no call. It may even be about a call that has ended, or
    /// about a subscription. So the server must have worked for one tenant only, and must not be
    /// working on more than one call.
    pub fn log(&self, level: LogLevel, params: Bytes) -> Passed {
        let table = self.table.lock();
        let mut calls = table.calls.values().filter(|call| call.permits.is_some());
        match (&table.tenants, calls.next(), calls.next()) {
            (TenantsSeen::One(_), Some(call), None) if call.claim.is_some() => {
                call.log(level, params)
            }
            _ => Passed::Unwanted,
        }
    }

    /// Passes on a log message that came with the answer to call `id`, and so is about that call.
    pub fn log_of(&self, id: u64, level: LogLevel, params: Bytes) -> Passed {
        let table = self.table.lock();
        table.calls.get(&id).map_or(Passed::Unwanted, |call| call.log(level, params))
    }

    /// Marks the calls of a batch of frames as written. Drops frames whose caller has gone or whose
    /// deadline has passed. Returns the number of the last claimed call: the server may be working
    /// on any call up to it.
    pub fn claim<T>(
        &self,
        batch: &mut Vec<T>,
        id: impl Fn(&T) -> Option<u64>,
        now: Instant,
    ) -> u64 {
        // Dropped after the lock is released: their permits wake calls in the queue.
        let mut unwanted = vec![];
        let mut table = self.table.lock();
        batch.retain(|frame| id(frame).is_none_or(|id| table.claim(id, now, &mut unwanted)));
        table.claimed_count
    }

    /// Claims a single call; returns whether its frame may be written.
    pub fn claim_one(&self, id: u64, now: Instant) -> bool {
        let mut unwanted = vec![];
        let mut table = self.table.lock();
        table.claim(id, now, &mut unwanted)
    }

    /// Undoes [`InFlightCalls::claim`] for calls of which the server has not got a single byte.
    pub fn unclaim(&self, ids: impl Iterator<Item = u64>) {
        let mut table = self.table.lock();
        for id in ids {
            if let Some(call) = table.calls.get_mut(&id) {
                call.claim = None;
            }
        }
    }

    /// Removes call `id` and delivers its outcome to the caller.
    pub fn complete(&self, id: u64, outcome: Result<Answer, RequestError>) -> Completion {
        let mut table = self.table.lock();
        let Some(call) = table.calls.remove(&id) else { return Completion::NotInFlight };
        if call.permits.is_some() {
            table.overdue.note_sign();
        }
        drop(table);
        let delivery = Delivery { identity: call.identity, outcome };
        match call.waiter.map(|waiter| waiter.send(delivery)) {
            Some(Ok(())) => Completion::Delivered,
            Some(Err(_)) | None => Completion::Late,
        }
    }

    /// Notes an answer to a call whose grace period had ended.
    pub fn note_late_answer(&self) {
        let mut table = self.table.lock();
        table.unanswered.remove_one();
        table.overdue.note_sign();
    }

    /// Abandons a call, because its caller has gone. A written call stays until the answer or
    /// `grace_end`; a call whose frame `is_queued` stays until the writer reaches the frame.
    pub fn abandon(&self, id: u64, is_queued: bool, grace_end: Instant) -> WriteState {
        let mut table = self.table.lock();
        let Some(call) = table.calls.get_mut(&id) else { return WriteState::Completed };
        call.waiter = None;
        call.listener = None;
        if call.claim.is_some() {
            table.abandoned.push_back((grace_end, id));
            table.prune_abandoned();
            return WriteState::Written;
        }
        if !is_queued || call.is_discarded {
            let call = table.calls.remove(&id);
            // In this order: its permits wake calls in the queue.
            drop(table);
            drop(call);
        }
        WriteState::NotWritten
    }

    /// Removes abandoned calls whose grace period has ended. Returns whether this made a call
    /// overdue, and when the next grace period ends.
    pub fn expire(&self, now: Instant) -> (bool, Option<Instant>) {
        // Dropped after the lock is released: their permits wake calls in the queue.
        let mut expired = vec![];
        let mut table = self.table.lock();
        let mut is_overdue = false;
        while let Some(&(grace_end, id)) = table.abandoned.front() {
            if grace_end > now && table.calls.contains_key(&id) {
                return (is_overdue, Some(grace_end));
            }
            table.abandoned.pop_front();
            let Some(call) = table.calls.remove(&id) else { continue };
            if call.permits.is_some() {
                table.unanswered.add(&call.identity.tenant);
                // A call that was abandoned before its deadline says nothing about the server.
                if let Some(claim) = call.claim
                    && call.deadline <= now
                {
                    is_overdue = true;
                    table.overdue.add(claim, &call.identity.tenant, now);
                }
            }
            expired.push(call);
        }
        (is_overdue, None)
    }

    /// Returns evidence that the server is stuck: calls are overdue and no live call excuses it.
    /// Calls usually take up to `usual`.
    pub(crate) fn stuck_evidence(&self, usual: Duration) -> Option<StuckEvidence> {
        let table = self.table.lock();
        table.overdue.evidence(table.live(usual), usual)
    }

    /// Returns whether the server may be working on a live call before the one with this number.
    /// Many servers work on one call after the other.
    pub fn is_busy_before(&self, number: u64, usual: Duration) -> bool {
        self.table.lock().live(usual).any(|(claim, _)| claim.number < number)
    }

    /// Returns for how long no call has been written or has ended, and none has shown progress.
    /// `None` if the server has no calls.
    pub fn stalled_for(&self) -> Option<Duration> {
        let table = self.table.lock();
        let calls = table.calls.values().filter(|call| call.permits.is_some());
        let written = calls.filter_map(|call| call.claim).map(|claim| claim.at).max()?;
        Some(table.overdue.last_sign.map_or(written, |sign| sign.max(written)).elapsed())
    }

    /// Returns when the server last showed that it works on calls.
    pub fn last_sign(&self) -> Option<Instant> {
        self.table.lock().overdue.last_sign
    }

    /// Fails all calls with `reason`, and refuses later ones with it. The first reason stays.
    pub fn close(&self, reason: &CloseReason) {
        let mut table = self.table.lock();
        if table.closed.is_some() {
            return;
        }
        table.closed = Some(reason.clone());
        table.abandoned.clear();
        table.tenants_at_close = table.working_for();
        let calls = std::mem::take(&mut table.calls);
        drop(table);
        for call in calls.into_values() {
            let written = call.claim.is_some();
            let outcome = Err(RequestError::Closed { reason: reason.clone(), written });
            if let Some(waiter) = call.waiter {
                let _ = waiter.send(Delivery { identity: call.identity, outcome });
            }
        }
    }

    /// Returns the tenants whose calls the server may have worked on when the connection closed,
    /// those whose calls were written last first.
    pub fn tenants_at_close(&self) -> Vec<TenantId> {
        self.table.lock().tenants_at_close.clone()
    }

    /// Returns whether the server had no calls when the connection closed, and its last answer was
    /// so long ago.
    pub fn was_idle_for(&self, time: Duration) -> bool {
        let table = self.table.lock();
        let is_long_ago = table.overdue.last_sign.is_none_or(|sign| sign.elapsed() >= time);
        table.tenants_at_close.is_empty() && is_long_ago
    }

    pub fn close_reason(&self) -> Option<CloseReason> {
        self.table.lock().closed.clone()
    }
}

impl InFlightTable {
    /// Marks call `id` as written; returns whether its frame may be written.
    fn claim(&mut self, id: u64, now: Instant, unwanted: &mut Vec<InFlightCall>) -> bool {
        let Entry::Occupied(mut entry) = self.calls.entry(id) else { return false };
        let call = entry.get_mut();
        if call.waiter.is_none() && call.claim.is_none() {
            unwanted.push(entry.remove());
            return false;
        }
        if call.deadline <= now {
            call.is_discarded = true;
            return false;
        }
        self.claimed_count += 1;
        call.claim = Some(Claim { number: self.claimed_count, at: now });
        true
    }

    /// Iterates over the live calls: written less than `usual` ago, and somebody waits for them.
    fn live(&self, usual: Duration) -> impl Iterator<Item = (Claim, &TenantId)> {
        let now = Instant::now();
        self.calls.values().filter_map(move |call| {
            let is_live = call.permits.is_some() && call.waiter.is_some() && call.deadline > now;
            let claim = call.claim.filter(|claim| now.duration_since(claim.at) < usual)?;
            is_live.then_some((claim, &call.identity.tenant))
        })
    }

    /// Returns the tenants whose calls the server may be working on, the latest first.
    fn working_for(&self) -> Vec<TenantId> {
        let calls = self.calls.values().filter(|call| call.permits.is_some());
        let written = calls.filter_map(|call| Some((call.claim?.number, &call.identity.tenant)));
        latest_tenants(written, &self.unanswered)
    }

    /// Drops the entries of completed calls from `abandoned` once they outnumber the others, so
    /// that the list stays within a constant factor of the table.
    fn prune_abandoned(&mut self) {
        if self.abandoned.len() > 2 * self.calls.len() + 64 {
            self.abandoned.retain(|(_, id)| self.calls.contains_key(id));
        }
    }
}

impl InFlightCall {
    fn log(&self, level: LogLevel, params: Bytes) -> Passed {
        match &self.listener {
            Some(listener) if listener.wants(level) => self.pass_on(CallNotification::Log(params)),
            _ => Passed::Unwanted,
        }
    }

    fn pass_on(&self, notification: CallNotification) -> Passed {
        match &self.listener {
            Some(listener) => listener.send(notification),
            None => Passed::Unwanted,
        }
    }
}

#[cfg(test)]
#[path = "tests/in_flight.rs"]
mod tests;
