//! One rate limit of one tenant.

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use governor::clock::Clock as _;
use governor::nanos::Nanos;

use super::clock::Clock;
use super::counter::Counter;
use super::quota::{Quota, Remaining};
use super::rate_status::policy_text;
use super::unreported::Unreported;
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

/// A Valkey cluster hashes the part in braces: all keys of a tenant are on one node. A changed rate
/// has another key, and starts full.
fn key(tenant: &TenantId, pattern: Option<&Pattern>, quota: Quota) -> String {
    let mut key = format!("trunkline:{{{tenant}}}:{}ns:{}", quota.interval.as_nanos(), quota.burst);
    if let Some(pattern) = pattern {
        write!(key, ":{pattern}").expect("writing to memory does not fail");
    }
    key
}
