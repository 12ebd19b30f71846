//! Counts calls in flight, from admission until their permits are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SharedLimits;
use super::shared::LimitLease;
use crate::common::ids::TenantId;
use crate::common::policy::Pattern;

/// A limit of calls in flight. Clones share the count, each with its own limit.
#[derive(Clone, Debug)]
pub(super) struct InFlightLimit {
    calls: Count,
    pub max: Option<u32>,
}

/// Counts calls on this replica, or over all replicas.
#[derive(Clone, Debug)]
enum Count {
    Here(Arc<AtomicU32>),
    Shared(Arc<LimitLease>),
}

/// One counted call.
#[derive(Debug)]
pub(super) struct TenantPermit(Count);

/// The permits of one call within the limits of its tenant. Held as long as the call runs, even if
/// nobody waits for it: the server still works on it.
#[derive(Debug)]
pub struct Admission {
    pub(super) _tenant: TenantPermit,
    /// For limits of single servers and tools.
    pub(super) scoped: Vec<TenantPermit>,
}

impl InFlightLimit {
    /// Without a pattern it is for all calls of the tenant.
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

    /// Returns the same count under another limit. Calls in flight stay, even beyond it.
    pub fn with_max(&self, max: Option<u32>) -> Self {
        if let Count::Shared(lease) = &self.calls {
            lease.set_limit(max);
        }
        Self { calls: self.calls.clone(), max }
    }

    /// Counts one more call, if the limit allows it. Waits only if replicas share the limit and
    /// this one has no leased permit left.
    pub async fn take(&self) -> Option<TenantPermit> {
        let is_taken = match &self.calls {
            Count::Here(count) => take(count, self.max),
            Count::Shared(lease) => lease.take(self.max).await,
        };
        is_taken.then(|| TenantPermit(self.calls.clone()))
    }
}

/// Compared before it is added: a refused call must not displace another.
fn take(count: &AtomicU32, max: Option<u32>) -> bool {
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

/// On the same node as the tenant's rates. A changed limit keeps its key.
fn key(tenant: &TenantId, pattern: Option<&Pattern>) -> String {
    let pattern = pattern.map(|pattern| format!(":{pattern}")).unwrap_or_default();
    format!("trunkline:{{{tenant}}}:in-flight{pattern}")
}
