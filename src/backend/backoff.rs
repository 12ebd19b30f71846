//! How long to wait before a server is started again.

use std::time::Duration;

use rand::RngExt;

/// The wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// No wait is longer.
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles with every failure in a row; random in its upper half, so that servers that failed together
/// do not all start together.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub fn next_wait(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(20)).min(LONGEST);
        self.failures += 1;
        whole.mul_f64(rand::rng().random_range(0.5..=1.0))
    }

    /// All is well again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn waits_grow_within_bounds(failures in 0_u32..200) {
            let mut backoff = Backoff { failures };
            let wait = backoff.next_wait();
            prop_assert!(wait >= FIRST / 2 && wait <= LONGEST);
            if failures >= 9 {
                prop_assert!(wait >= LONGEST / 2);
            }
        }
    }

    #[test]
    fn a_reset_starts_over() {
        let mut backoff = Backoff { failures: 10 };
        backoff.reset();
        assert!(backoff.next_wait() <= FIRST);
    }
}
