//! The slots of one backend, counted in one atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The free slots of both kinds, the waiting calls and the pause are one number. All are seen at
/// once, so nobody takes a slot past waiting calls.
#[derive(Debug)]
pub(super) struct Slots {
    state: AtomicU64,
    /// Whether some slots are reserved. False for a backend that only one tenant can use.
    has_reserve: bool,
    /// All slots, taken ones included. Changed under the lock of the backlog.
    size: AtomicU32,
    /// Slots that are not given out for now, except the reserve to tenants that hold none. Changed
    /// with the size.
    left_free: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotKind {
    /// For every tenant that holds fewer than [`Slots::limit`].
    Open,
    /// For tenants that hold few slots or none.
    Reserved,
}

/// The claim of one call to a slot.
pub(super) struct Claim<'a> {
    /// The slots that its tenant holds already.
    pub(super) held: u32,
    /// The tenant's part of the reserve, computed if there is nothing else to give.
    pub(super) part: &'a dyn Fn() -> u32,
    /// Whether the last slot of two or three may be lent to it.
    pub(super) may_borrow: &'a dyn Fn() -> bool,
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
    pub(super) fn new(slots: usize, has_reserve: bool) -> Self {
        let state = AtomicU64::new(NONE * ONE_OPEN + NONE * ONE_RESERVED);
        let (size, left_free) = (AtomicU32::new(0), AtomicU32::new(0));
        let new = Self { state, has_reserve, size, left_free };
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
            let reserved = self.reserved_of(size);
            u64::from(size - reserved) * ONE_OPEN + u64::from(reserved) * ONE_RESERVED
        };
        // Each count stays within its bits in the end, so borrows between them cancel out.
        self.state.fetch_add(all(size).wrapping_sub(all(before)), Ordering::AcqRel);
    }

    pub(super) fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns the most slots that one tenant may hold, alone or not: it may not stay alone.
    pub(super) fn limit(&self) -> u32 {
        self.size() - self.reserved()
    }

    /// Returns how many slots are reserved.
    pub(super) fn reserved(&self) -> u32 {
        self.reserved_of(self.size())
    }

    fn reserved_of(&self, size: u32) -> u32 {
        if self.has_reserve { reserved_of(size) } else { 0 }
    }

    /// Returns whether the reserve is lent to a tenant that is alone. With two or three slots a
    /// reserve costs too much to lie idle.
    pub(super) fn lends(&self) -> bool {
        self.has_reserve && (2..4).contains(&self.size())
    }

    /// Takes a slot, if nobody waits.
    pub(super) fn try_take(&self, claim: &Claim<'_>) -> Option<SlotKind> {
        let mut slot = None;
        let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            slot = if state >= ONE_WAITS { None } else { self.choose(state, claim) };
            slot.map(|slot| state - slot.one())
        });
        taken.ok().and(slot)
    }

    fn choose(&self, state: u64, claim: &Claim<'_>) -> Option<SlotKind> {
        let (free, held) = (self.free_in(state), claim.held);
        if free.open && held < self.limit() {
            return Some(SlotKind::Open);
        }
        let is_below_part = || free.spare && held < (claim.part)();
        if free.reserve && held == 0 || is_below_part() {
            return Some(SlotKind::Reserved);
        }
        let is_alone = || self.taken_in(state) <= held;
        let lent = free.any().filter(|_| self.lends() && is_alone());
        lent.filter(|_| (claim.may_borrow)())
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

    /// Returns how many reserved slots are free.
    pub(super) fn reserved_free(&self) -> u32 {
        let reserved = (self.state.load(Ordering::Acquire) >> BITS) & MASK;
        reserved.saturating_sub(NONE) as u32
    }

    /// Returns whether calls wait and no open slot is free.
    pub(super) fn is_starved(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        state & !PAUSED >= ONE_WAITS && !self.free_in(state).open
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
            spare: has_any && reserved > NONE + 1,
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

/// Returns how many of so many slots are reserved for tenants that hold few or none. A single slot
/// cannot be reserved.
pub fn reserved_of(size: u32) -> u32 {
    if size < 2 { 0 } else { (size / 4).max(1) }
}

/// The kinds of slots of which one is free.
#[derive(Clone, Copy)]
pub(super) struct FreeSlots {
    pub(super) open: bool,
    reserved: bool,
    /// A reserved slot beside another one, which is left for a tenant that holds none.
    pub(super) spare: bool,
    /// A reserved slot for a tenant that holds none. It may be one of those left free.
    pub(super) reserve: bool,
}

impl FreeSlots {
    /// Returns a slot of either kind.
    pub(super) fn any(self) -> Option<SlotKind> {
        match (self.open, self.reserved) {
            (true, _) => Some(SlotKind::Open),
            (false, true) => Some(SlotKind::Reserved),
            (false, false) => None,
        }
    }
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

    /// Takes a slot for a tenant that holds none.
    fn take(slots: &Slots) -> Option<SlotKind> {
        slots.try_take(&Claim { held: 0, part: &|| 0, may_borrow: &|| false })
    }

    #[test]
    fn nobody_takes_a_free_slot_while_a_call_waits_for_it() {
        let slots = Slots::new(2, true);
        slots.add_waiting();
        assert_eq!(take(&slots), None);
        slots.remove_waiting(1);
        assert_eq!(take(&slots), Some(SlotKind::Open));
        assert_eq!(take(&slots), Some(SlotKind::Reserved));
        assert_eq!(take(&slots), None);
    }

    #[test]
    fn slots_that_are_too_many_disappear_when_they_come_back() {
        let slots = Slots::new(8, true);
        let mut taken: Vec<_> = std::iter::from_fn(|| take(&slots)).collect();
        assert_eq!(taken.len(), 8);
        slots.resize(2, 0);
        while taken.len() > 1 {
            assert_eq!(take(&slots), None, "{} are taken", taken.len());
            slots.release(taken.pop().unwrap());
        }
        assert!(take(&slots).is_some());
        assert_eq!(take(&slots), None);
    }

    #[test]
    fn a_negative_count_of_one_kind_counts_against_the_other() {
        let slots = Slots::new(8, true);
        let taken: Vec<_> = std::iter::from_fn(|| take(&slots)).collect();
        let (reserved, open): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|&slot| slot == SlotKind::Reserved);
        open.into_iter().for_each(|slot| _ = slots.release(slot));
        slots.resize(reserved.len(), 0);
        assert_eq!(take(&slots), None);
        slots.resize(usize::MAX, 0);
        slots.resize(0, 0);
        reserved.into_iter().for_each(|slot| _ = slots.release(slot));
        assert_eq!(slots.counts(), (0, 0, 0));
    }

    #[test]
    fn nobody_takes_a_slot_during_a_pause() {
        let slots = Slots::new(1, true);
        slots.pause();
        assert_eq!((take(&slots), slots.has_waiting()), (None, true));
        slots.resume();
        assert_eq!(take(&slots), Some(SlotKind::Open));
    }
}
