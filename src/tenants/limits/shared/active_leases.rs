//! The leases of which this replica holds or uses permits. They must be renewed at Valkey.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use futures_util::stream;
use parking_lot::Mutex;
use uuid::Uuid;

use super::lease::LimitLease;
use super::leased_permits::PermitCounts;

/// More at once would delay calls.
const SYNCS_MAX: usize = 32;

/// By lease id. Does not keep removed tenants alive.
#[derive(Debug, Default)]
pub(super) struct ActiveLeases(Mutex<HashMap<Uuid, Weak<LimitLease>>>);

impl LimitLease {
    /// Ensures that the lease is renewed.
    pub(super) fn register(self: &Arc<Self>) {
        // Loaded first: while Valkey is away, every call comes here.
        if !self.is_registered.load(Ordering::SeqCst)
            && !self.is_registered.swap(true, Ordering::SeqCst)
        {
            self.shared.active_leases.0.lock().insert(self.id, Arc::downgrade(self));
        }
    }

    /// Returns whether the lease is unused. Unregisters it first, so that a concurrent call
    /// registers it again.
    fn may_be_forgotten(&self) -> bool {
        self.is_registered.store(false, Ordering::SeqCst);
        let is_in_use = self.permits.counts() != PermitCounts { in_use: 0, leased: 0 };
        if is_in_use {
            self.is_registered.store(true, Ordering::SeqCst);
        }
        !is_in_use
    }
}

impl ActiveLeases {
    pub fn get(&self, id: Uuid) -> Option<Arc<LimitLease>> {
        self.0.lock().get(&id)?.upgrade()
    }

    /// Renews all leases: Valkey takes back those that are not renewed.
    pub async fn renew_all(&self) {
        let all = self.all();
        all.iter().for_each(|lease| lease.count_renewal());
        sync_all(all).await;
    }

    /// Syncs leases with surplus permits, and those not granted over this link.
    pub async fn return_surplus(&self) {
        let mut some = self.all();
        some.retain(|lease| lease.has_surplus() || !lease.is_in_force());
        sync_all(some).await;
    }

    /// Returns all permits that are not in use.
    pub async fn return_unused(&self) {
        let all = self.all();
        all.iter().for_each(|lease| lease.return_surplus_at_once());
        sync_all(all).await;
    }

    /// Returns all leases, and forgets unused ones.
    fn all(&self) -> Vec<Arc<LimitLease>> {
        let mut all = vec![];
        self.0.lock().retain(|_, lease| {
            let Some(lease) = lease.upgrade().filter(|lease| !lease.may_be_forgotten()) else {
                return false;
            };
            all.push(lease);
            true
        });
        all
    }
}

async fn sync_all(leases: Vec<Arc<LimitLease>>) {
    let sync = async |lease: Arc<LimitLease>| lease.sync().await;
    stream::iter(leases).for_each_concurrent(SYNCS_MAX, sync).await;
}

#[cfg(test)]
mod tests {
    use super::super::{ANSWER_TIMEOUT, SharedLimits};
    use super::*;
    use crate::config::Secret;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn unused_and_dropped_leases_are_forgotten() {
        let url = Secret::new("redis://127.0.0.1:1".to_owned());
        let shared = SharedLimits::connect(&url, ANSWER_TIMEOUT, &Metrics::new()).unwrap();
        let kept = || shared.active_leases.all().len();
        let lease = LimitLease::new(&shared, "limit".to_owned());
        assert_eq!(kept(), 0);
        for _ in 0..2 {
            lease.try_take(4, 0);
            lease.try_take(4, 0);
            assert_eq!((kept(), kept()), (1, 1));
            lease.release();
            assert_eq!(kept(), 1);
            lease.release();
            assert_eq!(kept(), 0);
        }
        lease.try_take(4, 0);
        drop(lease);
        assert_eq!(kept(), 0);
        assert!(shared.active_leases.0.lock().is_empty());
    }
}
