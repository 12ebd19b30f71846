//! One rate of one tenant.

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

/// What the limit for all calls of a tenant is called.
pub(super) const TENANT: &str = "tenant";

/// A rate, what is used of it here, and its names elsewhere.
#[derive(Debug)]
pub(super) struct Bucket {
    /// The pattern of the calls it is for, or [`TENANT`].
    pub scope: String,
    /// As much as there is.
    pub quota: Quota,
    /// What stands for it in `RateLimit-Policy`; begins with its name, in quotes.
    pub policy: String,
    /// How long the name is.
    pub name_len: usize,
    /// Where Valkey keeps it.
    pub key: String,
    /// What has been taken from here and not from there.
    pub unreported: Unreported,
    clock: Clock,
    whole: Counter,
    /// Instead of `whole`, while replicas that cannot share must divide.
    share: ArcSwapOption<Share>,
}

/// One replica's share.
#[derive(Debug)]
struct Share {
    /// Of how many.
    replicas: u32,
    counter: Counter,
}

impl Bucket {
    /// A full one, if the limit has a rate. Without a pattern it is for all calls of the tenant.
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

    /// Takes one call, if there is one; `replicas` take from the bucket, each its share. What is remaining is what is remaining of
    /// the share.
    pub fn take(&self, replicas: u32) -> Result<Remaining, Remaining> {
        match replicas {
            0 | 1 => self.whole.take(),
            _ => self.share(replicas).counter.take(),
        }
    }

    /// The same without taking anything.
    pub fn remaining(&self, replicas: u32) -> Remaining {
        match replicas {
            0 | 1 => self.whole.remaining(),
            _ => self.share(replicas).counter.remaining(),
        }
    }

    /// What its clock reads.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Made when it is first wanted: by most tenants, never.
    fn share(&self, replicas: u32) -> Arc<Share> {
        let known = self.share.load();
        if let Some(share) = known.as_ref().filter(|share| share.replicas == replicas) {
            return share.clone();
        }
        let counter = Counter::new(self.quota.divided(replicas), &self.clock);
        let share = Arc::new(Share { replicas, counter });
        let before = self.share.compare_and_swap(&*known, Some(share.clone()));
        // Whoever comes second uses what the first has made: two full buckets would admit twice as much.
        match before.as_ref().filter(|share| share.replicas == replicas) {
            Some(first) => first.clone(),
            None => share,
        }
    }
}

/// The share in braces is what a cluster goes by: all keys of a tenant are in one place. A rate that changes begins
/// anew, under another key.
fn key(tenant: &TenantId, pattern: Option<&Pattern>, quota: Quota) -> String {
    let mut key = format!("trunkline:{{{tenant}}}:{}ns:{}", quota.interval.as_nanos(), quota.burst);
    if let Some(pattern) = pattern {
        write!(key, ":{pattern}").expect("writing to memory does not fail");
    }
    key
}
