//! The slots of one server, counted in one atomic.

use std::sync::atomic::{AtomicU64, Ordering};

/// Free slots of both kinds and the calls that wait, side by side: all must be seen at once, so that nobody takes a slot
/// past those who wait.
#[derive(Debug)]
pub(super) struct Slots {
    state: AtomicU64,
    /// What it is when all are free and nobody waits.
    unused: u64,
    /// The most that one tenant may hold where several share.
    limit: u32,
}

/// Which slot was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// One that anybody may have.
    Open,
    /// One that is kept for tenants without any.
    Reserved,
}

const BITS: u32 = 20;
const COUNT_MAX: u64 = (1 << BITS) - 1;
const ONE_OPEN: u64 = 1;
const ONE_RESERVED: u64 = 1 << BITS;
const ONE_WAITS: u64 = 1 << (2 * BITS);

impl Slots {
    /// So many free slots, a quarter of them kept back. With a single one there is nothing to keep back.
    pub(super) fn new(slots: usize) -> Self {
        let slots = (slots as u64).min(COUNT_MAX);
        let reserved = if slots < 2 { 0 } else { (slots / 4).max(1) };
        let open = slots - reserved;
        let unused = open * ONE_OPEN + reserved * ONE_RESERVED;
        Self { state: AtomicU64::new(unused), unused, limit: open as u32 }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// A slot for a tenant that holds so many others, if nobody waits.
    pub(super) fn take_at_once(&self, held: u32, is_shared: bool) -> Option<Slot> {
        let mut slot = None;
        let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            slot = if state >= ONE_WAITS { None } else { self.choose(state, held, is_shared) };
            slot.map(|slot| state - slot.one())
        });
        taken.ok().and(slot)
    }

    fn choose(&self, state: u64, held: u32, is_shared: bool) -> Option<Slot> {
        let free = Free::of(state);
        if free.open && (!is_shared || held < self.limit) {
            Some(Slot::Open)
        } else if free.reserved && (!is_shared || held == 0) {
            Some(Slot::Reserved)
        } else {
            None
        }
    }

    /// Gives a slot to somebody who waits. Under the lock of the line, without which nobody takes one while
    /// somebody waits.
    pub(super) fn give(&self, slot: Slot) {
        self.state.fetch_sub(ONE_WAITS + slot.one(), Ordering::AcqRel);
    }

    /// Takes a slot back. Tells whether somebody waits.
    pub(super) fn take_back(&self, slot: Slot) -> bool {
        self.state.fetch_add(slot.one(), Ordering::AcqRel) >= ONE_WAITS
    }

    /// From now on one more waits: nobody takes a slot past it.
    pub(super) fn wait(&self) {
        self.state.fetch_add(ONE_WAITS, Ordering::AcqRel);
    }

    /// One gave up waiting.
    pub(super) fn give_up(&self) {
        self.state.fetch_sub(ONE_WAITS, Ordering::AcqRel);
    }

    /// Whether somebody waits.
    pub(super) fn has_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ONE_WAITS
    }

    /// Whether all are free and nobody waits.
    pub(super) fn is_unused(&self) -> bool {
        self.state.load(Ordering::Acquire) == self.unused
    }

    /// Which kinds have a free one.
    pub(super) fn free(&self) -> Free {
        Free::of(self.state.load(Ordering::Acquire))
    }

    /// Free open slots, free reserved slots, and calls that wait.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let state = self.state.load(Ordering::Acquire);
        (state & COUNT_MAX, (state >> BITS) & COUNT_MAX, state >> (2 * BITS))
    }
}

/// Which kinds of slots have a free one.
#[derive(Clone, Copy)]
pub(super) struct Free {
    pub(super) open: bool,
    pub(super) reserved: bool,
}

impl Free {
    fn of(state: u64) -> Self {
        Self { open: state & COUNT_MAX != 0, reserved: (state >> BITS) & COUNT_MAX != 0 }
    }
}

impl Slot {
    fn one(self) -> u64 {
        match self {
            Self::Open => ONE_OPEN,
            Self::Reserved => ONE_RESERVED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_a_free_slot_while_somebody_waits_for_it() {
        let slots = Slots::new(2);
        slots.wait();
        assert_eq!(slots.take_at_once(0, false), None);
        slots.give_up();
        assert_eq!(slots.take_at_once(0, false), Some(Slot::Open));
        assert_eq!(slots.take_at_once(0, false), Some(Slot::Reserved));
        assert_eq!(slots.take_at_once(0, false), None);
    }
}
