//! Bounds the notices in flight that nobody waits for: in all and for each tenant, so that no
//! tenant delays the notices of others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::common::ids::TenantId;

pub(super) struct NoticeQuota {
    max: usize,
    tenant_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_tenant: HashMap<TenantId, usize>,
}

/// Held while one notice is in flight.
pub struct NoticePermit {
    quota: Arc<NoticeQuota>,
    tenant: TenantId,
}

impl NoticeQuota {
    pub(super) fn new(max: usize, tenant_max: usize) -> Arc<Self> {
        Arc::new(Self { max, tenant_max, taken: Mutex::default() })
    }

    /// Returns `None` if the tenant, or all tenants together, have as many as allowed.
    pub(super) fn take(self: &Arc<Self>, tenant: &TenantId) -> Option<NoticePermit> {
        let mut taken = self.taken.lock();
        let of_tenant = taken.by_tenant.get(tenant).copied().unwrap_or_default();
        if taken.all >= self.max || of_tenant >= self.tenant_max {
            return None;
        }
        taken.all += 1;
        taken.by_tenant.insert(tenant.clone(), of_tenant + 1);
        Some(NoticePermit { quota: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for NoticePermit {
    fn drop(&mut self) {
        let mut taken = self.quota.taken.lock();
        taken.all -= 1;
        if let Some(of_tenant) = taken.by_tenant.get_mut(&self.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::replica;

    #[test]
    fn one_tenant_cannot_take_the_permits_of_another_and_leaves_nothing_behind() {
        let quota = NoticeQuota::new(5, 2);
        let [a, b, c] = ["a", "b", "c"].map(|tenant| TenantId::parse(tenant).unwrap());
        let mut taken: Vec<_> = [&a, &a, &b, &b].map(|it| quota.take(it).unwrap()).into();
        assert!(quota.take(&a).is_none() && quota.take(&b).is_none());
        taken.push(quota.take(&c).unwrap());
        assert!(quota.take(&c).is_none(), "there are no more in all");
        drop(taken.remove(0));
        taken.push(quota.take(&a).unwrap());
        drop(taken);
        let taken = quota.taken.lock();
        assert!(taken.all == 0 && taken.by_tenant.is_empty());
    }

    #[tokio::test]
    async fn notices_of_use_have_a_quota_of_their_own() {
        let (replica, tenant) = (replica("a key"), TenantId::parse("acme").unwrap());
        let _permit = replica.notice_permit(&tenant).unwrap();
        assert!(replica.notice_permit(&tenant).is_none());
        assert!(replica.use_notice_permit(&tenant).is_some());
    }
}
