//! Limits retries to one call in ten: a server that fails every call must not get twice as many.

use std::sync::atomic::{AtomicU32, Ordering};

/// A call earns a tenth of a retry.
const PER_CALL: u32 = 1;
const PER_RETRY: u32 = 10;
/// The most that is saved up; a server starts with it.
const SAVED_MAX: u32 = 10 * PER_RETRY;

#[derive(Debug)]
pub struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(SAVED_MAX))
    }
}

impl RetryBudget {
    pub fn note_call(&self) {
        // Full nearly always: then nothing is written.
        if self.0.load(Ordering::Relaxed) < SAVED_MAX {
            self.0.fetch_add(PER_CALL, Ordering::Relaxed);
        }
    }

    /// Whether a call may be retried. Spends the budget if so.
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
