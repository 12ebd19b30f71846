//! Gives free slots to waiting calls, and keeps the time during which calls wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::fair_shares::Share;
use super::round_robin::{Offer, RoundRobin};
use super::slots::SlotKind;
use super::{Grant, Queue};

/// The most that a call is charged for having passed the gate.
const GATE_CHARGE_MAX: Duration = Duration::from_secs(10);

/// How much later than the other queues of a gate a queue tries that has just had a call through.
/// Timers count in milliseconds, and those of one millisecond fire in the order they were set.
const AFTER_OTHERS: Duration = Duration::from_millis(2);

/// The calls that wait, and what they wait for.
#[derive(Default)]
pub(super) struct Backlog {
    pub(super) round_robin: RoundRobin,
    /// Since when a call has waited for a slot.
    pub(super) contended_since: Option<Instant>,
    /// Whether an operator has paused the server: nobody gets a slot.
    is_held: bool,
    /// Until when nobody gets a slot.
    paused_until: Option<Instant>,
    /// The one tenant that gets no slot for now. A second one makes it a pause for all.
    refused: Option<Refused>,
    /// The task that dispatches when the gate opens or a pause ends, while a call waits for that.
    retry_timer: Option<AbortOnDropHandle<()>>,
    /// When that task runs next.
    retry_at: Option<Instant>,
}

/// A tenant of which the server has refused a call.
#[derive(Clone, Copy)]
struct Refused {
    /// The number of its share.
    number: u32,
    until: Instant,
}

/// Pauses the calls of one tenant, on behalf of a call that the server has refused.
pub struct TenantPause {
    pub(super) queue: Arc<Queue>,
    pub(super) share: Arc<Share>,
}

impl TenantPause {
    /// Gives the tenant no slots until then. If another tenant's pause has not ended, nobody gets
    /// any: one tenant's arguments may be to blame for a refusal, two tenants' are not. A pause is
    /// never shortened.
    pub fn pause_until(&self, until: Instant) {
        let (queue, number) = (&self.queue, self.share.number);
        let mut backlog = queue.backlog.lock();
        let backlog = &mut *backlog;
        queue.end_pauses(backlog);
        match &mut backlog.refused {
            Some(refused) if refused.number != number => {
                backlog.paused_until = backlog.paused_until.max(Some(until));
            }
            Some(refused) => refused.until = refused.until.max(until),
            none => {
                *none = Some(Refused { number, until });
                backlog.round_robin.hold_back(Some(number));
            }
        }
        queue.slots.pause();
        queue.dispatch(backlog);
    }
}

impl Queue {
    /// Changes the waiting calls, then gives free slots to those that may have them.
    pub(super) fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut RoundRobin) -> T) -> T {
        let mut backlog = self.backlog.lock();
        let result = change(&mut backlog.round_robin);
        self.dispatch(&mut backlog);
        result
    }

    /// Charges a tenant for the time during which its call held a slot and somebody waited.
    pub(super) fn charge(self: &Arc<Self>, share: &Share, grant: Grant) {
        self.shares.note_use(share);
        let mut backlog = self.backlog.lock();
        let took = self.contended_until_now(&backlog).saturating_sub(grant.contended);
        let took = Duration::from_nanos(took).max(grant.min_charge);
        backlog.round_robin.charge(share, grant.weight, grant.charged, took);
        self.dispatch(&mut backlog);
    }

    fn dispatch(self: &Arc<Self>, backlog: &mut Backlog) {
        let retry_at = self.give_slots(backlog);
        if let Some(at) = retry_at {
            self.set_retry_timer(backlog, at);
        }
        self.note_contention(backlog);
    }

    /// Gives free slots to waiting calls. Returns when to try again, if calls wait only for the
    /// gate or for the end of a pause.
    fn give_slots(&self, backlog: &mut Backlog) -> Option<Instant> {
        self.end_pauses(backlog);
        let is_held_back = backlog.round_robin.holds_back_calls();
        let refused_until = backlog.refused.filter(|_| is_held_back).map(|it| it.until);
        let retry_at = self.give_slots_now(backlog);
        retry_at.into_iter().chain(refused_until).min()
    }

    /// Gives free slots to the waiting calls of tenants that are not held back.
    fn give_slots_now(&self, backlog: &mut Backlog) -> Option<Instant> {
        if backlog.round_robin.is_empty() || backlog.is_held {
            return None;
        }
        if let Some(until) = backlog.paused_until {
            return Some(until);
        }
        let contended = self.contended_until_now(backlog);
        let min_charge = self.min_charge();
        let mut has_given = false;
        while let Some(offer) = self.next_offer(&backlog.round_robin) {
            if let Some(gate) = &self.gate {
                // Before the gate is asked: a pass cannot be given back.
                backlog.round_robin.next_tenant(offer)?;
                if let Err(opens) = gate.try_pass() {
                    let lets_others = has_given && Arc::strong_count(gate) > 1;
                    return Some(if lets_others { opens + AFTER_OTHERS } else { opens });
                }
            }
            has_given = true;
            let next = backlog.round_robin.pop(offer, min_charge)?;
            self.slots.give(offer.slot);
            let (slot, weight, charged) = (offer.slot, next.weight, next.charged);
            // The receiver is there: a call leaves the backlog, under this lock, before it is gone.
            let _ = next.sender.send(Ok(Grant { slot, weight, charged, min_charge, contended }));
        }
        None
    }

    /// Returns a free slot, and the tenants that may have it.
    fn next_offer(&self, round_robin: &RoundRobin) -> Option<Offer> {
        let free = self.slots.free();
        if let Some(slot) = free.any().filter(|_| self.may_lend(round_robin)) {
            Some(Offer { slot, below: u32::MAX })
        } else if free.open {
            Some(Offer { slot: SlotKind::Open, below: self.slots.limit() })
        } else if free.spare {
            let below = self.shares.part_of_reserve(self.slots.reserved());
            Some(Offer { slot: SlotKind::Reserved, below })
        } else if free.reserve {
            Some(Offer { slot: SlotKind::Reserved, below: 1 })
        } else {
            None
        }
    }

    /// Returns whether the next call may have the last of two or three slots: its tenant is alone,
    /// and the call ends soon.
    fn may_lend(&self, round_robin: &RoundRobin) -> bool {
        let may_have = |(share, ends_soon): (&Share, bool)| {
            ends_soon && self.slots.taken() <= share.slots() && !self.shares.others_active(share)
        };
        self.slots.lends() && round_robin.only_tenant().is_some_and(may_have)
    }

    /// Returns the least charge of a call: the time of all slots during which the gate admits no
    /// other call. When the gate is scarce, quick calls use as much of it as slow ones.
    pub(super) fn min_charge(&self) -> Duration {
        let Some(gate) = &self.gate else { return Duration::ZERO };
        gate.interval().saturating_mul(self.slots.size()).min(GATE_CHARGE_MAX)
    }

    /// Ends the pauses whose time is over.
    fn end_pauses(&self, backlog: &mut Backlog) {
        if backlog.paused_until.is_none() && backlog.refused.is_none() {
            return;
        }
        let now = Instant::now();
        backlog.paused_until.take_if(|until| *until <= now);
        if backlog.refused.take_if(|it| it.until <= now).is_some() {
            backlog.round_robin.hold_back(None);
        }
        self.resume(backlog);
    }

    /// Gives slots at once again, if no pause is left.
    fn resume(&self, backlog: &Backlog) {
        if !backlog.is_held && backlog.paused_until.is_none() && backlog.refused.is_none() {
            self.slots.resume();
        }
    }

    /// Gives nobody a slot until it is called with `false`. Calls wait meanwhile.
    pub fn hold(self: &Arc<Self>, is_held: bool) {
        let mut backlog = self.backlog.lock();
        backlog.is_held = is_held;
        if is_held {
            self.slots.pause();
        } else {
            self.resume(&backlog);
            self.dispatch(&mut backlog);
        }
    }

    pub fn is_held(&self) -> bool {
        self.backlog.lock().is_held
    }

    /// Dispatches again at that time, unless a timer is set already that is no later.
    fn set_retry_timer(self: &Arc<Self>, backlog: &mut Backlog, at: Instant) {
        if backlog.retry_at.is_some_and(|set| set <= at) {
            return;
        }
        let Some(runtime) = self.runtime.get() else { return };
        let (this, mut next) = (Arc::downgrade(self), at);
        let retry_timer = runtime.spawn(async move {
            loop {
                sleep_until(next).await;
                let Some(again) = this.upgrade().and_then(|this| this.on_retry_timer()) else {
                    return;
                };
                next = again;
            }
        });
        backlog.retry_timer = Some(AbortOnDropHandle::new(retry_timer));
        backlog.retry_at = Some(at);
    }

    /// Dispatches. Returns when to do so again; if never, clears the timer, so that later
    /// calls set another.
    fn on_retry_timer(&self) -> Option<Instant> {
        let mut backlog = self.backlog.lock();
        let again = self.give_slots(&mut backlog);
        self.note_contention(&mut backlog);
        backlog.retry_at = again;
        if again.is_none() {
            backlog.retry_timer = None;
        }
        again
    }

    fn note_contention(&self, backlog: &mut Backlog) {
        match (backlog.round_robin.is_empty(), backlog.contended_since) {
            (true, Some(_)) => {
                self.contended.store(self.contended_until_now(backlog), Ordering::Relaxed);
                backlog.contended_since = None;
            }
            (false, None) => backlog.contended_since = Some(Instant::now()),
            _ => {}
        }
    }

    fn contended_until_now(&self, backlog: &Backlog) -> u64 {
        let current = backlog.contended_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.contended.load(Ordering::Relaxed) + current.as_nanos() as u64
    }
}
