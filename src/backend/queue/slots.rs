//! The slots of one server, counted in one atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Free slots of both kinds, the calls that wait, and whether the server is paused, side by side: all must be seen at
/// once, so that nobody takes a slot past those who wait.
#[derive(Debug)]
pub(super) struct Slots {
    state: AtomicU64,
    /// How many there are, taken ones included. Changed under the lock of the line.
    size: AtomicU32,
    /// So many of them are to be left free for now; tenants that hold none have the reserve all the same. Changed with the
    /// size.
    left_free: AtomicU32,
}

/// Which slot was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// One that anybody may have.
    Open,
    /// One that is kept for tenants without any.
    Reserved,
}

// From the lowest bit: free open slots, free reserved slots, calls that wait, and whether there is a pause. Where there
// are fewer slots than are taken, free ones are fewer than none; hence `NONE` stands for none.
const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;
const NONE: u64 = 1 << (BITS - 1);
const SIZE_MAX: u64 = NONE - 1;
const ONE_OPEN: u64 = 1;
const ONE_RESERVED: u64 = 1 << BITS;
const ONE_WAITS: u64 = 1 << (2 * BITS);
/// Above all counts, so that whoever asks whether somebody waits goes where it is asked whether there is a pause.
const PAUSED: u64 = 1 << 63;

impl Slots {
    /// So many free slots, a quarter of them kept back.
    pub(super) fn new(slots: usize) -> Self {
        let state = AtomicU64::new(NONE * ONE_OPEN + NONE * ONE_RESERVED);
        let new = Self { state, size: AtomicU32::new(0), left_free: AtomicU32::new(0) };
        new.resize(slots, 0);
        new
    }

    /// From now on there are so many, of which some are to be left free. Those that are too many and taken go when they
    /// come back. Under the lock of the line.
    pub(super) fn resize(&self, slots: usize, left_free: usize) {
        let size = (slots as u64).min(SIZE_MAX) as u32;
        self.left_free.store(left_free.min(size as usize) as u32, Ordering::Relaxed);
        let before = self.size.swap(size, Ordering::Relaxed);
        let all = |size| {
            u64::from(open_of(size)) * ONE_OPEN + u64::from(reserved_of(size)) * ONE_RESERVED
        };
        // Each count stays within its bits, so what one borrows from the next meanwhile is given back.
        self.state.fetch_add(all(size).wrapping_sub(all(before)), Ordering::AcqRel);
    }

    /// How many there are.
    pub(super) fn size(&self) -> u32 {
        self.size.load(Ordering::Relaxed)
    }

    /// The most that one tenant may hold where several share.
    pub(super) fn limit(&self) -> u32 {
        open_of(self.size())
    }

    /// A slot for a tenant that holds so many others, if nobody waits. `others_came` says whether other tenants want
    /// slots too, as far as is not seen here.
    pub(super) fn take_at_once(&self, held: u32, others_came: impl Fn() -> bool) -> Option<Slot> {
        let mut slot = None;
        let taken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            slot = if state >= ONE_WAITS { None } else { self.choose(state, held, &others_came) };
            slot.map(|slot| state - slot.one())
        });
        taken.ok().and(slot)
    }

    fn choose(&self, state: u64, held: u32, others_came: impl Fn() -> bool) -> Option<Slot> {
        let free = self.free_in(state);
        // Nearly always: what the tenant may have whoever else is there.
        if free.open && held < self.limit() {
            return Some(Slot::Open);
        }
        if free.kept && held == 0 {
            return Some(Slot::Reserved);
        }
        let slot = match (free.open, free.reserved) {
            (true, _) => Slot::Open,
            (false, true) => Slot::Reserved,
            (false, false) => return None,
        };
        let is_shared = self.taken_in(state) > held || others_came();
        (!is_shared).then_some(slot)
    }

    /// How many are taken. Whoever holds fewer is not alone.
    pub(super) fn taken(&self) -> u32 {
        self.taken_in(self.state.load(Ordering::Acquire))
    }

    fn taken_in(&self, state: u64) -> u32 {
        let (open, reserved) = (state & MASK, (state >> BITS) & MASK);
        // While it is resized this may be wrong for a moment, and somebody waits who need not, or the other way round.
        (u64::from(self.size()) + 2 * NONE).saturating_sub(open + reserved) as u32
    }

    /// From now on nobody takes a slot.
    pub(super) fn pause(&self) {
        self.state.fetch_or(PAUSED, Ordering::AcqRel);
    }

    /// Ends the pause.
    pub(super) fn resume(&self) {
        self.state.fetch_and(!PAUSED, Ordering::AcqRel);
    }

    /// Gives a slot to somebody who waits. Under the lock of the line, without which nobody takes one while
    /// somebody waits.
    pub(super) fn give(&self, slot: Slot) {
        self.state.fetch_sub(ONE_WAITS + slot.one(), Ordering::AcqRel);
    }

    /// Takes a slot back. Tells whether somebody waits, or might.
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

    /// Whether somebody waits, or would have to.
    pub(super) fn has_waiting(&self) -> bool {
        self.state.load(Ordering::Acquire) >= ONE_WAITS
    }

    /// Which kinds have a free one.
    pub(super) fn free(&self) -> Free {
        self.free_in(self.state.load(Ordering::Acquire))
    }

    fn free_in(&self, state: u64) -> Free {
        let (open, reserved) = (state & MASK, (state >> BITS) & MASK);
        // What one kind has too few is not to be had of the other.
        let free = (open + reserved).saturating_sub(2 * NONE);
        let is_any = free > u64::from(self.left_free.load(Ordering::Relaxed));
        Free {
            open: is_any && open > NONE,
            reserved: is_any && reserved > NONE,
            kept: free > 0 && reserved > NONE,
        }
    }

    /// Free open slots and free reserved slots, which may be less than none, and calls that wait.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (i64, i64, u64) {
        let state = self.state.load(Ordering::Acquire);
        let less_none = |count: u64| (count & MASK) as i64 - NONE as i64;
        (less_none(state), less_none(state >> BITS), (state & !PAUSED) >> (2 * BITS))
    }
}

/// How many of so many slots are kept for tenants that hold none. With a single slot there is nothing to keep back.
pub fn reserved_of(size: u32) -> u32 {
    if size < 2 { 0 } else { (size / 4).max(1) }
}

fn open_of(size: u32) -> u32 {
    size - reserved_of(size)
}

/// Which kinds of slots have a free one.
#[derive(Clone, Copy)]
pub(super) struct Free {
    pub(super) open: bool,
    pub(super) reserved: bool,
    /// A reserved one for a tenant that holds none.
    pub(super) kept: bool,
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
        assert_eq!(slots.take_at_once(0, || false), None);
        slots.give_up();
        assert_eq!(slots.take_at_once(0, || false), Some(Slot::Open));
        assert_eq!(slots.take_at_once(0, || false), Some(Slot::Reserved));
        assert_eq!(slots.take_at_once(0, || false), None);
    }

    #[test]
    fn slots_that_are_too_many_go_when_they_come_back() {
        let slots = Slots::new(8);
        let mut taken: Vec<_> = std::iter::from_fn(|| slots.take_at_once(0, || false)).collect();
        assert_eq!(taken.len(), 8);
        slots.resize(2, 0);
        while taken.len() > 1 {
            assert_eq!(slots.take_at_once(0, || false), None, "{} are taken", taken.len());
            slots.take_back(taken.pop().unwrap());
        }
        assert!(slots.take_at_once(0, || false).is_some());
        assert_eq!(slots.take_at_once(0, || false), None);
    }

    #[test]
    fn too_few_of_one_kind_are_not_made_up_for_by_the_other() {
        let slots = Slots::new(8);
        let taken: Vec<_> = std::iter::from_fn(|| slots.take_at_once(0, || false)).collect();
        let (reserved, open): (Vec<_>, Vec<_>) =
            taken.into_iter().partition(|&slot| slot == Slot::Reserved);
        open.into_iter().for_each(|slot| _ = slots.take_back(slot));
        slots.resize(reserved.len(), 0);
        assert_eq!(slots.take_at_once(0, || false), None);
        slots.resize(usize::MAX, 0);
        slots.resize(0, 0);
        reserved.into_iter().for_each(|slot| _ = slots.take_back(slot));
        assert_eq!(slots.counts(), (0, 0, 0));
    }

    #[test]
    fn nobody_takes_a_slot_while_there_is_a_pause() {
        let slots = Slots::new(1);
        slots.pause();
        assert_eq!((slots.take_at_once(0, || false), slots.has_waiting()), (None, true));
        slots.resume();
        assert_eq!(slots.take_at_once(0, || false), Some(Slot::Open));
    }
}
