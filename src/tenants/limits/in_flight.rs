//! A limit of calls in flight: of a tenant, or of the calls that a pattern covers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shared::{LimitLease, SharedLimits};
use super::states::RefusedCalls;
use crate::common::ids::TenantId;
use crate::common::limit_use::LimitUse;
use crate::common::policy::Pattern;

/// The name of these limits.
pub const IN_FLIGHT: &str = "in_flight";

/// A limit of calls in flight. Clones share the count, each with its own limit.
#[derive(Clone, Debug)]
pub(super) struct InFlightLimit {
    calls: Count,
    pub(super) max: Option<u32>,
    /// The calls that were refused lately.
    pub(super) refused: Arc<RefusedCalls>,
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

impl InFlightLimit {
    /// Makes a limit; without a pattern, for all calls of the tenant.
    pub(super) fn new(
        tenant: &TenantId,
        pattern: Option<&Pattern>,
        shared: Option<&Arc<SharedLimits>>,
    ) -> Self {
        let calls = match shared {
            None => Count::Here(Arc::default()),
            Some(shared) => Count::Shared(LimitLease::new(shared, in_flight_key(tenant, pattern))),
        };
        Self { calls, max: None, refused: Arc::default() }
    }

    /// Returns the same count under another limit. Calls in flight stay, even beyond it.
    pub(super) fn with_max(&self, max: Option<u32>) -> Self {
        if let Count::Shared(lease) = &self.calls {
            lease.set_limit(max);
        }
        Self { calls: self.calls.clone(), max, refused: self.refused.clone() }
    }

    /// Returns the limit, and the calls that this replica counts.
    pub(super) fn limit_use(&self, scope: &str) -> LimitUse {
        let value = self.max.map(u64::from);
        LimitUse { value, ..LimitUse::new(IN_FLIGHT, 0, self.now() as usize) }.of(scope)
    }

    /// Returns how many calls are counted, on this replica.
    pub(super) fn now(&self) -> u32 {
        match &self.calls {
            Count::Here(count) => count.load(Ordering::Relaxed),
            Count::Shared(lease) => lease.in_use(),
        }
    }

    /// Counts one more call, if the limit allows it. Waits only if replicas share the limit and
    /// this one has no leased permit left.
    pub(super) async fn take(&self) -> Option<TenantPermit> {
        let is_taken = match &self.calls {
            Count::Here(count) => take_here(count, self.max),
            Count::Shared(lease) => Box::pin(lease.take(self.max)).await,
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
    format!("trunkline:{{{}}}:in-flight{pattern}", tenant.unique_text())
}
