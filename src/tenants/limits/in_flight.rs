//! Count in flight: counted when they begin, until they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SharedLimits;
use super::shared::LimitLease;
use crate::common::ids::TenantId;
use crate::common::policy::Pattern;

/// How many calls are in flight, and how many may be. Copies count together, each by its own limit.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    calls: Count,
    max: Option<u32>,
}

/// Where they are counted.
#[derive(Clone, Debug)]
enum Count {
    Here(Arc<AtomicU32>),
    Shared(Arc<LimitLease>),
}

/// One call that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct TenantPermit(Count);

/// The place of one call within the limits of its tenant, until it is dropped. It goes with the call, also when nobody
/// waits for that any more: what a server still works on counts.
#[derive(Debug)]
pub struct Admission {
    pub(super) _tenant: TenantPermit,
    /// Of limits for single servers and tools.
    pub(super) scoped: Vec<TenantPermit>,
}

impl InFlight {
    /// None yet, and no limit. Without a pattern it is for all calls of the tenant.
    pub fn new(
        tenant: &TenantId,
        pattern: Option<&Pattern>,
        shared: Option<&Arc<SharedLimits>>,
    ) -> Self {
        let calls = match shared {
            None => Count::Here(Arc::default()),
            Some(shared) => Count::Shared(LimitLease::new(shared, key(tenant, pattern))),
        };
        Self { calls, max: None }
    }

    /// The same calls under another limit. Those in flight stay, also if there are more of them than the limit.
    pub fn with_max(&self, max: Option<u32>) -> Self {
        if let Count::Shared(lease) = &self.calls {
            lease.set_limit(max);
        }
        Self { calls: self.calls.clone(), max }
    }

    /// How many there may be, if that is limited at all.
    pub fn max(&self) -> Option<u32> {
        self.max
    }

    /// Counts one more call, if there is a place for it. Waits only where replicas share the limit, and only if this one
    /// has no place remaining that it may use without asking.
    pub async fn take(&self) -> Option<TenantPermit> {
        let is_taken = match &self.calls {
            Count::Here(count) => take(count, self.max),
            Count::Shared(lease) => lease.take(self.max).await,
        };
        is_taken.then(|| TenantPermit(self.calls.clone()))
    }
}

/// Not added first and looked at then: a call that is refused must not take the place of one that is not.
fn take(count: &AtomicU32, max: Option<u32>) -> bool {
    let limit = max.unwrap_or(u32::MAX);
    let one_more = |count| (count < limit).then(|| count + 1);
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        match &self.0 {
            Count::Here(count) => drop(count.fetch_sub(1, Ordering::Relaxed)),
            Count::Shared(lease) => lease.give(),
        }
    }
}

/// In one place with the tenant's rates, and apart from all of them. A limit that changes is still the same one.
fn key(tenant: &TenantId, pattern: Option<&Pattern>) -> String {
    let pattern = pattern.map(|pattern| format!(":{pattern}")).unwrap_or_default();
    format!("trunkline:{{{tenant}}}:in-flight{pattern}")
}
