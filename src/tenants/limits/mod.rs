//! How much a tenant may do, kept: how many calls it may begin in a time, and how many it may have in flight.
//!
//! - `in_flight`: calls in flight, and the [`Admission`] that each of them carries
//! - `quota`, `counter`, `bucket`: a rate in numbers, what is used of one, and one by its names
//! - `unreported`: what Valkey must be told of when it is back
//! - `rate_status`: where the tenant stands, in headers
//! - [`shared`]: what all replicas share of both, in Valkey or Redis
//!
//! A call asks twice. [`Limits::admit_tenant`] comes before anything that costs: it is for the tenant as a whole, and takes a few
//! nanoseconds, unless little is remaining of a limit that replicas share. [`Limits::admit`] comes when it is known what is called.

mod bucket;
mod clock;
mod counter;
mod in_flight;
mod quota;
mod rate_status;
pub mod shared;
#[cfg(test)]
mod tests;
mod unreported;

use std::sync::Arc;
use std::time::Duration;

use self::bucket::{Bucket, TENANT};
use self::clock::Clock;
pub use self::in_flight::Admission;
use self::in_flight::InFlight;
pub use self::rate_status::RateStatus;
pub use self::shared::SharedLimits;
use crate::common::ids::TenantId;
use crate::common::policy::{Limit, Pattern, Policy};

/// The limits of one tenant, and what is used of them.
#[derive(Debug)]
pub struct Limits {
    tenant: TenantId,
    shared: Option<Arc<SharedLimits>>,
    clock: Clock,
    in_flight: InFlight,
    rate: Option<Arc<Bucket>>,
    /// The narrowest first.
    scoped: Vec<PatternLimit>,
}

/// The limit for calls that a pattern covers.
#[derive(Debug)]
struct PatternLimit {
    pattern: Pattern,
    /// The pattern as text.
    scope: String,
    in_flight: InFlight,
    rate: Option<Arc<Bucket>>,
}

/// Why a call may not begin now. It is the tenant's own limit, never the gateway's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// Too many calls are in flight.
    #[error(
        "{limit} calls are in flight, which is all that the limit for `{scope}` allows: wait until one has ended"
    )]
    Busy {
        /// The pattern that the limit is for, or `tenant`.
        scope: String,
        /// How many may be in flight.
        limit: u32,
        /// Where the tenant stands with its rates, as far as this replica knows: nothing was taken from them.
        rate_status: RateStatus,
    },
    /// Too many calls were made.
    #[error("the rate for `{scope}` is used up: try again in {retry_after:?}")]
    RateLimited {
        /// The pattern that the rate is for, or `tenant`.
        scope: String,
        /// When the call may come again, exactly. It may still be refused if others come before it.
        retry_after: Duration,
        /// Where the tenant stands.
        rate_status: RateStatus,
    },
}

impl Limits {
    /// The limits of a tenant that has used nothing of them, unless replicas share what is used.
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
            in_flight: InFlight::new(tenant, None, shared.as_ref()),
            shared,
            clock,
            rate: None,
            scoped: vec![],
        };
        nothing.with_policy(policy)
    }

    /// The limits after a change of the policy. Calls in flight stay counted, and rates that did not change stay used;
    /// those that did begin anew. A limit for a pattern counts the calls that came since it had one.
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
            || InFlight::new(&self.tenant, Some(pattern), self.shared.as_ref()),
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

    /// Counts one more call of the tenant, until the admission is dropped. Waits only for a limit that replicas share, if this
    /// one has no place remaining that it may use without asking.
    pub async fn admit_tenant(&self) -> Result<Admission, Refusal> {
        match self.in_flight.take().await {
            Some(tenant) => Ok(Admission { _tenant: tenant, scoped: vec![] }),
            None => Err(busy(TENANT, &self.in_flight, self.rate_status())),
        }
    }

    /// Where the tenant stands with the rate for all its calls, as far as this replica knows. Takes nothing.
    pub fn rate_status(&self) -> RateStatus {
        self.look(&self.rate)
    }

    /// Lets a call begin, if all limits that cover it allow it: first those of calls in flight, then the rates, the
    /// narrowest first. `tool` is `None` for what is no tool. A call that is refused keeps what it came with, and
    /// nothing more; what it has taken of a narrow rate before a wider one refused is gone, unless rates are shared.
    pub async fn admit(
        &self,
        admission: &mut Admission,
        server: &str,
        tool: Option<&str>,
    ) -> Result<RateStatus, Refusal> {
        // Most tenants, and all calls where nobody is limited.
        if self.scoped.is_empty() && self.rate.is_none() {
            return Ok(RateStatus::default());
        }
        let scoped = self.scoped.iter().filter(|scoped| scoped.pattern.covers(server, tool));
        let scoped: Vec<_> = scoped.collect();
        let rates = scoped.iter().filter_map(|scoped| scoped.rate.as_ref()).chain(&self.rate);
        let mut permits = vec![];
        for limited in scoped.iter().filter(|scoped| scoped.in_flight.max().is_some()) {
            match limited.in_flight.take().await {
                Some(permit) => permits.push(permit),
                None => {
                    return Err(busy(&limited.scope, &limited.in_flight, self.look(rates)));
                }
            }
        }
        let rate_status = self.spend(rates.collect()).await?;
        admission.scoped.extend(permits);
        Ok(rate_status)
    }

    /// What is remaining here of each bucket.
    fn look<'a>(&self, buckets: impl IntoIterator<Item = &'a Arc<Bucket>>) -> RateStatus {
        let replicas = self.shared.as_ref().map_or(1, |shared| shared.replicas());
        let remaining = |bucket: &Arc<Bucket>| (bucket.clone(), bucket.remaining(replicas));
        RateStatus(buckets.into_iter().map(remaining).collect())
    }

    /// Takes one call from each bucket.
    async fn spend(&self, buckets: Vec<&Arc<Bucket>>) -> Result<RateStatus, Refusal> {
        if buckets.is_empty() {
            return Ok(RateStatus::default());
        }
        let Some(shared) = &self.shared else { return take_all(&buckets, 1) };
        let replicas = shared.replicas();
        if let Some(answer) = shared.take_all(&buckets).await {
            if answer.is_ok() {
                // What is taken there is taken here too: if Valkey goes away now, nobody begins with a full bucket.
                let _ = take_all(&buckets, replicas);
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

fn busy(scope: &str, in_flight: &InFlight, rate_status: RateStatus) -> Refusal {
    let limit = in_flight.max().unwrap_or(u32::MAX);
    Refusal::Busy { scope: scope.to_owned(), limit, rate_status }
}

/// Takes one call from each bucket, each of which is divided among so many replicas.
fn take_all(buckets: &[&Arc<Bucket>], replicas: u32) -> Result<RateStatus, Refusal> {
    let mut rate_status = RateStatus(Vec::with_capacity(buckets.len()));
    for bucket in buckets {
        let taken = bucket.take(replicas);
        let (Ok(remaining) | Err(remaining)) = taken;
        rate_status.0.push((Arc::clone(bucket), remaining));
        if taken.is_err() {
            let scope = bucket.scope.clone();
            return Err(Refusal::RateLimited { scope, retry_after: remaining.reset, rate_status });
        }
    }
    Ok(rate_status)
}

/// Tools before servers, and single ones before many.
fn width(scope: &str) -> (bool, bool) {
    (!scope.contains('/'), scope.contains('*'))
}
