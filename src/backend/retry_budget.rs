//! How many calls of a server may be tried again: one in ten. A server that fails every call must not get twice as many.

use std::sync::atomic::{AtomicU32, Ordering};

/// What one call adds, and what a second attempt costs: in tenths.
const PER_CALL: u32 = 1;
const PER_RETRY: u32 = 10;
/// As many as may be saved up; also what a server starts with.
const SAVED_MAX: u32 = 10 * PER_RETRY;

/// What is left.
#[derive(Debug)]
pub struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(SAVED_MAX))
    }
}

impl RetryBudget {
    /// A call has come.
    pub fn note_call(&self) {
        // Full nearly always: then nothing is written.
        if self.0.load(Ordering::Relaxed) < SAVED_MAX {
            self.0.fetch_add(PER_CALL, Ordering::Relaxed);
        }
    }

    /// Whether one may be tried again.
    pub fn spend(&self) -> bool {
        let less = |saved: u32| saved.checked_sub(PER_RETRY);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_ten_may_be_tried_again() {
        let budget = RetryBudget::default();
        let spent = (0..1000).filter(|_| {
            budget.note_call();
            budget.spend()
        });
        // Those that were saved up, and a tenth of the calls.
        assert!((105..=112).contains(&spent.count()));
    }
}
