//! How many calls are in flight, and how many may be without asking: two numbers that are seen and changed together.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two in one word.
#[derive(Debug, Default)]
pub(super) struct Places(AtomicU64);

/// What they were at one moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Seen {
    /// Calls in flight.
    pub taken: u32,
    /// How many may be, by what was said last.
    pub leased: u32,
}

impl Places {
    /// What they are.
    pub fn see(&self) -> Seen {
        Seen::of(self.0.load(Ordering::SeqCst))
    }

    /// Counts one more call, if fewer than `most` are in flight.
    pub fn take(&self, most: impl Fn(Seen) -> u32) -> Result<(), Seen> {
        let one_more = |word| {
            let seen = Seen::of(word);
            (seen.taken < most(seen)).then(|| word + 1)
        };
        let taken = self.0.try_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        taken.map(drop).map_err(Seen::of)
    }

    /// Counts one call less; what is left.
    pub fn give(&self) -> Seen {
        Seen::of(self.0.fetch_sub(1, Ordering::SeqCst) - 1)
    }

    /// Keeps at most so many places over those that are taken. What is kept.
    pub fn keep(&self, over: u32) -> Seen {
        self.change(|Seen { taken, leased }| leased.clamp(taken, taken.saturating_add(over)))
    }

    /// So many may be taken from now on.
    pub fn lease(&self, places: u32) {
        self.change(|_| places);
    }

    fn change(&self, leased: impl Fn(Seen) -> u32) -> Seen {
        let change = |word| {
            let seen = Seen::of(word);
            Seen { leased: leased(seen), ..seen }
        };
        let before = self.0.update(Ordering::SeqCst, Ordering::SeqCst, |word| change(word).word());
        change(before)
    }
}

impl Seen {
    /// Calls are in the lower half, so that one more is one more.
    fn of(word: u64) -> Self {
        Self { taken: word as u32, leased: (word >> 32) as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.leased) << 32 | u64::from(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_taken_than_are_leased() {
        let places = Places::default();
        assert_eq!(places.take(|seen| seen.leased), Err(Seen { taken: 0, leased: 0 }));
        places.lease(2);
        (0..2).for_each(|_| places.take(|seen| seen.leased).unwrap());
        assert_eq!(places.take(|seen| seen.leased), Err(Seen { taken: 2, leased: 2 }));
        assert_eq!(places.give(), Seen { taken: 1, leased: 2 });
        assert!(places.take(|seen| seen.leased).is_ok());
    }

    #[test]
    fn what_is_taken_is_kept_and_what_is_over_that_is_not() {
        let places = Places::default();
        places.lease(9);
        (0..3).for_each(|_| places.take(|_| 3).unwrap());
        assert_eq!(places.keep(10), Seen { taken: 3, leased: 9 });
        assert_eq!(places.keep(4), Seen { taken: 3, leased: 7 });
        assert_eq!(places.keep(0), Seen { taken: 3, leased: 3 });
        // Taken while nobody could be asked: all of it is held.
        places.take(|_| u32::MAX).unwrap();
        assert_eq!(places.keep(0), Seen { taken: 4, leased: 4 });
    }
}
