//! Permits in use and permits leased: two numbers that are read and changed together.

use std::sync::atomic::{AtomicU64, Ordering};

/// Both numbers in one word.
#[derive(Debug, Default)]
pub(super) struct LeasedPermits(AtomicU64);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PermitCounts {
    /// Calls in flight.
    pub in_use: u32,
    /// Calls that may be in flight, by the last grant.
    pub leased: u32,
}

impl LeasedPermits {
    pub fn counts(&self) -> PermitCounts {
        PermitCounts::of(self.0.load(Ordering::SeqCst))
    }

    /// Counts one more call, if fewer than `most` are in flight.
    pub fn take(&self, most: impl Fn(PermitCounts) -> u32) -> Result<(), PermitCounts> {
        let one_more = |word| {
            let counts = PermitCounts::of(word);
            (counts.in_use < most(counts)).then(|| word + 1)
        };
        let taken = self.0.try_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        taken.map(drop).map_err(PermitCounts::of)
    }

    /// Counts one call less. Returns what is left.
    pub fn release(&self) -> PermitCounts {
        PermitCounts::of(self.0.fetch_sub(1, Ordering::SeqCst) - 1)
    }

    /// Keeps at most `over` permits beyond those in use. Returns the rest.
    pub fn keep(&self, over: u32) -> PermitCounts {
        self.change(|PermitCounts { in_use, leased }| {
            leased.clamp(in_use, in_use.saturating_add(over))
        })
    }

    pub fn lease(&self, permits: u32) {
        self.change(|_| permits);
    }

    fn change(&self, leased: impl Fn(PermitCounts) -> u32) -> PermitCounts {
        let change = |word| {
            let counts = PermitCounts::of(word);
            PermitCounts { leased: leased(counts), ..counts }
        };
        let before = self.0.update(Ordering::SeqCst, Ordering::SeqCst, |word| change(word).word());
        change(before)
    }
}

impl PermitCounts {
    /// Calls are in the lower half, so that adding one counts a call.
    fn of(word: u64) -> Self {
        Self { in_use: word as u32, leased: (word >> 32) as u32 }
    }

    fn word(self) -> u64 {
        u64::from(self.leased) << 32 | u64::from(self.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_permits_are_taken_than_leased() {
        let permits = LeasedPermits::default();
        assert_eq!(
            permits.take(|counts| counts.leased),
            Err(PermitCounts { in_use: 0, leased: 0 })
        );
        permits.lease(2);
        (0..2).for_each(|_| permits.take(|counts| counts.leased).unwrap());
        assert_eq!(
            permits.take(|counts| counts.leased),
            Err(PermitCounts { in_use: 2, leased: 2 })
        );
        assert_eq!(permits.release(), PermitCounts { in_use: 1, leased: 2 });
        assert!(permits.take(|counts| counts.leased).is_ok());
    }

    #[test]
    fn permits_in_use_are_kept_and_others_are_not() {
        let permits = LeasedPermits::default();
        permits.lease(9);
        (0..3).for_each(|_| permits.take(|_| 3).unwrap());
        assert_eq!(permits.keep(10), PermitCounts { in_use: 3, leased: 9 });
        assert_eq!(permits.keep(4), PermitCounts { in_use: 3, leased: 7 });
        assert_eq!(permits.keep(0), PermitCounts { in_use: 3, leased: 3 });
        // Taken without a lease: all of them are held.
        permits.take(|_| u32::MAX).unwrap();
        assert_eq!(permits.keep(0), PermitCounts { in_use: 4, leased: 4 });
    }
}
