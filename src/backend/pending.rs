//! The calls of one connection that wait for an answer. Plain data behind one short lock: no channel to
//! poll, no await.
//!
//! ```text
//!            insert          claim (the writer takes the frame)
//!  (nothing) ──────▶ Queued ─────────────▶ Written ──complete──▶ (answered)
//!                      │                     │
//!                      │ abandon             │ abandon
//!                      ▼                     ▼
//!                  (removed)             Abandoned ──complete or expire──▶ (removed)
//! ```
//!
//! An abandoned call keeps its slot on the server until the server is done with it, or a grace period
//! ends: a caller that sends and hangs up cannot pile up work.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

pub use super::answer::{
    Answer, Completion, Delivery, End, Failure, Owner, Patience, Progress, Refused,
};
use super::answering::Answering;
use super::during::{Event, Listener};
use super::queue::Permit;
use crate::ids::TenantId;
use crate::mcp::LogLevel;

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
    /// When the last of them was written.
    overdue: Option<Instant>,
    answering: Answering,
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
    written: Option<Instant>,
    /// What the server had given of [`Answering`] by then.
    signs: u64,
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
        let slot =
            Slot { owner, deadline, patience, written: None, signs: 0, waiter, listener, permit };
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
    /// are those whose caller has gone or whose deadline has passed.
    pub fn claim<T>(&self, batch: &mut Vec<T>, id: impl Fn(&T) -> Option<u64>, now: Instant) {
        let mut table = self.table.lock();
        let signs = table.answering.signs();
        batch.retain(|frame| {
            let Some(id) = id(frame) else { return true };
            match table.slots.get_mut(&id) {
                Some(slot) if slot.deadline > now => {
                    slot.written = Some(now);
                    slot.signs = signs;
                    true
                }
                _ => false,
            }
        });
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
    /// until the answer or until `grace_end`.
    pub fn abandon(&self, id: u64, grace_end: Instant) -> Progress {
        let mut table = self.table.lock();
        let Some(slot) = table.slots.get_mut(&id) else { return Progress::Done };
        if slot.written.is_none() {
            let slot = table.slots.remove(&id);
            // Its permit goes to the next in line, which takes its time.
            drop(table);
            drop(slot);
            return Progress::NotWritten;
        }
        slot.waiter = None;
        slot.listener = None;
        table.abandoned.push_back((grace_end, id));
        table.forget_answered();
        Progress::Written
    }

    /// Frees the slots of abandoned calls whose grace has ended; tells how many there were, and when the next one does.
    pub fn expire(&self, now: Instant) -> (usize, Option<Instant>) {
        // Dropped after the lock is given back: their permits go to the next in line.
        let mut expired = vec![];
        let mut table = self.table.lock();
        let mut unanswered = 0;
        while let Some(&(grace_end, id)) = table.abandoned.front() {
            if grace_end > now && table.slots.contains_key(&id) {
                return (unanswered, Some(grace_end));
            }
            table.abandoned.pop_front();
            let Some(slot) = table.slots.remove(&id) else { continue };
            if slot.permit.is_some() {
                unanswered += 1;
                table.unanswered += 1;
                table.overdue = slot.written;
                if let Some(written) = slot.written {
                    table.answering.note_overdue(written, slot.signs);
                }
            }
            expired.push(slot);
        }
        (unanswered, None)
    }

    /// Whether the server may be at a call that somebody still waits for, for at most `usual` so far, and that came before the
    /// last one that it has left unanswered. A server that does one after the other has not got to that one yet.
    pub fn is_busy_since_before_overdue(&self, usual: Duration) -> bool {
        let table = self.table.lock();
        table.overdue.is_some_and(|overdue| table.has_live_before(overdue, usual))
    }

    /// The same for a time: whether there is one that was written earlier.
    pub fn is_busy_since_before(&self, time: Instant, usual: Duration) -> bool {
        self.table.lock().has_live_before(time, usual)
    }

    /// When the first of the calls was written that are overdue, if the server has answered none since then, and cannot
    /// be at an earlier one that somebody still waits for, for at most `usual` so far.
    pub fn stuck_since(&self, usual: Duration) -> Option<Instant> {
        let table = self.table.lock();
        table.answering.stuck_since().filter(|since| !table.has_live_before(*since, usual))
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
    fn has_live_before(&self, time: Instant, usual: Duration) -> bool {
        let now = Instant::now();
        self.slots.values().any(|slot| {
            let is_live = slot.permit.is_some() && slot.waiter.is_some() && slot.deadline > now;
            let is_earlier = |written| written < time && now.duration_since(written) < usual;
            is_live && slot.written.is_some_and(is_earlier)
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
#[path = "pending_tests.rs"]
mod tests;
