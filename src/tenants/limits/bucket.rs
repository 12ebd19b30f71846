//! One rate limit of one tenant, and its usage in memory.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use governor::clock::{Clock as _, QuantaClock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota as GovernorQuota, RateLimiter};

use super::quota::{Quota, Remaining};
use super::rate_headers::policy_text;
use crate::common::ids::TenantId;
use crate::common::limit_use::{LimitUse, RateUse};
use crate::common::policy::{Limit, Pattern};

/// The scope of limits for all calls of a tenant.
pub(super) const TENANT: &str = "tenant";
/// The scope of a tenant's lists. No pattern has a space.
const LISTS: &str = "tenant lists";

/// Replicas that an outage cut off are back within this time of each other. Meanwhile some use the
/// whole rate and others their share.
const RECONNECT_SKEW: Duration = Duration::from_secs(2);

/// A rate limit, its usage on this replica, and its names elsewhere.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The pattern of the calls that it limits, or [`TENANT`].
    pub scope: String,
    pub quota: Quota,
    /// The rate as it is configured; of lists, as it follows from that.
    rate: String,
    /// Its item in `RateLimit-Policy`; begins with its name, in quotes.
    pub policy: String,
    /// The length of the name in `policy`.
    pub name_len: usize,
    /// Its key in Valkey.
    pub key: String,
    /// Calls that Valkey has not been told of.
    pub unreported: Unreported,
    clock: Clock,
    /// Decides without Valkey, and counts the calls that Valkey admits. Time alone fills this
    /// share: an outage never starts with more than was earned since the calls before it.
    share: ArcSwap<ReplicaShare>,
}

/// One replica's share of the rate: all of it, for a replica that is alone.
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
        let rate = limit.rate?;
        let quota = Quota::new(rate, limit.burst);
        let scope = pattern.map_or_else(|| TENANT.to_owned(), Pattern::to_string);
        Some(Self::full(tenant, pattern, scope, (rate.to_string(), quota), clock))
    }

    /// Returns a full bucket for the lists of a tenant that has a rate.
    pub fn of_lists(tenant: &TenantId, limit: &Limit, clock: &Clock) -> Option<Self> {
        let quota = Quota::new(limit.rate?, limit.burst).of_lists();
        let rate = format!("{}/s", Duration::from_secs(1).div_duration_f64(quota.interval).round());
        Some(Self::full(tenant, None, LISTS.to_owned(), (rate, quota), clock))
    }

    fn full(
        tenant: &TenantId,
        pattern: Option<&Pattern>,
        scope: String,
        (rate, quota): (String, Quota),
        clock: &Clock,
    ) -> Self {
        let (policy, name_len) = policy_text(&scope, quota);
        Self {
            rate,
            policy,
            name_len,
            key: key(tenant, pattern, quota),
            share: ArcSwap::from_pointee(ReplicaShare::new(quota, 1, clock)),
            unreported: Unreported::default(),
            clock: clock.clone(),
            scope,
            quota,
        }
    }

    /// Takes one call from this replica's share. Returns what remains of it.
    pub fn take(&self, replicas: u32) -> Result<Remaining, Remaining> {
        self.share_among(replicas).counter.take()
    }

    pub fn remaining(&self, replicas: u32) -> Remaining {
        self.share_among(replicas).counter.remaining()
    }

    /// Returns the limit at this remainder.
    pub fn limit_use(&self, remaining: Remaining) -> LimitUse {
        let (name, scope) = match &*self.scope {
            LISTS => ("list_rate", TENANT),
            scope => ("rate", scope),
        };
        let burst = self.quota.burst.get();
        let used = burst.saturating_sub(remaining.calls);
        let rate = RateUse { rate: self.rate.clone(), reset: remaining.reset };
        let limit = LimitUse::new(name, burst as usize, used as usize).of(scope);
        LimitUse { rate: Some(rate), ..limit }
    }

    /// Returns the most that Valkey may charge for late reports. More than the capacity, or else
    /// the calls of an outage would be forgiven and each outage would admit another burst. Bounded,
    /// so that a tenant is not refused for long after a replica was cut off for long.
    pub fn debt_max(&self, replicas: u32) -> Duration {
        let bursts = self.quota.burst.get().max(replicas);
        self.quota.capacity() + self.quota.interval * bursts + RECONNECT_SKEW
    }

    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns the share of one of so many replicas, made on demand.
    fn share_among(&self, replicas: u32) -> Guard<Arc<ReplicaShare>> {
        let replicas = replicas.max(1);
        let known = self.share.load();
        if known.replicas == replicas {
            return known;
        }
        let share = Arc::new(ReplicaShare::new(self.quota, replicas, &self.clock));
        share.counter.start_with(known.counter.owed());
        // A second caller uses the first one's counter: two of them would admit twice as much. A
        // call taken from the old counter at this very moment is forgotten; that is at most one for
        // each caller, when the number of replicas changes.
        self.share.compare_and_swap(&known, share);
        self.share.load()
    }
}

impl ReplicaShare {
    fn new(quota: Quota, replicas: u32, clock: &Clock) -> Self {
        Self { replicas, counter: Counter::new(quota.divided(replicas), clock) }
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

    /// Sets the debt of a new counter.
    fn start_with(&self, owed: Duration) {
        let now = self.limiter.clock().now().saturating_sub(self.start);
        let until = now + Nanos::from(owed);
        let set = |_| Ok::<_, Infallible>(((), until));
        let Ok(()) = self.debt.measure_and_replace(&NotKeyed::NonKey, set);
    }

    fn remaining(&self) -> Remaining {
        self.quota.remaining(self.owed())
    }

    fn owed(&self) -> Duration {
        let seen = self.debt.measure_and_replace(&NotKeyed::NonKey, |until| {
            // An error replaces nothing.
            Err::<((), Nanos), _>(until)
        });
        let until = seen.err().flatten().unwrap_or_default();
        let now = self.limiter.clock().now().saturating_sub(self.start);
        until.saturating_sub(now).into()
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
    /// Adds calls. Concurrent ones may make the numbers slightly inexact, which does no harm.
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

/// Returns the key in Valkey. A cluster hashes the part in braces: all keys of a tenant are on one
/// node. A changed rate has another key, and starts full.
fn key(tenant: &TenantId, pattern: Option<&Pattern>, quota: Quota) -> String {
    let (tenant, interval) = (tenant.unique_text(), quota.interval.as_nanos());
    let mut key = format!("trunkline:{{{tenant}}}:{interval}ns:{}", quota.burst);
    if let Some(pattern) = pattern {
        write!(key, ":{pattern}").expect("writing to memory does not fail");
    }
    key
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn bucket(burst: u32) -> (Bucket, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let tenant = TenantId::testing("acme");
        let rate = Some("10/s".parse().unwrap());
        let limit = Limit { rate, burst: Some(burst), max_in_flight: None };
        (Bucket::new(&tenant, None, &limit, &Clock::Fake(clock.clone())).unwrap(), clock)
    }

    fn drain(bucket: &Bucket, replicas: u32) -> u32 {
        std::iter::from_fn(|| bucket.take(replicas).ok()).map(|_| 1).sum()
    }

    #[test]
    fn a_share_is_filled_by_time_alone_however_often_replicas_come_and_go() {
        // A burst that can be divided by all these numbers of replicas.
        let (bucket, clock) = bucket(24);
        let second = Duration::from_secs(1);
        let (mut used, mut elapsed) = (Duration::ZERO, Duration::ZERO);
        for replicas in [2, 1, 3, 2, 1, 2, 4, 1, 2, 1] {
            for _ in 0..2 {
                used += bucket.quota.interval * replicas * drain(&bucket, replicas);
                assert!(used <= bucket.quota.capacity() + elapsed, "{used:?} among {replicas}");
                clock.advance(second / 2);
                elapsed += second / 2;
            }
        }
        // Nobody is kept waiting for longer than the burst takes.
        clock.advance(bucket.quota.capacity());
        assert_eq!(drain(&bucket, 1), 24);
    }

    #[test]
    fn a_report_charges_more_than_the_burst_but_not_without_end() {
        let (bucket, _) = bucket(20);
        assert_eq!(bucket.debt_max(2), Duration::from_secs(2 + 2 + 2));
        // Shares are rounded up to one call each.
        assert_eq!(bucket.debt_max(50), Duration::from_secs(2 + 5 + 2));
    }
}
