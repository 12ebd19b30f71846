//! The calls of one connection that wait for an answer. Plain data behind one short lock: no channel to
//! poll, no await.
//!
//! ```text
//!            insert          claim (the writer takes the frame)
//!  (nothing) ──────▶ Queued ─────────────▶ Written ──complete──▶ (answered)
//!                      │                     │
//!                      │ abandon             │ abandon
//!                      ▼                     ▼
//!              Unwanted ──claim──▶ (removed) Abandoned ──complete or expire──▶ (removed)
//! ```
//!
//! An abandoned call keeps its slot on the server until the server is done with it, or a grace period
//! ends: a caller that sends and hangs up cannot pile up work. Nor can it pile up frames that nobody reads: one that is not written yet
//! keeps its slot until the writer has come to its frame.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use super::answer::{
    Answer, Completion, Delivery, End, Failure, Owner, Patience, Progress, Refused,
};
use super::call_notifications::{Event, Listener};
use super::overdue::{Answering, Doubt, Written};
use crate::backend::queue::Permit;
use crate::common::ids::TenantId;
use crate::protocol::mcp::LogLevel;

/// The map itself.
#[derive(Debug, Default)]
pub struct Pending {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<u64, Slot>,
    /// Abandoned calls, the earliest end of grace first.
    abandoned: VecDeque<(Instant, u64)>,
    /// Whose calls there have been.
    callers: Callers,
    /// Calls whose grace ended without an answer: for all that is known, the server is still at them.
    unanswered: usize,
    answering: Answering,
    /// How many calls were given to the writer.
    written: u64,
    /// Under the same lock as the slots: a call is either registered in time to be failed by `close`,
    /// or refused.
    closed: Option<End>,
}

/// Whose calls a connection has carried.
#[derive(Debug, Default)]
enum Callers {
    #[default]
    None,
    One(TenantId),
    Many,
}

#[derive(Debug)]
struct Slot {
    owner: Owner,
    deadline: Instant,
    /// How progress moves the deadline, if it does.
    patience: Option<Patience>,
    /// When it was given to the writer, if it was.
    written: Option<Written>,
    /// Whether the writer has thrown its frame away instead.
    is_discarded: bool,
    /// `None` once abandoned.
    waiter: Option<oneshot::Sender<Delivery>>,
    /// Who hears what the server says meanwhile.
    listener: Option<Listener>,
    /// Freed with the slot; `None` for the gateway's own requests.
    permit: Option<Permit>,
}

impl Pending {
    /// Makes a slot. From here on the call gets exactly one delivery, unless it is abandoned.
    pub fn insert(
        &self,
        id: u64,
        owner: Owner,
        deadline: Instant,
        permit: Option<Permit>,
        waiter: oneshot::Sender<Delivery>,
    ) -> Result<(), Refused> {
        let mut table = self.table.lock();
        if let Some(end) = &table.closed {
            return Err(Refused::Closed(end.clone()));
        }
        if table.slots.contains_key(&id) {
            return Err(Refused::IdInUse);
        }
        if permit.is_some() {
            table.callers.add(&owner.tenant);
        }
        let waiter = Some(waiter);
        let (patience, listener) = (None, None);
        let (written, is_discarded) = (None, false);
        let slot =
            Slot { owner, deadline, patience, written, is_discarded, waiter, listener, permit };
        table.slots.insert(id, slot);
        Ok(())
    }

    /// From now on `listener` hears what the server says about call `id`.
    pub fn listen(&self, id: u64, listener: Listener) {
        if let Some(slot) = self.table.lock().slots.get_mut(&id) {
            slot.listener = Some(listener);
        }
    }

    /// From now on progress moves the deadline of call `id`.
    pub fn be_patient(&self, id: u64, patience: Patience) {
        if let Some(slot) = self.table.lock().slots.get_mut(&id) {
            slot.patience = Some(patience);
        }
    }

    /// When the answer to call `id` is no longer of use, as far as is known now.
    pub fn deadline(&self, id: u64) -> Option<Instant> {
        self.table.lock().slots.get(&id).map(|slot| slot.deadline)
    }

    /// Passes on what the server says about call `id`. Nobody hears of a call that is over.
    pub fn hear(&self, id: u64, event: Event) {
        let mut table = self.table.lock();
        let Table { slots, answering, .. } = &mut *table;
        let Some(slot) = slots.get_mut(&id) else { return };
        if matches!(event, Event::Progress(_)) {
            if let Some(Patience { step, until }) = slot.patience {
                slot.deadline = slot.deadline.max((Instant::now() + step).min(until));
            }
            if slot.permit.is_some() && slot.waiter.is_some() {
                answering.note_sign();
            }
        }
        if let Some(listener) = &slot.listener {
            listener.hear(event);
        }
    }

    /// Passes on a log line. It does not say which call it belongs to, not even whether that call is over. So
    /// it is heard only where a single call can be worked on, and no other tenant has called since the
    /// server was started.
    pub fn log(&self, level: LogLevel, params: Bytes) -> bool {
        let table = self.table.lock();
        let mut calls = table.slots.values().filter(|slot| slot.permit.is_some());
        match (&table.callers, calls.next(), calls.next()) {
            (Callers::One(_), Some(slot), None)
                if slot.written.is_some() && table.unanswered == 0 =>
            {
                let listener = slot.listener.as_ref().filter(|listener| listener.wants(level));
                listener.is_some_and(|listener| listener.hear(Event::Log(params)))
            }
            _ => false,
        }
    }

    /// Passes on a log line that came with the answer to call `id`, and so is about it.
    pub fn log_of(&self, id: u64, level: LogLevel, params: Bytes) -> bool {
        let table = self.table.lock();
        let listener = table.slots.get(&id).and_then(|slot| slot.listener.as_ref());
        listener.is_some_and(|it| it.wants(level) && it.hear(Event::Log(params)))
    }

    /// Asks for a batch of frames whether each may still be written, and marks those that may. Dropped
    /// are those whose caller has gone or whose deadline has passed. Gives the number of the last call among them: the server may be at
    /// any that came before it.
    pub fn claim<T>(
        &self,
        batch: &mut Vec<T>,
        id: impl Fn(&T) -> Option<u64>,
        now: Instant,
    ) -> u64 {
        // Dropped after the lock is given back: their permits go to the next in line.
        let mut unwanted = vec![];
        let mut table = self.table.lock();
        let Table { slots, written, .. } = &mut *table;
        batch.retain(|frame| {
            let Some(id) = id(frame) else { return true };
            let Entry::Occupied(mut slot) = slots.entry(id) else { return false };
            if slot.get().waiter.is_none() && slot.get().written.is_none() {
                unwanted.push(slot.remove());
                return false;
            }
            if slot.get().deadline <= now {
                slot.get_mut().is_discarded = true;
                return false;
            }
            *written += 1;
            slot.get_mut().written = Some(Written { number: *written, at: now });
            true
        });
        *written
    }

    /// Takes back that these were written: the server has not got a single byte of them.
    pub fn unclaim(&self, ids: impl Iterator<Item = u64>) {
        let mut table = self.table.lock();
        for id in ids {
            if let Some(slot) = table.slots.get_mut(&id) {
                slot.written = None;
            }
        }
    }

    /// Asks the same of a single request as [`Pending::claim`] does of many.
    pub fn claim_one(&self, id: u64, now: Instant) -> bool {
        let mut single = vec![id];
        self.claim(&mut single, |id| Some(*id), now);
        !single.is_empty()
    }

    /// Hands an outcome to whoever waits for `id`.
    pub fn complete(&self, id: u64, outcome: Result<Answer, Failure>) -> Completion {
        let slot = {
            let mut table = self.table.lock();
            let slot = table.slots.remove(&id);
            if slot.as_ref().is_some_and(|slot| slot.permit.is_some()) {
                table.answering.note_sign();
            }
            slot
        };
        let Some(slot) = slot else { return Completion::NoSlot };
        match slot.waiter.map(|waiter| waiter.send(Delivery { owner: slot.owner, outcome })) {
            Some(Ok(())) => Completion::Delivered,
            Some(Err(_)) | None => Completion::Late,
        }
    }

    /// An answer has come to a call that has no slot any more.
    pub fn answered_late(&self) {
        let mut table = self.table.lock();
        table.unanswered = table.unanswered.saturating_sub(1);
        table.answering.note_sign();
    }

    /// The caller no longer waits. Tells how far the call had come; if it was written, its slot stays
    /// until the answer or until `grace_end`; if its frame `is_queued`, until the writer has come to that.
    pub fn abandon(&self, id: u64, is_queued: bool, grace_end: Instant) -> Progress {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(&id) else { return Progress::Done };
        slot.waiter = None;
        slot.listener = None;
        if slot.written.is_none() {
            if !is_queued || slot.is_discarded {
                let slot = table.slots.remove(&id);
                // Its permit goes to the next in line, which takes its time.
                drop(table);
                drop(slot);
            }
            return Progress::NotWritten;
        }
        table.abandoned.push_back((grace_end, id));
        table.forget_answered();
        Progress::Written
    }

    /// Frees the slots of abandoned calls whose grace has ended; tells whether a call is overdue by that, and when the next
    /// one's ends.
    pub fn expire(&self, now: Instant) -> (bool, Option<Instant>) {
        // Dropped after the lock is given back: their permits go to the next in line.
        let mut expired = vec![];
        let mut table = self.table.lock();
        let mut is_overdue = false;
        while let Some(&(grace_end, id)) = table.abandoned.front() {
            if grace_end > now && table.slots.contains_key(&id) {
                return (is_overdue, Some(grace_end));
            }
            table.abandoned.pop_front();
            let Some(slot) = table.slots.remove(&id) else { continue };
            if slot.permit.is_some() {
                table.unanswered += 1;
            }
            if let (Some(_), Some(written)) = (&slot.permit, slot.written)
                && slot.deadline <= now
            {
                is_overdue = true;
                table.answering.note_overdue(written, &slot.owner.tenant, now);
            }
            expired.push(slot);
        }
        (is_overdue, None)
    }

    /// What speaks against the server, if it has left calls unanswered and there is none that it is to be left its time for.
    /// `usual` is what calls usually may take.
    pub(crate) fn doubt(&self, usual: Duration) -> Option<Doubt> {
        let table = self.table.lock();
        let overdue = table.answering.overdue()?;
        let is_excused = table
            .live(usual)
            .any(|(written, tenant)| overdue.is_excused_by(written, tenant, usual));
        (!is_excused).then(|| overdue.doubt())
    }

    /// Whether the server may be at a call that somebody waits for, for at most `usual` so far, and that came before the call
    /// with this number. Many servers do one after the other.
    pub fn is_busy_before(&self, number: u64, usual: Duration) -> bool {
        self.table.lock().live(usual).any(|(written, _)| written.number < number)
    }

    /// When the server last showed that it works on calls, if it has.
    pub fn sign(&self) -> Option<Instant> {
        self.table.lock().answering.sign()
    }

    /// Ends everything: all waiters are told why, and later ones are refused with the same reason. The
    /// first reason stays.
    pub fn close(&self, end: &End) {
        let slots = {
            let mut table = self.table.lock();
            if table.closed.is_some() {
                return;
            }
            table.closed = Some(end.clone());
            table.abandoned.clear();
            std::mem::take(&mut table.slots)
        };
        for slot in slots.into_values() {
            let outcome = Err(Failure::Ended { end: end.clone(), written: slot.written.is_some() });
            if let Some(waiter) = slot.waiter {
                let _ = waiter.send(Delivery { owner: slot.owner, outcome });
            }
        }
    }

    /// Why the connection ended, if it has.
    pub fn end(&self) -> Option<End> {
        self.table.lock().closed.clone()
    }

    /// Whether the server has nothing to do. What the gateway itself listens to is answered when it ends, if ever.
    pub fn is_idle(&self) -> bool {
        let is_listened_to = |slot: &Slot| slot.permit.is_none() && slot.listener.is_some();
        self.table.lock().slots.values().all(is_listened_to)
    }

    /// How many slots are taken, abandoned ones included.
    pub fn len(&self) -> usize {
        self.table.lock().slots.len()
    }

    /// Whether no slot is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Callers {
    fn add(&mut self, tenant: &TenantId) {
        match self {
            Self::None => *self = Self::One(tenant.clone()),
            Self::One(known) if known == tenant => {}
            Self::One(_) => *self = Self::Many,
            Self::Many => {}
        }
    }
}

impl Table {
    /// The calls that somebody waits for, for at most `usual` so far: when they were written, and whose they are.
    fn live(&self, usual: Duration) -> impl Iterator<Item = (Written, &TenantId)> {
        let now = Instant::now();
        self.slots.values().filter_map(move |slot| {
            let is_live = slot.permit.is_some() && slot.waiter.is_some() && slot.deadline > now;
            let written = slot.written.filter(|it| now.duration_since(it.at) < usual)?;
            is_live.then_some((written, &slot.owner.tenant))
        })
    }

    /// Keeps the list of abandoned calls within a constant of the slots, however fast callers come and
    /// go: entries answered since then are dropped once they outnumber the rest.
    fn forget_answered(&mut self) {
        if self.abandoned.len() > 2 * self.slots.len() + 64 {
            self.abandoned.retain(|(_, id)| self.slots.contains_key(id));
        }
    }
}

#[cfg(test)]
#[path = "tests/in_flight.rs"]
mod tests;
