//! How many lasting things each tenant may have: streams, and sessions that must be remembered. Calls are
//! bounded by the servers' queues; these are not calls.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::common::ids::TenantId;

/// Streams and remembered sessions of one tenant.
pub(crate) const SEATS_MAX: usize = 1024;

/// All that are taken.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    taken: Mutex<HashMap<TenantId, usize>>,
}

/// One of them; free again when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    tenant: TenantId,
}

impl Seats {
    /// A seat for `tenant`, if it may have another.
    pub(crate) fn take(self: &Arc<Self>, tenant: &TenantId) -> Option<Seat> {
        let mut taken = self.taken.lock();
        let of_tenant = taken.entry(tenant.clone()).or_default();
        if *of_tenant == SEATS_MAX {
            return None;
        }
        *of_tenant += 1;
        Some(Seat { seats: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        if let Some(of_tenant) = taken.get_mut(&self.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_take_the_seats_of_another_and_leaves_nothing_behind() {
        let seats = Arc::new(Seats::default());
        let [a, b] = ["a", "b"].map(|tenant| TenantId::parse(tenant).unwrap());
        let taken: Vec<_> = (0..SEATS_MAX).map(|_| seats.take(&a).unwrap()).collect();
        assert!(seats.take(&a).is_none());
        assert!(seats.take(&b).is_some());
        drop(taken);
        assert!(seats.taken.lock().is_empty());
    }
}
