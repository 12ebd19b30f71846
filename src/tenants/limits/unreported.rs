//! Calls that Valkey must be told of when it is back.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use governor::nanos::Nanos;

/// Calls that were admitted here while Valkey was away. Without the report, Valkey would have
/// earned them back meanwhile, and an unstable Valkey would admit twice the rate.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    calls: AtomicU32,
    /// When the first of them came.
    since: AtomicU64,
}

impl Unreported {
    /// Concurrent calls may make the numbers slightly inexact, which does no harm.
    pub fn add(&self, calls: u32, since: Nanos) {
        if self.calls.fetch_add(calls, Ordering::Relaxed) == 0 {
            self.since.store(since.as_u64(), Ordering::Relaxed);
        }
    }

    pub fn take(&self) -> Option<(u32, Nanos)> {
        if self.calls.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let calls = self.calls.swap(0, Ordering::Relaxed);
        Some((calls, Nanos::from(self.since.load(Ordering::Relaxed))))
    }
}
