//! The usage of a quota, in memory.

use std::sync::Arc;

use governor::clock::Clock as _;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota as GovernorQuota, RateLimiter};

use super::clock::Clock;
use super::quota::{Quota, Remaining};

#[derive(Debug)]
pub(super) struct Counter {
    quota: Quota,
    limiter: RateLimiter<NotKeyed, Debt, Clock, NoOpMiddleware<Nanos>>,
    /// Shared with the limiter.
    debt: Debt,
    /// The time of the limiter's creation.
    start: Nanos,
}

/// When all calls made are earned back, in nanoseconds from the start. The limiter hides its own
/// state: it does not tell when the next call may come, and cannot be read without taking a call.
#[derive(Clone, Debug, Default)]
struct Debt(Arc<InMemoryState>);

impl StateStore for Debt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, key: &NotKeyed, f: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        self.0.measure_and_replace(key, f)
    }
}

impl Counter {
    pub fn new(quota: Quota, clock: &Clock) -> Self {
        let governed = GovernorQuota::with_period(quota.interval)
            .expect("no rate is over one call in a nanosecond")
            .allow_burst(quota.burst);
        let (debt, start) = (Debt::default(), clock.now());
        let limiter = RateLimiter::new(governed, debt.clone(), clock.clone());
        Self { quota, limiter, debt, start }
    }

    /// Takes one call, if there is one. Returns what remains.
    pub fn take(&self) -> Result<Remaining, Remaining> {
        match self.limiter.check() {
            Ok(()) => Ok(self.remaining()),
            Err(until) => {
                Err(Remaining { calls: 0, reset: until.wait_time_from(self.limiter.clock().now()) })
            }
        }
    }

    pub fn remaining(&self) -> Remaining {
        let seen = self.debt.measure_and_replace(&NotKeyed::NonKey, |until| {
            // An error replaces nothing.
            Err::<((), Nanos), _>(until)
        });
        let until = seen.err().flatten().unwrap_or_default();
        let now = self.limiter.clock().now().saturating_sub(self.start);
        self.quota.remaining(until.saturating_sub(now).into())
    }
}
