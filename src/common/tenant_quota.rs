//! Bounds how many of something there are at once: in all and for each tenant. A tenant that holds
//! its own most leaves the rest to others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::common::ids::TenantId;

const NEVER_CLOSED: &str = "the semaphore is never closed";

#[derive(Debug)]
pub struct TenantQuota {
    all: Arc<Semaphore>,
    tenant_max: usize,
    /// Of tenants that hold permits, or wait for them.
    by_tenant: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

/// One of those of a tenant, until dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    // Dropped in this order.
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
    _permits: TenantPermits,
}

/// The permits of one tenant, forgotten when nobody uses them.
#[derive(Debug)]
struct TenantPermits {
    quota: Arc<TenantQuota>,
    tenant: TenantId,
    /// `None` while it is dropped.
    permits: Option<Arc<Semaphore>>,
}

impl TenantQuota {
    pub fn new(max: usize, tenant_max: usize) -> Arc<Self> {
        let all = Arc::new(Semaphore::new(max));
        Arc::new(Self { all, tenant_max, by_tenant: Mutex::default() })
    }

    /// Returns `None` if the tenant, or all tenants together, have as many as allowed.
    pub fn take(self: &Arc<Self>, tenant: &TenantId) -> Option<QuotaPermit> {
        let (permits, of_tenant) = self.permits_of(tenant);
        let of_tenant = of_tenant.try_acquire_owned().ok()?;
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        Some(QuotaPermit { _of_tenant: of_tenant, _of_all: of_all, _permits: permits })
    }

    /// Waits for a permit, behind those of the same tenant that wait already. Returns `None` if
    /// there is none in time.
    pub async fn wait(self: &Arc<Self>, tenant: &TenantId, most: Duration) -> Option<QuotaPermit> {
        timeout(most, self.acquire(tenant)).await.ok()
    }

    /// Waits for a permit, however long that takes.
    pub async fn acquire(self: &Arc<Self>, tenant: &TenantId) -> QuotaPermit {
        let (permits, of_tenant) = self.permits_of(tenant);
        let of_tenant = of_tenant.acquire_owned().await.expect(NEVER_CLOSED);
        // Among those who wait here, no tenant has more than it may hold.
        let of_all = self.all.clone().acquire_owned().await.expect(NEVER_CLOSED);
        QuotaPermit { _of_tenant: of_tenant, _of_all: of_all, _permits: permits }
    }

    fn permits_of(self: &Arc<Self>, tenant: &TenantId) -> (TenantPermits, Arc<Semaphore>) {
        let mut by_tenant = self.by_tenant.lock();
        let permits = by_tenant.entry(tenant.clone());
        let permits = permits.or_insert_with(|| Arc::new(Semaphore::new(self.tenant_max))).clone();
        let (quota, tenant) = (self.clone(), tenant.clone());
        (TenantPermits { quota, tenant, permits: Some(permits.clone()) }, permits)
    }
}

impl Drop for TenantPermits {
    fn drop(&mut self) {
        let mut by_tenant = self.quota.by_tenant.lock();
        // Under the lock, so that the last of several sees that it is the last.
        self.permits = None;
        if by_tenant.get(&self.tenant).is_some_and(|permits| Arc::strong_count(permits) == 1) {
            by_tenant.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(1);

    fn tenants<const N: usize>(names: [&str; N]) -> [TenantId; N] {
        names.map(TenantId::testing)
    }

    #[test]
    fn one_tenant_cannot_take_the_permits_of_another_and_leaves_nothing_behind() {
        let quota = TenantQuota::new(5, 2);
        let [a, b, c] = tenants(["a", "b", "c"]);
        let mut taken: Vec<_> = [&a, &a, &b, &b].map(|it| quota.take(it).unwrap()).into();
        assert!(quota.take(&a).is_none() && quota.take(&b).is_none());
        taken.push(quota.take(&c).unwrap());
        assert!(quota.take(&c).is_none(), "there are no more in all");
        drop(taken.remove(0));
        taken.push(quota.take(&a).unwrap());
        drop(taken);
        assert_eq!(quota.all.available_permits(), 5);
        assert!(quota.by_tenant.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_waits_for_its_own_permits_for_some_time() {
        let quota = TenantQuota::new(5, 1);
        let [a, b] = tenants(["a", "b"]);
        let first = quota.take(&a).unwrap();
        assert!(quota.wait(&b, SOON).await.is_some());
        assert!(quota.wait(&a, SOON).await.is_none());
        let (second, ()) = tokio::join!(quota.wait(&a, SOON), async { drop(first) });
        assert!(quota.take(&a).is_none());
        drop(second.unwrap());
        assert!(quota.by_tenant.lock().is_empty());
    }
}
