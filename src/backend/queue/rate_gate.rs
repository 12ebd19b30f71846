//! A limit on the calls that may begin in a period, over all tenants.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::common::policy::Rate;

/// A burst is this fraction of the rate: enough that timers, which are late by a millisecond or
/// two, do not slow calls down. No window of one period admits more than 105 % of the rate.
const BURST_PART: u32 = 20;

/// A rate limit by GCRA. Each call moves the time at which the next one is due by one interval. A
/// call may come earlier than due by the length of a burst.
#[derive(Debug)]
pub struct RateGate {
    created: Instant,
    /// When the next call is due. All times are nanoseconds, this one since `created`.
    due: AtomicU64,
    interval: u64,
    burst: u64,
}

impl RateGate {
    pub fn new(rate: Rate) -> Self {
        let interval = rate.period().as_nanos().div_ceil(u128::from(rate.count())) as u64;
        let burst_calls = (rate.count() / BURST_PART).max(1);
        let burst = u64::from(burst_calls - 1) * interval;
        Self { created: Instant::now(), due: AtomicU64::new(0), interval, burst }
    }

    /// Admits one call, or returns when it may try again.
    pub(super) fn try_pass(&self) -> Result<(), Instant> {
        let now = self.created.elapsed().as_nanos() as u64;
        let passed = self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, |due| {
            (due <= now + self.burst).then(|| due.max(now) + self.interval)
        });
        match passed {
            Ok(_) => Ok(()),
            Err(due) => Err(self.created + Duration::from_nanos(due - self.burst)),
        }
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval)
    }
}
