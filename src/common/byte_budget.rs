//! Bounds the bytes that the gateway holds for tenants: for each of them, and for all together.
//!
//! No tenant can use up what all have in common. A quarter of the common bound is kept for tenants
//! that hold nothing or little.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of all tenants together.
#[derive(Debug)]
pub struct ByteBudget {
    held: AtomicUsize,
    max: usize,
    tenant_max: usize,
}

/// The bytes of one tenant.
#[derive(Debug)]
pub struct TenantBytes {
    held: AtomicUsize,
    all: Arc<ByteBudget>,
}

/// Bytes that count until the permit is dropped.
#[derive(Debug)]
pub struct BytePermit {
    tenant: Arc<TenantBytes>,
    bytes: usize,
}

/// The bound that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The tenant's own bound, in bytes.
    Tenant { max: usize },
    /// The bound of all tenants, in bytes.
    All { max: usize },
}

impl ByteBudget {
    /// Bounds each tenant to `tenant_max` bytes, and all of them to `max`.
    pub fn new(tenant_max: usize, max: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), max, tenant_max })
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns an account for one tenant.
    pub fn tenant(self: &Arc<Self>) -> Arc<TenantBytes> {
        Arc::new(TenantBytes { held: AtomicUsize::new(0), all: self.clone() })
    }
}

impl TenantBytes {
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the bound that is reached already. Work whose size is not known yet should not begin
    /// then.
    pub fn full(&self) -> Option<NoRoom> {
        self.room(self.held(), self.all.held(), 1).err()
    }

    /// Counts `bytes` until the permit is dropped.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<BytePermit, NoRoom> {
        // Counted first and compared then, so that two at once cannot both take the last room.
        let held = self.held.fetch_add(bytes, Ordering::Relaxed);
        let all_held = self.all.held.fetch_add(bytes, Ordering::Relaxed);
        let permit = BytePermit { tenant: self.clone(), bytes };
        self.room(held, all_held, bytes).map(|()| permit)
    }

    fn room(&self, held: usize, all_held: usize, bytes: usize) -> Result<(), NoRoom> {
        let ByteBudget { max, tenant_max, .. } = *self.all;
        if held.saturating_add(bytes) > tenant_max {
            return Err(NoRoom::Tenant { max: tenant_max });
        }
        let holds_little = held == 0 || held + bytes <= tenant_max / 8;
        let open = if holds_little { max } else { max - max / 4 };
        if all_held.saturating_add(bytes) > open {
            return Err(NoRoom::All { max });
        }
        Ok(())
    }
}

impl Drop for BytePermit {
    fn drop(&mut self) {
        self.tenant.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.tenant.all.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_own_bound_and_gets_back_what_it_drops() {
        let all = ByteBudget::new(32, 128);
        let tenant = all.tenant();
        let permit = tenant.take(32).unwrap();
        assert_eq!(tenant.take(1).unwrap_err(), NoRoom::Tenant { max: 32 });
        assert_eq!(tenant.full(), Some(NoRoom::Tenant { max: 32 }));
        drop(permit);
        assert_eq!((tenant.full(), tenant.held(), all.held()), (None, 0, 0));
    }

    #[test]
    fn tenants_that_hold_much_leave_a_quarter_for_those_that_hold_little() {
        let all = ByteBudget::new(32, 128);
        let _held: Vec<_> = (0..3).map(|_| all.tenant().take(32).unwrap()).collect();
        let newcomer = all.tenant();
        let _first = newcomer.take(16).unwrap();
        assert_eq!(newcomer.take(1).unwrap_err(), NoRoom::All { max: 128 });
        let small = all.tenant();
        let _small = [small.take(2).unwrap(), small.take(2).unwrap()];
        assert_eq!(all.tenant().take(16).unwrap_err(), NoRoom::All { max: 128 });
        assert_eq!(all.held(), 116);
    }
}
