//! One rate of one tenant.

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use governor::clock::Clock as _;
use governor::nanos::Nanos;

use super::clock::Clock;
use super::counter::Counter;
use super::quota::{Left, Quota};
use super::rate_status::policy_text;
use super::unreported::Untold;
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
    pub untold: Untold,
    clock: Clock,
    whole: Counter,
    /// Instead of `whole`, while replicas that cannot share must divide.
    part: ArcSwapOption<Part>,
}

/// One replica's part.
#[derive(Debug)]
struct Part {
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
            part: ArcSwapOption::empty(),
            untold: Untold::default(),
            clock: clock.clone(),
            scope,
            quota,
        })
    }

    /// Takes one call, if there is one; `replicas` take from the bucket, each its part. What is left is what is left of
    /// the part.
    pub fn take(&self, replicas: u32) -> Result<Left, Left> {
        match replicas {
            0 | 1 => self.whole.take(),
            _ => self.part(replicas).counter.take(),
        }
    }

    /// The same without taking anything.
    pub fn look(&self, replicas: u32) -> Left {
        match replicas {
            0 | 1 => self.whole.look(),
            _ => self.part(replicas).counter.look(),
        }
    }

    /// What its clock reads.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Made when it is first wanted: by most tenants, never.
    fn part(&self, replicas: u32) -> Arc<Part> {
        let known = self.part.load();
        if let Some(part) = known.as_ref().filter(|part| part.replicas == replicas) {
            return part.clone();
        }
        let counter = Counter::new(self.quota.divided(replicas), &self.clock);
        let part = Arc::new(Part { replicas, counter });
        let before = self.part.compare_and_swap(&*known, Some(part.clone()));
        // Whoever comes second uses what the first has made: two full buckets would admit twice as much.
        match before.as_ref().filter(|part| part.replicas == replicas) {
            Some(first) => first.clone(),
            None => part,
        }
    }
}

/// The part in braces is what a cluster goes by: all keys of a tenant are in one place. A rate that changes begins
/// anew, under another key.
fn key(tenant: &TenantId, pattern: Option<&Pattern>, quota: Quota) -> String {
    let mut key = format!("trunkline:{{{tenant}}}:{}ns:{}", quota.interval.as_nanos(), quota.burst);
    if let Some(pattern) = pattern {
        write!(key, ":{pattern}").expect("writing to memory does not fail");
    }
    key
}
