//! The slots of one backend, counted in one atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The free slots of both kinds, the waiting calls and the pause are one number. All are seen at
/// once, so nobody takes a slot past waiting calls.
#[derive(Debug)]
pub(super) struct Slots {
    state: AtomicU64,
    /// All slots, taken ones included. Changed under the lock of the backlog.
    size: AtomicU32,
    /// Slots that are not given out for now, except the reserve to tenants that hold none. Changed
    /// with the size.
    left_free: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    /// For every tenant.
    Open,
    /// For tenants that hold no slot.
    Reserved,
}

// From the lowest bit: free open slots, free reserved slots, waiting calls, and the pause. After a
// shrink the free counts can be negative, so they are offset: `NONE` means zero.
const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;
const NONE: u64 = 1 << (BITS - 1);
const SIZE_MAX: u64 = NONE - 1;
const ONE_OPEN: u64 = 1;
const ONE_RESERVED: u64 = 1 << BITS;
const ONE_WAITS: u64 = 1 << (2 * BITS);
/// Above all counts, so that `state >= ONE_WAITS` holds during a pause, too.
const PAUSED: u64 = 1 << 63;

impl Slots {
    pub(super) fn new(slots: usize) -> Self {
        let state = AtomicU64::new(NONE * ONE_OPEN + NONE * ONE_RESERVED);
        let new = Self { state, size: AtomicU32::new(0), left_free: AtomicU32::new(0) };
        new.resize(slots, 0);
        new
    }

    /// Changes the number of slots, under the lock of the backlog. Slots that are taken and too
    /// many disappear when they come back.
    pub(super) fn resize(&self, slots: usize, left_free: usize) {
        let size = (slots as u64).min(SIZE_MAX) as u32;
        self.left_free.store(left_free.min(size as usize) as u32, Ordering::Relaxed);
        let before = self.size.swap(size, Ordering::Relaxed);
        let all = |size| {
            u64::from(open_of(size)) * ONE_OPEN + u64::from(reserved_of(size)) * ONE_RESERVED
        };
        // Each count stays within its bits in the end, so borrows between them cancel out.
        self.state.fetch_add(all(size).wrapping_sub(all(before)), Ordering::AcqRel);
    }

    pub(super) fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the most slots that one tenant may hold of a shared backend.
    pub(super) fn limit(&self) -> u32 {
        open_of(self.size())
    }

    /// Takes a slot for a tenant that holds so many others, if nobody waits. `others_active` says
    /// whether tenants that hold no slots want some, too.
    pub(super) fn try_take(&self, held: u32, others_active: impl Fn() -> bool) -> Option<SlotKind> {
        let mut slot = None;
        let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            slot = if state >= ONE_WAITS { None } else { self.choose(state, held, &others_active) };
            slot.map(|slot| state - slot.one())
        });
        taken.ok().and(slot)
    }

    fn choose(&self, state: u64, held: u32, others_active: impl Fn() -> bool) -> Option<SlotKind> {
        let free = self.free_in(state);
        // The usual case: the tenant may have it, shared or not.
        if free.open && held < self.limit() {
            return Some(SlotKind::Open);
        }
        if free.reserve && held == 0 {
            return Some(SlotKind::Reserved);
        }
        let slot = match (free.open, free.reserved) {
            (true, _) => SlotKind::Open,
            (false, true) => SlotKind::Reserved,
            (false, false) => return None,
        };
        let is_shared = self.taken_in(state) > held || others_active();
        (!is_shared).then_some(slot)
    }

    /// Returns how many slots are taken. A tenant that holds fewer is not alone.
    pub(super) fn taken(&self) -> u32 {
        self.taken_in(self.state.load(Ordering::Acquire))
    }

    fn taken_in(&self, state: u64) -> u32 {
        let (open, reserved) = (state & MASK, (state >> BITS) & MASK);
        // During a resize this may be wrong for a moment: a call waits that need not, or vice
        // versa.
        (u64::from(self.size()) + 2 * NONE).saturating_sub(open + reserved) as u32
    }

    pub(super) fn pause(&self) {
        self.state.fetch_or(PAUSED, Ordering::AcqRel);
    }

    pub(super) fn resume(&self) {
        self.state.fetch_and(!PAUSED, Ordering::AcqRel);
    }

    /// Gives a free slot to a waiting call, under the lock of the backlog. Nobody else takes slots
    /// while a call waits.
    pub(super) fn give(&self, slot: SlotKind) {
        self.state.fetch_sub(ONE_WAITS + slot.one(), Ordering::AcqRel);
    }

    /// Takes a slot back; returns whether calls wait, or there is a pause.
    pub(super) fn release(&self, slot: SlotKind) -> bool {
        self.state.fetch_add(slot.one(), Ordering::AcqRel) >= ONE_WAITS
    }

    /// Counts one more waiting call. From here on nobody takes a slot past it.
    pub(super) fn add_waiting(&self) {
        self.state.fetch_add(ONE_WAITS, Ordering::AcqRel);
    }

    pub(super) fn remove_waiting(&self, calls: u64) {
        self.state.fetch_sub(calls * ONE_WAITS, Ordering::AcqRel);
    }

    /// Returns whether calls wait, or there is a pause.
    pub(super) fn has_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ONE_WAITS
    }

    pub(super) fn free(&self) -> FreeSlots {
        self.free_in(self.state.load(Ordering::Acquire))
    }

    fn free_in(&self, state: u64) -> FreeSlots {
        let (open, reserved) = (state & MASK, (state >> BITS) & MASK);
        // A negative count of one kind counts against the other.
        let free = (open + reserved).saturating_sub(2 * NONE);
        let has_any = free > u64::from(self.left_free.load(Ordering::Relaxed));
        FreeSlots {
            open: has_any && open > NONE,
            reserved: has_any && reserved > NONE,
            reserve: free > 0 && reserved > NONE,
        }
    }

    /// Returns the free open slots, the free reserved slots and the waiting calls.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (i64, i64, u64) {
        let state = self.state.load(Ordering::Acquire);
        let count = |bits: u64| (bits & MASK) as i64 - NONE as i64;
        (count(state), count(state >> BITS), (state & !PAUSED) >> (2 * BITS))
    }
}

/// Returns how many of so many slots are reserved for tenants that hold none. A single slot cannot
/// be reserved.
pub fn reserved_of(size: u32) -> u32 {
    if size < 2 { 0 } else { (size / 4).max(1) }
}

fn open_of(size: u32) -> u32 {
    size - reserved_of(size)
}

/// The kinds of slots of which one is free.
#[derive(Clone, Copy)]
pub(super) struct FreeSlots {
    pub(super) open: bool,
    pub(super) reserved: bool,
    /// A reserved slot for a tenant that holds none. It may be one of those left free.
    pub(super) reserve: bool,
}

impl SlotKind {
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
    fn nobody_takes_a_free_slot_while_a_call_waits_for_it() {
        let slots = Slots::new(2);
        slots.add_waiting();
        assert_eq!(slots.try_take(0, || false), None);
        slots.remove_waiting(1);
        assert_eq!(slots.try_take(0, || false), Some(SlotKind::Open));
        assert_eq!(slots.try_take(0, || false), Some(SlotKind::Reserved));
        assert_eq!(slots.try_take(0, || false), None);
    }

    #[test]
    fn slots_that_are_too_many_disappear_when_they_come_back() {
        let slots = Slots::new(8);
        let mut taken: Vec<_> = std::iter::from_fn(|| slots.try_take(0, || false)).collect();
        assert_eq!(taken.len(), 8);
        slots.resize(2, 0);
        while taken.len() > 1 {
            assert_eq!(slots.try_take(0, || false), None, "{} are taken", taken.len());
            slots.release(taken.pop().unwrap());
        }
        assert!(slots.try_take(0, || false).is_some());
        assert_eq!(slots.try_take(0, || false), None);
    }

    #[test]
    fn a_negative_count_of_one_kind_counts_against_the_other() {
        let slots = Slots::new(8);
        let taken: Vec<_> = std::iter::from_fn(|| slots.try_take(0, || false)).collect();
        let (reserved, open): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|&slot| slot == SlotKind::Reserved);
        open.into_iter().for_each(|slot| _ = slots.release(slot));
        slots.resize(reserved.len(), 0);
        assert_eq!(slots.try_take(0, || false), None);
        slots.resize(usize::MAX, 0);
        slots.resize(0, 0);
        reserved.into_iter().for_each(|slot| _ = slots.release(slot));
        assert_eq!(slots.counts(), (0, 0, 0));
    }

    #[test]
    fn nobody_takes_a_slot_during_a_pause() {
        let slots = Slots::new(1);
        slots.pause();
        assert_eq!((slots.try_take(0, || false), slots.has_waiting()), (None, true));
        slots.resume();
        assert_eq!(slots.try_take(0, || false), Some(SlotKind::Open));
    }
}
