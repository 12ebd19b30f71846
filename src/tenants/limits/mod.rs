//! A tenant's limits: the rate of its calls, and the number of its calls in flight.
//!
//! - `quota`, `bucket`: a rate as numbers, and its usage
//! - `in_flight`: a limit of calls in flight
//! - `states`: how the limits stand, to explain a decision
//! - `rate_headers`: the `RateLimit` headers
//! - [`shared`]: limits that all replicas share, in Valkey or Redis
//!
//! A call is charged twice. [`Limits::admit`] comes before its parameters are taken apart, and
//! concerns the tenant as a whole. It takes nanoseconds, unless limits are shared.
//! [`Limits::admit_to`] comes when the tool is known, and concerns the narrower limits.

mod bucket;
mod in_flight;
mod quota;
mod rate_headers;
#[cfg(test)]
mod remedy_tests;
pub mod shared;
mod states;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use self::bucket::{Bucket, Clock, TENANT};
pub use self::in_flight::IN_FLIGHT;
use self::in_flight::{InFlightLimit, TenantPermit};
use self::quota::Remaining;
pub use self::shared::SharedLimits;
pub use self::states::RefusedBy;
use crate::common::ids::TenantId;
use crate::common::limit_use::LimitUse;
use crate::common::policy::{Limit, Pattern, Policy};

#[derive(Debug)]
pub struct Limits {
    tenant: TenantId,
    shared: Option<Arc<SharedLimits>>,
    clock: Clock,
    in_flight: InFlightLimit,
    rate: Option<Arc<Bucket>>,
    /// The rate of lists. Each replica has its own.
    lists: Option<Arc<Bucket>>,
    /// The narrowest pattern first.
    scoped: Vec<PatternLimit>,
}

/// The cost of a request, to its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// One of the calls in flight, and one of the rate.
    Call,
    /// One of the calls in flight. The rate was charged before: by the replica that received the
    /// request, or for the list that needs this call.
    PaidCall,
    /// One of the rate: for a call that is kept, or a question about one. Its permit is taken when
    /// it runs.
    KeptCall,
    /// One of the rate of lists.
    List,
    /// Nothing: a list that another replica has charged.
    PaidList,
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

/// The permits of one request within the limits of its tenant. Held as long as the call runs, even
/// if nobody waits for it: the server still works on it.
#[derive(Debug)]
pub struct Admission {
    /// `None` for a list, and for a kept call that does not run.
    _tenant: Option<TenantPermit>,
    /// For limits of single servers and tools.
    scoped: Vec<TenantPermit>,
    charged: RateStatus,
}

impl Admission {
    /// Returns the rates that were charged for the request, and leaves none.
    pub fn take_rate_status(&mut self) -> RateStatus {
        std::mem::take(&mut self.charged)
    }
}

/// The remaining calls of each rate that covers a call, the narrowest first.
#[derive(Clone, Debug, Default)]
pub struct RateStatus(Vec<(Arc<Bucket>, Remaining)>);

impl RateStatus {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rate of this scope.
    pub fn limit_use(&self, scope: &str) -> Option<LimitUse> {
        let (bucket, remaining) = self.0.iter().find(|(bucket, _)| bucket.scope == scope)?;
        Some(bucket.limit_use(*remaining))
    }

    /// Names the rate of this scope, with its value: `your rate of 5/s for search`.
    pub fn in_words(&self, scope: &str) -> String {
        let limit = self.limit_use(scope);
        let is_of_lists = limit.as_ref().is_some_and(|limit| limit.name != "rate");
        let value = limit.and_then(|limit| limit.rate).map(|rate| format!(" of {}", rate.rate));
        let value = value.unwrap_or_default();
        match scope {
            _ if is_of_lists => format!("your rate{value} for lists"),
            TENANT => format!("your rate{value}"),
            _ => format!("your rate{value} for `{scope}`"),
        }
    }

    /// Puts the rates that are narrower in front.
    pub fn insert_narrower(&mut self, mut narrower: Self) {
        if narrower.is_empty() {
            return;
        }
        narrower.0.append(&mut self.0);
        *self = narrower;
    }
}

fn busy_in_words(scope: &str, limit: u32) -> String {
    let of = if scope == TENANT { String::new() } else { format!(" for `{scope}`") };
    format!("you have {limit} calls in flight{of}, as many as `max_in_flight` allows")
}

/// The reason why a call may not begin now: always the tenant's own limit, never the gateway's.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LimitRefusal {
    #[error("{}: wait until one has ended", busy_in_words(scope, *limit))]
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
            lists: None,
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
            lists: Bucket::of_lists(&self.tenant, &policy.limit, &self.clock)
                .map(|bucket| unchanged_or(bucket, self.lists.as_ref())),
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
        Some(unchanged_or(bucket, before))
    }

    /// Returns how many calls of the tenant are in flight, on this replica.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.now()
    }

    /// Charges a request to the tenant, before anything costly is done for it. The permit comes
    /// first, because it can be given back and a charged rate cannot. Waits only for shared limits.
    pub async fn admit(&self, cost: Cost) -> Result<Admission, LimitRefusal> {
        let tenant = match cost {
            Cost::List | Cost::PaidList | Cost::KeptCall => None,
            Cost::Call | Cost::PaidCall => match self.in_flight.take().await {
                Some(permit) => Some(permit),
                None => return Err(busy(TENANT, &self.in_flight, self.rate_status())),
            },
        };
        let mut admission =
            Admission { _tenant: tenant, scoped: vec![], charged: RateStatus::default() };
        match cost {
            Cost::Call | Cost::KeptCall => self.charge_again(&mut admission).await?,
            // Shared lists would cost a round trip, and lists do no harm that replicas share.
            Cost::List => admission.charged = take_all(&Vec::from_iter(&self.lists), 1)?,
            Cost::PaidCall => admission.charged = self.rate_status(),
            Cost::PaidList => {}
        }
        Ok(admission)
    }

    /// Charges one more call to the tenant's rate: a request may stand for several calls.
    pub async fn charge_again(&self, admission: &mut Admission) -> Result<(), LimitRefusal> {
        admission.charged = self.spend(&Vec::from_iter(&self.rate)).await?;
        Ok(())
    }

    /// Returns the status of the tenant's overall rate, as far as this replica knows. Takes
    /// nothing.
    pub fn rate_status(&self) -> RateStatus {
        self.look(&self.rate)
    }

    /// Returns all limits and where they stand, as far as this replica knows. Takes nothing.
    pub fn all(&self) -> Vec<LimitUse> {
        let mut all = vec![self.in_flight.limit_use(TENANT)];
        let limited = self.scoped.iter().filter(|scoped| scoped.in_flight.max.is_some());
        all.extend(limited.map(|limited| limited.in_flight.limit_use(&limited.scope)));
        let scoped = self.scoped.iter().filter_map(|scoped| scoped.rate.as_ref());
        let rates = self.look(self.rate.iter().chain(scoped).chain(&self.lists)).0;
        all.extend(rates.iter().map(|(bucket, remaining)| bucket.limit_use(*remaining)));
        all
    }

    /// Admits an admitted call to a server if the narrower limits that cover it allow it: first
    /// those of calls in flight, then the rates, the narrowest first. `tool` is `None` for other
    /// requests. A refused call keeps the permit it came with, and stays charged to the tenant.
    /// What it took from a narrow rate before a wider one refused is lost, unless rates are shared.
    pub async fn admit_to(
        &self,
        admission: &mut Admission,
        server: &str,
        tool: Option<&str>,
    ) -> Result<(), LimitRefusal> {
        // The common case.
        if self.scoped.is_empty() {
            return Ok(());
        }
        let scoped = self.scoped.iter().filter(|scoped| scoped.pattern.covers(server, tool));
        let scoped: Vec<_> = scoped.collect();
        let rates: Vec<_> = scoped.iter().filter_map(|scoped| scoped.rate.as_ref()).collect();
        let mut permits = vec![];
        for limited in scoped.iter().filter(|scoped| scoped.in_flight.max.is_some()) {
            match limited.in_flight.take().await {
                Some(permit) => permits.push(permit),
                None => {
                    let rates = rates.into_iter().chain(&self.rate);
                    return Err(busy(&limited.scope, &limited.in_flight, self.look(rates)));
                }
            }
        }
        let narrower = self.spend(&rates).await.map_err(|refusal| self.with_tenant(refusal))?;
        admission.scoped.extend(permits);
        admission.charged.insert_narrower(narrower);
        Ok(())
    }

    /// Adds the tenant's rate, which was charged, to the refusal by a narrower one.
    fn with_tenant(&self, mut refusal: LimitRefusal) -> LimitRefusal {
        let (LimitRefusal::Busy { rate_status, .. }
        | LimitRefusal::RateLimited { rate_status, .. }) = &mut refusal;
        rate_status.0.extend(self.rate_status().0);
        refusal
    }

    /// Returns what remains on this replica.
    fn look<'a>(&self, buckets: impl IntoIterator<Item = &'a Arc<Bucket>>) -> RateStatus {
        let replicas = self.shared.as_ref().map_or(1, |shared| shared.replicas());
        let remaining = |bucket: &Arc<Bucket>| (bucket.clone(), bucket.remaining(replicas));
        RateStatus(buckets.into_iter().map(remaining).collect())
    }

    async fn spend(&self, buckets: &[&Arc<Bucket>]) -> Result<RateStatus, LimitRefusal> {
        if buckets.is_empty() {
            return Ok(RateStatus::default());
        }
        let Some(shared) = &self.shared else { return take_all(buckets, 1) };
        let replicas = shared.replicas();
        if let Some(answer) = Box::pin(shared.take_all(buckets)).await {
            if answer.is_ok() {
                // Also counted here, so that no bucket is full if Valkey goes away now.
                for bucket in buckets {
                    let _ = bucket.take(replicas);
                }
            }
            return answer;
        }
        let answer = take_all(buckets, replicas);
        if answer.is_ok() {
            buckets.iter().for_each(|bucket| bucket.unreported.add(1, bucket.now()));
        }
        answer
    }
}

fn busy(scope: &str, in_flight: &InFlightLimit, rate_status: RateStatus) -> LimitRefusal {
    let limit = in_flight.max.unwrap_or(u32::MAX);
    LimitRefusal::Busy { scope: scope.to_owned(), limit, rate_status }
}

/// Keeps the usage of a rate that stays.
fn unchanged_or(bucket: Bucket, before: Option<&Arc<Bucket>>) -> Arc<Bucket> {
    let unchanged = before.filter(|before| before.quota == bucket.quota);
    unchanged.cloned().unwrap_or_else(|| Arc::new(bucket))
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
