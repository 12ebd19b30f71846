//! How many calls at once are of use to one instance of a server, found out from what calls take.
//!
//! A server that runs one call after another is no faster with many in flight: they only wait there instead of in the
//! fair queue. How long calls take does not tell it from one that runs all at once and takes that long. So now and then
//! the limit is lowered for a few calls ([`state`]), and what they take is compared with what the same tools took
//! before. Tenants that have no call yet are let in all the same:
//!
//! - If they take as long as before, the calls did not wait for each other. The limit goes back to what it was, and
//!   up as long as that stays so, to the maximum.
//! - If they are quicker, the calls waited for each other. By how much says how many ran at once; the limit becomes
//!   that and one, which is ready when another ends. This must be found twice in a row.
//!
//! A probe of a concurrent server is over when the first 16 calls or so have shown it. The time until the next is forty times
//! as long or more, and longer each time that nothing has changed. Pure: no clock, no task.

mod sample;
mod state;
#[cfg(test)]
mod tests;

use parking_lot::Mutex;
use tokio::time::Instant;

use self::state::State;

/// Finds out the limit of one instance.
pub struct Adaptive {
    state: Mutex<State>,
}

/// How many calls at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is of use, as far as is known.
    pub usual: u32,
    /// What there should be now: fewer in a probe. Only tenants that have no call yet go beyond it, for they must not wait
    /// until the calls of others have ended.
    pub now: u32,
}

/// A call in flight. It must be ended.
#[derive(Debug)]
#[must_use]
pub struct Started {
    at: Instant,
    /// Its tool and the sample it belongs to, if it does.
    sampled: Option<(u16, u64)>,
}

impl Adaptive {
    /// Begins with the maximum.
    pub fn new(max: u32) -> Self {
        Self { state: Mutex::new(State::new(max)) }
    }

    /// The limit now.
    pub fn limit(&self) -> Limit {
        self.state.lock().limit()
    }

    /// A call of a tool begins.
    pub fn begin(&self, tool: &str, now: Instant) -> Started {
        Started { at: now, sampled: self.state.lock().begin(tool) }
    }

    /// A call has ended: answered, or given up. Tells the limit when it has changed.
    pub fn end(&self, started: Started, now: Instant, answered: bool) -> Option<Limit> {
        let mut state = self.state.lock();
        let before = state.limit();
        let took = now.saturating_duration_since(started.at);
        state.end(started.sampled, took, answered, now);
        Some(state.limit()).filter(|&limit| limit != before)
    }

    /// To be called every second or so, for there are times when no call ends: tells the limit when it has changed.
    pub fn check(&self, now: Instant) -> Option<Limit> {
        let mut state = self.state.lock();
        let before = state.limit();
        state.check(now);
        Some(state.limit()).filter(|&limit| limit != before)
    }
}
