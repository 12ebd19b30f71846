//! Calls in flight: counted when they begin, until they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Shared;
use super::shared::Lease;
use crate::common::ids::TenantId;
use crate::common::policy::Pattern;

/// How many calls are in flight, and how many may be. Copies count together, each by its own limit.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    calls: Calls,
    max: Option<u32>,
}

/// Where they are counted.
#[derive(Clone, Debug)]
enum Calls {
    Here(Arc<AtomicU32>),
    Shared(Arc<Lease>),
}

/// One call that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Permit(Calls);

/// The place of one call within the limits of its tenant, until it is dropped. It goes with the call, also when nobody
/// waits for that any more: what a server still works on counts.
#[derive(Debug)]
pub struct Admission {
    pub(super) _tenant: Permit,
    /// Of limits for single servers and tools.
    pub(super) scoped: Vec<Permit>,
}

impl InFlight {
    /// None yet, and no limit. Without a pattern it is for all calls of the tenant.
    pub fn new(tenant: &TenantId, pattern: Option<&Pattern>, shared: Option<&Arc<Shared>>) -> Self {
        let calls = match shared {
            None => Calls::Here(Arc::default()),
            Some(shared) => Calls::Shared(Lease::new(shared, key(tenant, pattern))),
        };
        Self { calls, max: None }
    }

    /// The same calls under another limit. Those in flight stay, also if there are more of them than the limit.
    pub fn with_max(&self, max: Option<u32>) -> Self {
        if let Calls::Shared(lease) = &self.calls {
            lease.set_limit(max);
        }
        Self { calls: self.calls.clone(), max }
    }

    /// How many there may be, if that is limited at all.
    pub fn max(&self) -> Option<u32> {
        self.max
    }

    /// Counts one more call, if there is a place for it. Waits only where replicas share the limit, and only if this one
    /// has no place left that it may use without asking.
    pub async fn take(&self) -> Option<Permit> {
        let is_taken = match &self.calls {
            Calls::Here(count) => take(count, self.max),
            Calls::Shared(lease) => lease.take(self.max).await,
        };
        is_taken.then(|| Permit(self.calls.clone()))
    }
}

/// Not added first and looked at then: a call that is refused must not take the place of one that is not.
fn take(count: &AtomicU32, max: Option<u32>) -> bool {
    let limit = max.unwrap_or(u32::MAX);
    let one_more = |count| (count < limit).then(|| count + 1);
    count.try_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl Drop for Permit {
    fn drop(&mut self) {
        match &self.0 {
            Calls::Here(count) => drop(count.fetch_sub(1, Ordering::Relaxed)),
            Calls::Shared(lease) => lease.give(),
        }
    }
}

/// In one place with the tenant's rates, and apart from all of them. A limit that changes is still the same one.
fn key(tenant: &TenantId, pattern: Option<&Pattern>) -> String {
    let pattern = pattern.map(|pattern| format!(":{pattern}")).unwrap_or_default();
    format!("trunkline:{{{tenant}}}:in-flight{pattern}")
}
