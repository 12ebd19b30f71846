//! How many calls a server may be asked in a time, over all tenants.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::common::policy::Rate;

/// Such a part of what a rate names may come at once: enough that timers, which are late by a millisecond or two, do
/// not slow it down. In no time of the rate's length do more calls begin than the rate names, and this part of it.
const BURST_PART: u32 = 20;

/// Lets so many through in a time (GCRA): each call moves the moment that the next is due by the same step, and may
/// come before that by what makes up a burst.
#[derive(Debug)]
pub struct Gate {
    began: Instant,
    /// When the next call is due, in nanoseconds since it began.
    due: AtomicU64,
    step: u64,
    early: u64,
}

impl Gate {
    /// A gate that lets the first burst through at once.
    pub fn new(rate: Rate) -> Self {
        let step = rate.period().as_nanos().div_ceil(u128::from(rate.count())) as u64;
        let burst = (rate.count() / BURST_PART).max(1);
        let early = u64::from(burst - 1) * step;
        Self { began: Instant::now(), due: AtomicU64::new(0), step, early }
    }

    /// Lets one call through, or tells when it might.
    pub(super) fn pass(&self) -> Result<(), Instant> {
        let now = self.began.elapsed().as_nanos() as u64;
        let passed = self.due.fetch_update(Ordering::AcqRel, Ordering::Acquire, |due| {
            (due <= now + self.early).then(|| due.max(now) + self.step)
        });
        match passed {
            Ok(_) => Ok(()),
            Err(due) => Err(self.began + Duration::from_nanos(due - self.early)),
        }
    }

    /// The time between two calls.
    pub(super) fn step(&self) -> Duration {
        Duration::from_nanos(self.step)
    }
}
