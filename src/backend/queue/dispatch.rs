//! Slots for those who wait: when they get them, and what is noted of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use super::fair_shares::Share;
use super::round_robin::{Among, Line};
use super::slots::Slot;
use super::{Grant, Inner};

/// The most that a call is charged with for having passed the gate.
const GATE_CHARGE_MAX: Duration = Duration::from_secs(10);

/// So much later than others that share the gate does a queue ask that has just had a call through: timers count in
/// milliseconds, and those that go off together do so in the order in which they were set.
const AFTER_OTHERS: Duration = Duration::from_millis(2);

/// Those who wait, and what they wait for.
#[derive(Default)]
pub(super) struct Waiting {
    pub(super) line: Line<oneshot::Sender<Grant>>,
    /// Since when somebody has waited, if somebody does.
    pub(super) since: Option<Instant>,
    /// Until when nobody is served.
    paused_until: Option<Instant>,
    /// Serves them when the gate opens. One for all; there while they wait for that.
    alarm: Option<AbortOnDropHandle<()>>,
}

impl Inner {
    /// Changes who waits; then gives free slots to those who may have them.
    pub(super) fn change<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Line<oneshot::Sender<Grant>>) -> T,
    ) -> T {
        let mut waiting = self.waiting.lock();
        let result = change(&mut waiting.line);
        self.go_on(&mut waiting);
        result
    }

    /// Nobody is served until then.
    pub(super) fn pause_until(self: &Arc<Self>, until: Instant) {
        let mut waiting = self.waiting.lock();
        waiting.paused_until = waiting.paused_until.max(Some(until));
        self.slots.pause();
        self.go_on(&mut waiting);
    }

    /// Charges a tenant with what a call used while somebody waited.
    pub(super) fn settle(self: &Arc<Self>, share: &Share, grant: Grant) {
        self.shares.note_end(share);
        let mut waiting = self.waiting.lock();
        let took = self.contended_until_now(&waiting).saturating_sub(grant.contended);
        let took = Duration::from_nanos(took).max(grant.least);
        waiting.line.correct(share, grant.weight, grant.charged, took);
        self.go_on(&mut waiting);
    }

    fn go_on(self: &Arc<Self>, waiting: &mut Waiting) {
        let opens = self.serve(waiting);
        if let Some(at) = opens {
            self.set_alarm(waiting, at);
        }
        self.note_contention(waiting);
    }

    /// Gives free slots to those who may have them. Tells when the gate opens, if somebody waits for that only.
    fn serve(&self, waiting: &mut Waiting) -> Option<Instant> {
        if waiting.line.tenants_waiting() == 0 {
            return None;
        }
        if let Some(until) = self.end_of_pause(waiting) {
            return Some(until);
        }
        let contended = self.contended_until_now(waiting);
        let least = self.least_charge();
        let mut has_served = false;
        while let Some((slot, among)) = self.next_slot(&waiting.line) {
            if let Some(gate) = &self.gate {
                // Asked first: what has passed the gate cannot be taken back.
                if !waiting.line.has_next(among) {
                    return None;
                }
                if let Err(opens) = gate.pass() {
                    let gives_way = has_served && Arc::strong_count(gate) > 1;
                    return Some(if gives_way { opens + AFTER_OTHERS } else { opens });
                }
            }
            has_served = true;
            let next = waiting.line.pop(among, least)?;
            self.slots.give(slot);
            let (weight, charged) = (next.weight, next.charged);
            // It waits: a call leaves the line, under this lock, before it stops listening.
            let _ = next.waker.send(Grant { slot, weight, charged, least, contended });
        }
        None
    }

    /// A slot that is free, and who may have it.
    fn next_slot(&self, line: &Line<oneshot::Sender<Grant>>) -> Option<(Slot, Among)> {
        let is_shared = match line.only_waiting() {
            Some(share) => self.slots.taken() > share.held() || self.shares.others_came(share),
            None => true,
        };
        let free = self.slots.free();
        match (free.open, free.reserved) {
            (true, _) if is_shared => Some((Slot::Open, Among::Below(self.slots.limit()))),
            (true, _) => Some((Slot::Open, Among::Below(u32::MAX))),
            (false, true) if is_shared => Some((Slot::Reserved, Among::EmptyHanded)),
            (false, true) => Some((Slot::Reserved, Among::Below(u32::MAX))),
            (false, false) if free.kept => Some((Slot::Reserved, Among::EmptyHanded)),
            (false, false) => None,
        }
    }

    /// What a call is charged with at least: the part of all slots' time in which the gate lets no other through.
    /// Where the gate is what there is too little of, quick calls use as much of it as slow ones.
    fn least_charge(&self) -> Duration {
        let Some(gate) = &self.gate else { return Duration::ZERO };
        gate.step().saturating_mul(self.slots.size()).min(GATE_CHARGE_MAX)
    }

    /// When the pause ends, if there is one still.
    fn end_of_pause(&self, waiting: &mut Waiting) -> Option<Instant> {
        let until = waiting.paused_until?;
        if until > Instant::now() {
            return Some(until);
        }
        waiting.paused_until = None;
        self.slots.resume();
        None
    }

    /// Serves those who wait then. The gate never opens earlier than was said, so an alarm that is set already will do.
    fn set_alarm(self: &Arc<Self>, waiting: &mut Waiting, at: Instant) {
        if waiting.alarm.is_some() {
            return;
        }
        let Some(runtime) = self.runtime.get() else { return };
        let (this, mut at) = (Arc::downgrade(self), at);
        let alarm = runtime.spawn(async move {
            loop {
                sleep_until(at).await;
                let Some(opens) = this.upgrade().and_then(|this| this.ring()) else { return };
                at = opens;
            }
        });
        waiting.alarm = Some(AbortOnDropHandle::new(alarm));
    }

    /// The alarm goes off. Tells when it must again; if it need not, it is gone, so that whoever comes sets another.
    fn ring(&self) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        let opens = self.serve(&mut waiting);
        self.note_contention(&mut waiting);
        if opens.is_none() {
            waiting.alarm = None;
        }
        opens
    }

    fn note_contention(&self, waiting: &mut Waiting) {
        match (waiting.line.tenants_waiting(), waiting.since) {
            (0, Some(_)) => {
                let contended = self.contended_until_now(waiting);
                self.contended.store(contended, Ordering::Relaxed);
                waiting.since = None;
            }
            (1.., None) => waiting.since = Some(Instant::now()),
            _ => {}
        }
    }

    fn contended_until_now(&self, waiting: &Waiting) -> u64 {
        let now = waiting.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.contended.load(Ordering::Relaxed) + now.as_nanos() as u64
    }
}
