//! A tenant's limits: the rate of its calls, and the number of its calls in flight.
//!
//! - `quota`, `bucket`: a rate as numbers, and its usage
//! - `rate_headers`: the `RateLimit` headers
//! - [`shared`]: limits that all replicas share, in Valkey or Redis
//!
//! A call is checked twice. [`Limits::admit_tenant`] comes before any costly work and concerns the
//! tenant as a whole. It takes nanoseconds, unless little is left of a shared limit.
//! [`Limits::admit`] comes when the tool is known.

mod bucket;
mod quota;
mod rate_headers;
pub mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use self::bucket::{Bucket, Clock, TENANT};
use self::quota::Remaining;
use self::shared::LimitLease;
pub use self::shared::SharedLimits;
use crate::common::ids::TenantId;
use crate::common::policy::{Limit, Pattern, Policy};

#[derive(Debug)]
pub struct Limits {
    tenant: TenantId,
    shared: Option<Arc<SharedLimits>>,
    clock: Clock,
    in_flight: InFlightLimit,
    rate: Option<Arc<Bucket>>,
    /// The narrowest pattern first.
    scoped: Vec<PatternLimit>,
}

/// The limit of calls that a pattern covers.
#[derive(Debug)]
struct PatternLimit {
    pattern: Pattern,
    /// The pattern as text.
    scope: String,
    in_flight: InFlightLimit,
    rate: Option<Arc<Bucket>>,
}

/// A limit of calls in flight. Clones share the count, each with its own limit.
#[derive(Clone, Debug)]
struct InFlightLimit {
    calls: Count,
    max: Option<u32>,
}

/// Counts calls on this replica, or over all replicas.
#[derive(Clone, Debug)]
enum Count {
    Here(Arc<AtomicU32>),
    Shared(Arc<LimitLease>),
}

/// One counted call.
#[derive(Debug)]
struct TenantPermit(Count);

/// The permits of one call within the limits of its tenant. Held as long as the call runs, even if
/// nobody waits for it: the server still works on it.
#[derive(Debug)]
pub struct Admission {
    _tenant: TenantPermit,
    /// For limits of single servers and tools.
    scoped: Vec<TenantPermit>,
}

/// The remaining calls of each rate that covers a call, the narrowest first.
#[derive(Clone, Debug, Default)]
pub struct RateStatus(Vec<(Arc<Bucket>, Remaining)>);

impl RateStatus {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The reason why a call may not begin now: always the tenant's own limit, never the gateway's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LimitRefusal {
    #[error("{limit} calls are in flight, the limit for `{scope}`: wait until one has ended")]
    Busy {
        /// The limit's pattern, or `tenant`.
        scope: String,
        limit: u32,
        /// As far as this replica knows; nothing was taken.
        rate_status: RateStatus,
    },
    #[error("the rate for `{scope}` is used up: try again in {retry_after:?}")]
    RateLimited {
        /// The rate's pattern, or `tenant`.
        scope: String,
        /// The exact wait, unless other calls come first.
        retry_after: Duration,
        rate_status: RateStatus,
    },
}

impl Limits {
    /// Starts with nothing used, unless replicas share the usage.
    pub fn new(tenant: &TenantId, policy: &Policy, shared: Option<Arc<SharedLimits>>) -> Self {
        Self::with_clock(tenant, policy, shared, Clock::real())
    }

    fn with_clock(
        tenant: &TenantId,
        policy: &Policy,
        shared: Option<Arc<SharedLimits>>,
        clock: Clock,
    ) -> Self {
        let nothing = Self {
            tenant: tenant.clone(),
            in_flight: InFlightLimit::new(tenant, None, shared.as_ref()),
            shared,
            clock,
            rate: None,
            scoped: vec![],
        };
        nothing.with_policy(policy)
    }

    /// Returns the limits under a new policy. Calls in flight stay counted, and unchanged rates
    /// keep their usage; changed ones start full. A new pattern counts calls from now on.
    pub fn with_policy(&self, policy: &Policy) -> Self {
        let mut scoped: Vec<_> =
            policy.limits.iter().map(|(pattern, limit)| self.scoped(pattern, limit)).collect();
        scoped.sort_by_key(|scoped| width(&scoped.scope));
        Self {
            tenant: self.tenant.clone(),
            shared: self.shared.clone(),
            clock: self.clock.clone(),
            in_flight: self.in_flight.with_max(policy.limit.max_in_flight),
            rate: self.bucket(None, &policy.limit, self.rate.as_ref()),
            scoped,
        }
    }

    fn scoped(&self, pattern: &Pattern, limit: &Limit) -> PatternLimit {
        let before = self.scoped.iter().find(|scoped| scoped.pattern == *pattern);
        let in_flight = before.map_or_else(
            || InFlightLimit::new(&self.tenant, Some(pattern), self.shared.as_ref()),
            |before| before.in_flight.clone(),
        );
        let rate = before.and_then(|before| before.rate.as_ref());
        PatternLimit {
            pattern: pattern.clone(),
            scope: pattern.to_string(),
            in_flight: in_flight.with_max(limit.max_in_flight),
            rate: self.bucket(Some(pattern), limit, rate),
        }
    }

    fn bucket(
        &self,
        pattern: Option<&Pattern>,
        limit: &Limit,
        before: Option<&Arc<Bucket>>,
    ) -> Option<Arc<Bucket>> {
        let bucket = Bucket::new(&self.tenant, pattern, limit, &self.clock)?;
        let unchanged = before.filter(|before| before.quota == bucket.quota);
        Some(unchanged.cloned().unwrap_or_else(|| Arc::new(bucket)))
    }

    /// Counts one more call of the tenant, until the admission is dropped. Waits only for a shared
    /// limit of which this replica has no leased permit left.
    pub async fn admit_tenant(&self) -> Result<Admission, LimitRefusal> {
        match self.in_flight.take().await {
            Some(tenant) => Ok(Admission { _tenant: tenant, scoped: vec![] }),
            None => Err(busy(TENANT, &self.in_flight, self.rate_status())),
        }
    }

    /// Returns the status of the tenant's overall rate, as far as this replica knows. Takes
    /// nothing.
    pub fn rate_status(&self) -> RateStatus {
        self.look(&self.rate)
    }

    /// Admits a call if all limits that cover it allow it: first those of calls in flight, then the
    /// rates, the narrowest first. `tool` is `None` for other requests. A refused call keeps the
    /// permit it came with. What it took from a narrow rate before a wider one refused is lost,
    /// unless rates are shared.
    pub async fn admit(
        &self,
        admission: &mut Admission,
        server: &str,
        tool: Option<&str>,
    ) -> Result<RateStatus, LimitRefusal> {
        // The common case.
        if self.scoped.is_empty() && self.rate.is_none() {
            return Ok(RateStatus::default());
        }
        let permits = self.take_scoped(server, tool).await?;
        let rate_status = self.charge(server, tool).await?;
        admission.scoped.extend(permits);
        Ok(rate_status)
    }

    /// Takes one call from all rates that cover it, and counts no call in flight.
    pub async fn charge(
        &self,
        server: &str,
        tool: Option<&str>,
    ) -> Result<RateStatus, LimitRefusal> {
        self.spend(self.rates(server, tool).collect()).await
    }

    /// Counts one more call, until the admission is dropped. Its rates are charged elsewhere.
    pub async fn hold(&self, server: &str, tool: Option<&str>) -> Result<Admission, LimitRefusal> {
        let mut admission = self.admit_tenant().await?;
        if !self.scoped.is_empty() {
            admission.scoped = self.take_scoped(server, tool).await?;
        }
        Ok(admission)
    }

    async fn take_scoped(
        &self,
        server: &str,
        tool: Option<&str>,
    ) -> Result<Vec<TenantPermit>, LimitRefusal> {
        let mut permits = vec![];
        let limited = self.covering(server, tool).filter(|scoped| scoped.in_flight.max.is_some());
        for limited in limited {
            match limited.in_flight.take().await {
                Some(permit) => permits.push(permit),
                None => {
                    let rates = self.look(self.rates(server, tool));
                    return Err(busy(&limited.scope, &limited.in_flight, rates));
                }
            }
        }
        Ok(permits)
    }

    /// Returns the limits whose pattern covers a call, the narrowest first.
    fn covering<'a>(
        &'a self,
        server: &'a str,
        tool: Option<&'a str>,
    ) -> impl Iterator<Item = &'a PatternLimit> {
        self.scoped.iter().filter(move |scoped| scoped.pattern.covers(server, tool))
    }

    fn rates<'a>(
        &'a self,
        server: &'a str,
        tool: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Bucket>> {
        let scoped = self.covering(server, tool).filter_map(|scoped| scoped.rate.as_ref());
        scoped.chain(&self.rate)
    }

    /// Returns what remains on this replica.
    fn look<'a>(&self, buckets: impl IntoIterator<Item = &'a Arc<Bucket>>) -> RateStatus {
        let replicas = self.shared.as_ref().map_or(1, |shared| shared.replicas());
        let remaining = |bucket: &Arc<Bucket>| (bucket.clone(), bucket.remaining(replicas));
        RateStatus(buckets.into_iter().map(remaining).collect())
    }

    async fn spend(&self, buckets: Vec<&Arc<Bucket>>) -> Result<RateStatus, LimitRefusal> {
        if buckets.is_empty() {
            return Ok(RateStatus::default());
        }
        let Some(shared) = &self.shared else { return take_all(&buckets, 1) };
        let replicas = shared.replicas();
        if let Some(answer) = shared.take_all(&buckets).await {
            if answer.is_ok() {
                // Also counted here, so that no bucket is full if Valkey goes away now.
                for bucket in &buckets {
                    let _ = bucket.take(replicas);
                }
            }
            return answer;
        }
        let answer = take_all(&buckets, replicas);
        if answer.is_ok() {
            buckets.iter().for_each(|bucket| bucket.unreported.add(1, bucket.now()));
        }
        answer
    }
}

impl InFlightLimit {
    /// Makes a limit; without a pattern, for all calls of the tenant.
    fn new(
        tenant: &TenantId,
        pattern: Option<&Pattern>,
        shared: Option<&Arc<SharedLimits>>,
    ) -> Self {
        let calls = match shared {
            None => Count::Here(Arc::default()),
            Some(shared) => Count::Shared(LimitLease::new(shared, in_flight_key(tenant, pattern))),
        };
        Self { calls, max: None }
    }

    /// Returns the same count under another limit. Calls in flight stay, even beyond it.
    fn with_max(&self, max: Option<u32>) -> Self {
        if let Count::Shared(lease) = &self.calls {
            lease.set_limit(max);
        }
        Self { calls: self.calls.clone(), max }
    }

    /// Counts one more call, if the limit allows it. Waits only if replicas share the limit and
    /// this one has no leased permit left.
    async fn take(&self) -> Option<TenantPermit> {
        let is_taken = match &self.calls {
            Count::Here(count) => take_here(count, self.max),
            Count::Shared(lease) => lease.take(self.max).await,
        };
        is_taken.then(|| TenantPermit(self.calls.clone()))
    }
}

/// Compares before it adds: a refused call must not displace another.
fn take_here(count: &AtomicU32, max: Option<u32>) -> bool {
    let limit = max.unwrap_or(u32::MAX);
    let one_more = |count| (count < limit).then(|| count + 1);
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        match &self.0 {
            Count::Here(count) => drop(count.fetch_sub(1, Ordering::Relaxed)),
            Count::Shared(lease) => lease.release(),
        }
    }
}

/// Returns the key in Valkey, on the node of the tenant's rates. A changed limit keeps its key.
fn in_flight_key(tenant: &TenantId, pattern: Option<&Pattern>) -> String {
    let pattern = pattern.map(|pattern| format!(":{pattern}")).unwrap_or_default();
    format!("trunkline:{{{tenant}}}:in-flight{pattern}")
}

fn busy(scope: &str, in_flight: &InFlightLimit, rate_status: RateStatus) -> LimitRefusal {
    let limit = in_flight.max.unwrap_or(u32::MAX);
    LimitRefusal::Busy { scope: scope.to_owned(), limit, rate_status }
}

/// Takes one call from each bucket, each divided among `replicas`.
fn take_all(buckets: &[&Arc<Bucket>], replicas: u32) -> Result<RateStatus, LimitRefusal> {
    let mut rate_status = RateStatus(Vec::with_capacity(buckets.len()));
    for bucket in buckets {
        let taken = bucket.take(replicas);
        let (Ok(remaining) | Err(remaining)) = taken;
        rate_status.0.push((Arc::clone(bucket), remaining));
        if taken.is_err() {
            let scope = bucket.scope.clone();
            return Err(LimitRefusal::RateLimited {
                scope,
                retry_after: remaining.reset,
                rate_status,
            });
        }
    }
    Ok(rate_status)
}

/// Orders tools before servers, and exact patterns before those with `*`.
fn width(scope: &str) -> (bool, bool) {
    (!scope.contains('/'), scope.contains('*'))
}
