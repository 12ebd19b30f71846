//! One rate limit of one tenant, and its usage in memory.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use governor::clock::{Clock as _, QuantaClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota as GovernorQuota, RateLimiter};

use super::quota::{Quota, Remaining};
use super::rate_headers::policy_text;
use crate::common::ids::TenantId;
use crate::common::policy::{Limit, Pattern};

/// The scope of limits for all calls of a tenant.
pub(super) const TENANT: &str = "tenant";

/// A rate limit, its usage on this replica, and its names elsewhere.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The pattern of the calls that it limits, or [`TENANT`].
    pub scope: String,
    pub quota: Quota,
    /// Its item in `RateLimit-Policy`; begins with its name, in quotes.
    pub policy: String,
    /// The length of the name in `policy`.
    pub name_len: usize,
    /// Its key in Valkey.
    pub key: String,
    /// Calls that Valkey has not been told of.
    pub unreported: Unreported,
    clock: Clock,
    whole: Counter,
    /// Used instead of `whole` while Valkey is away.
    share: ArcSwapOption<ReplicaShare>,
}

/// One replica's share of the rate.
#[derive(Debug)]
struct ReplicaShare {
    /// The number of replicas that divide it.
    replicas: u32,
    counter: Counter,
}

impl Bucket {
    /// Returns a full bucket, if the limit has a rate. Without a pattern it is for all calls of the
    /// tenant.
    pub fn new(
        tenant: &TenantId,
        pattern: Option<&Pattern>,
        limit: &Limit,
        clock: &Clock,
    ) -> Option<Self> {
        let quota = Quota::new(limit.rate?, limit.burst);
        let scope = pattern.map_or_else(|| TENANT.to_owned(), Pattern::to_string);
        let (policy, name_len) = policy_text(&scope, quota);
        Some(Self {
            policy,
            name_len,
            key: key(tenant, pattern, quota),
            whole: Counter::new(quota, clock),
            share: ArcSwapOption::empty(),
            unreported: Unreported::default(),
            clock: clock.clone(),
            scope,
            quota,
        })
    }

    /// Takes one call from this replica's share. Returns what remains of it.
    pub fn take(&self, replicas: u32) -> Result<Remaining, Remaining> {
        match replicas {
            0 | 1 => self.whole.take(),
            _ => self.share(replicas).counter.take(),
        }
    }

    pub fn remaining(&self, replicas: u32) -> Remaining {
        match replicas {
            0 | 1 => self.whole.remaining(),
            _ => self.share(replicas).counter.remaining(),
        }
    }

    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Created on demand: for most tenants, never.
    fn share(&self, replicas: u32) -> Arc<ReplicaShare> {
        let known = self.share.load();
        if let Some(share) = known.as_ref().filter(|share| share.replicas == replicas) {
            return share.clone();
        }
        let counter = Counter::new(self.quota.divided(replicas), &self.clock);
        let share = Arc::new(ReplicaShare { replicas, counter });
        let before = self.share.compare_and_swap(&*known, Some(share.clone()));
        // A second caller uses the first one's counter: two full ones would admit twice as much.
        match before.as_ref().filter(|share| share.replicas == replicas) {
            Some(first) => first.clone(),
            None => share,
        }
    }
}

/// The usage of a quota.
#[derive(Debug)]
struct Counter {
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
    fn new(quota: Quota, clock: &Clock) -> Self {
        let governed = GovernorQuota::with_period(quota.interval)
            .expect("no rate is over one call in a nanosecond")
            .allow_burst(quota.burst);
        let (debt, start) = (Debt::default(), clock.now());
        let limiter = RateLimiter::new(governed, debt.clone(), clock.clone());
        Self { quota, limiter, debt, start }
    }

    /// Takes one call, if there is one. Returns what remains.
    fn take(&self) -> Result<Remaining, Remaining> {
        match self.limiter.check() {
            Ok(()) => Ok(self.remaining()),
            Err(until) => {
                Err(Remaining { calls: 0, reset: until.wait_time_from(self.limiter.clock().now()) })
            }
        }
    }

    fn remaining(&self) -> Remaining {
        let seen = self.debt.measure_and_replace(&NotKeyed::NonKey, |until| {
            // An error replaces nothing.
            Err::<((), Nanos), _>(until)
        });
        let until = seen.err().flatten().unwrap_or_default();
        let now = self.limiter.clock().now().saturating_sub(self.start);
        self.quota.remaining(until.saturating_sub(now).into())
    }
}

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

/// Nanoseconds since its creation. Reads the processor's counter: a system call, even the cheapest,
/// would be most of the cost of a check.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    Real {
        source: QuantaClock,
        start: <QuantaClock as governor::clock::Clock>::Instant,
    },
    #[cfg(test)]
    Fake(governor::clock::FakeRelativeClock),
}

impl Clock {
    pub fn real() -> Self {
        let source = QuantaClock::default();
        let start = source.now();
        Self::Real { source, start }
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        match self {
            Self::Real { source, start } => source.now().duration_since(*start),
            #[cfg(test)]
            Self::Fake(clock) => clock.now(),
        }
    }
}

/// A Valkey cluster hashes the part in braces: all keys of a tenant are on one node. A changed rate
/// has another key, and starts full.
fn key(tenant: &TenantId, pattern: Option<&Pattern>, quota: Quota) -> String {
    let mut key = format!("trunkline:{{{tenant}}}:{}ns:{}", quota.interval.as_nanos(), quota.burst);
    if let Some(pattern) = pattern {
        write!(key, ":{pattern}").expect("writing to memory does not fail");
    }
    key
}
