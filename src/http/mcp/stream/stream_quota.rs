//! Limits what a tenant may keep open beside calls: streams, and sessions that must be remembered.
//! Calls are bounded by the servers' queues.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::common::ids::TenantId;
use crate::common::limit_use::LimitUse;
use crate::gateway::CallError;

/// The most streams and remembered sessions of one tenant.
const STREAMS_MAX: usize = 1024;

/// The name of this limit.
const STREAMS: &str = "streams";

/// Counts the permits of each tenant.
#[derive(Debug, Default)]
pub(crate) struct StreamQuota {
    taken: Mutex<HashMap<TenantId, usize>>,
}

/// Counts as one stream until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    quota: Arc<StreamQuota>,
    tenant: TenantId,
}

impl StreamQuota {
    /// Returns a permit, unless the tenant holds as many as it may.
    pub(crate) fn take(self: &Arc<Self>, tenant: &TenantId) -> Result<StreamPermit, CallError> {
        let mut taken = self.taken.lock();
        let count = taken.entry(tenant.clone()).or_default();
        if *count == STREAMS_MAX {
            return Err(CallError::busy(
                LimitUse::reached(STREAMS, STREAMS_MAX),
                "too many streams are open, or sessions remembered; end some of them (DELETE)",
            ));
        }
        *count += 1;
        Ok(StreamPermit { quota: self.clone(), tenant: tenant.clone() })
    }

    pub(crate) fn limit_use(&self, tenant: &TenantId) -> LimitUse {
        let taken = self.taken.lock().get(tenant).copied();
        LimitUse::new(STREAMS, STREAMS_MAX, taken.unwrap_or_default())
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut taken = self.quota.taken.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_the_permits_of_another_and_leaves_nothing_behind() {
        let quota = Arc::new(StreamQuota::default());
        let [a, b] = ["a", "b"].map(TenantId::testing);
        let taken: Vec<_> = (0..STREAMS_MAX).map(|_| quota.take(&a).unwrap()).collect();
        assert!(quota.take(&a).is_err());
        assert!(quota.take(&b).is_ok());
        drop(taken);
        assert!(quota.taken.lock().is_empty());
    }
}
