//! Finds out how many concurrent calls are of use to one instance, from the times of calls.
//!
//! A server that runs one call after another is no faster with many in flight: calls only wait
//! there instead of in the fair queue. The time of a call does not tell such a server from one that
//! runs all at once. So now and then a probe lowers the limit for a few calls ([`state`]), and
//! compares their times with earlier times of the same tools. Tenants that have no call yet are let
//! in all the same.
//!
//! - If calls take as long as before, they did not wait for each other. The limit returns to its
//!   old value, and rises to the maximum as long as this stays so.
//! - If calls are quicker, they waited for each other. The ratio tells how many ran at once. The
//!   limit becomes that number and one, which is ready when another ends. Two probes in a row must
//!   agree.
//!
//! A probe of a concurrent server takes some 16 calls. The time until the next one is at least
//! forty times as long, and grows while nothing changes. Pure: no clock, no task.

mod sample;
mod state;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::state::LimitSearch;

pub struct Adaptive {
    state: Mutex<LimitSearch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// The limit outside probes.
    pub usual: u32,
    /// Lower in a probe. Only tenants that have no call yet go beyond it: they must not wait until
    /// the calls of others have ended.
    pub now: u32,
}

/// A call in flight; [`Adaptive::end`] must follow.
#[derive(Debug)]
#[must_use]
pub struct Started {
    at: Instant,
    /// Its tool, and the sample that it belongs to.
    sampled: Option<(u16, u64)>,
}

impl Adaptive {
    pub fn new(max: u32) -> Self {
        Self { state: Mutex::new(LimitSearch::new(max)) }
    }

    pub fn begin(&self, tool: &str, now: Instant) -> Started {
        Started { at: now, sampled: self.state.lock().begin(tool) }
    }

    /// Ends a call, answered or given up. Returns the limit if it has changed.
    pub fn end(&self, started: Started, now: Instant, answered: bool) -> Option<ConcurrencyLimit> {
        let took = now.saturating_duration_since(started.at);
        self.update(|state| state.end(started.sampled, took, answered, now))
    }

    /// Returns the limit if it has changed. Called every second, for there are times when no call
    /// ends.
    pub fn check(&self, now: Instant) -> Option<ConcurrencyLimit> {
        self.update(|state| state.check(now))
    }

    fn update(&self, change: impl FnOnce(&mut LimitSearch)) -> Option<ConcurrencyLimit> {
        let mut state = self.state.lock();
        let before = state.limit();
        change(&mut state);
        Some(state.limit()).filter(|&limit| limit != before)
    }
}
