//! Bounds the bytes that the gateway holds for tenants: for each of them, and for all together.
//!
//! No tenant can use up what all have in common: the last quarter of the common bound is for
//! tenants that hold little. They divide it: a tenant may hold at most half of what is left.
//!
//! Refusals and short answers must get through where a large one no longer does. So a body that is
//! [`SMALL`] may use an eighth more than each bound. New work is refused an eighth before the
//! tenant's bound, so that answers on their way find room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::limit_use::LimitUse;

/// A body that takes at most this much may use an eighth more than each bound.
pub const SMALL: usize = 16 * 1024;

/// The bytes of all tenants together.
#[derive(Debug)]
pub struct ByteBudget {
    held: AtomicUsize,
    max: usize,
    tenant_max: usize,
    /// How often there was no room.
    refused: AtomicU64,
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
        let (held, refused) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { held, max, tenant_max, refused })
    }

    /// Returns the bound of one tenant.
    pub fn tenant_max(&self) -> usize {
        self.tenant_max
    }

    /// Returns how often there was no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns an account for one tenant.
    pub fn tenant(self: &Arc<Self>) -> Arc<TenantBytes> {
        Arc::new(TenantBytes { held: AtomicUsize::new(0), all: self.clone() })
    }

    /// Returns the sum with `bytes` more, if a tenant that holds `held` with them may add them.
    fn with(&self, all_held: usize, bytes: usize, held: usize, size: usize) -> Option<usize> {
        let max = bound(self.max, size);
        let sum = all_held.checked_add(bytes)?;
        let is_open = sum <= max - max / 4;
        let holds_little = held <= max.saturating_sub(all_held) / 2;
        (is_open || holds_little).then_some(sum)
    }
}

/// Returns the bound for something of this size.
fn bound(max: usize, size: usize) -> usize {
    if size <= SMALL { max.saturating_add(max / 8) } else { max }
}

impl TenantBytes {
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns the tenant's own bound, and the bytes that count.
    pub fn limit_use(&self, name: &'static str) -> LimitUse {
        LimitUse::new(name, self.all.tenant_max, self.held())
    }

    /// Returns the bound for which new work must not begin now, if any.
    pub fn full(&self) -> Option<NoRoom> {
        let ByteBudget { max, tenant_max, .. } = *self.all;
        let held = self.held();
        let all = || self.all.with(self.all.held(), SMALL, held + SMALL, SMALL + 1);
        let full = if held.saturating_add(tenant_max / 8) > tenant_max {
            NoRoom::Tenant { max: tenant_max }
        } else if all().is_none() {
            NoRoom::All { max }
        } else {
            return None;
        };
        Some(self.refuse(full))
    }

    fn refuse(&self, full: NoRoom) -> NoRoom {
        self.all.refused.fetch_add(1, Ordering::Relaxed);
        full
    }

    /// Counts `bytes` until the permit is dropped.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<BytePermit, NoRoom> {
        self.add(bytes, bytes)?;
        Ok(BytePermit { tenant: self.clone(), bytes })
    }

    /// Counts `bytes` although there may be no room, because they are held already.
    pub fn take_beyond(self: &Arc<Self>, bytes: usize) -> BytePermit {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        self.all.held.fetch_add(bytes, Ordering::Relaxed);
        BytePermit { tenant: self.clone(), bytes }
    }

    /// Counts `bytes` more for something that has `size` bytes with them. Compares before it adds:
    /// what is refused must not displace anything else.
    fn add(&self, bytes: usize, size: usize) -> Result<(), NoRoom> {
        let ByteBudget { max, tenant_max, .. } = *self.all;
        let own =
            |held: usize| held.checked_add(bytes).filter(|sum| *sum <= bound(tenant_max, size));
        let before = self.held.try_update(Ordering::Relaxed, Ordering::Relaxed, own);
        let before = before.map_err(|_| self.refuse(NoRoom::Tenant { max: tenant_max }))?;
        let all = |held| self.all.with(held, bytes, before + bytes, size);
        if self.all.held.try_update(Ordering::Relaxed, Ordering::Relaxed, all).is_err() {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.refuse(NoRoom::All { max }));
        }
        Ok(())
    }
}

impl BytePermit {
    #[cfg(test)]
    pub fn nothing() -> Self {
        ByteBudget::new(0, 0).tenant().take_beyond(0)
    }

    /// Returns whether the bytes count among those of this account.
    pub fn is_in(&self, account: &Arc<TenantBytes>) -> bool {
        Arc::ptr_eq(&self.tenant, account)
    }

    /// Counts `bytes` more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.tenant.add(bytes, self.bytes.saturating_add(bytes))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts so many bytes from now on.
    pub fn resize(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match self.bytes.checked_sub(bytes) {
            None => self.grow(bytes - self.bytes),
            Some(less) => {
                self.tenant.held.fetch_sub(less, Ordering::Relaxed);
                self.tenant.all.held.fetch_sub(less, Ordering::Relaxed);
                self.bytes = bytes;
                Ok(())
            }
        }
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

    const MIB: usize = 1024 * 1024;

    #[test]
    fn a_tenant_has_its_own_bound_and_gets_back_what_it_drops() {
        let all = ByteBudget::new(32 * MIB, 128 * MIB);
        let tenant = all.tenant();
        let permit = tenant.take(32 * MIB).unwrap();
        let full = NoRoom::Tenant { max: 32 * MIB };
        assert_eq!(tenant.take(SMALL + 1).unwrap_err(), full);
        assert_eq!(tenant.full(), Some(full));
        drop(permit);
        assert_eq!((tenant.full(), tenant.held(), all.held()), (None, 0, 0));
    }

    #[test]
    fn tenants_that_hold_much_leave_a_quarter_which_others_divide() {
        let all = ByteBudget::new(32 * MIB, 128 * MIB);
        let full = NoRoom::All { max: 128 * MIB };
        let hogs: Vec<_> = (0..3).map(|_| all.tenant()).collect();
        let _held: Vec<_> = hogs.iter().map(|hog| hog.take(32 * MIB).unwrap()).collect();
        let newcomer = all.tenant();
        let _first = newcomer.take(16 * MIB).unwrap();
        assert_eq!(newcomer.take(MIB).unwrap_err(), full);
        let small = all.tenant();
        let _small = [small.take(2 * MIB).unwrap(), small.take(2 * MIB).unwrap()];
        assert_eq!(all.tenant().take(16 * MIB).unwrap_err(), full);
        assert_eq!(all.held(), 116 * MIB);
        assert_eq!(all.tenant().full(), None, "little is always left for another");
    }

    #[test]
    fn new_work_is_refused_before_answers_are_and_refusals_get_through() {
        let all = ByteBudget::new(32 * MIB, 128 * MIB);
        let tenant = all.tenant();
        let _answers = tenant.take(29 * MIB).unwrap();
        assert_eq!(tenant.full(), Some(NoRoom::Tenant { max: 32 * MIB }));
        let _answer = tenant.take(3 * MIB).unwrap();
        let refusals: Vec<_> = (0..10_000).map_while(|_| tenant.take(SMALL).ok()).collect();
        assert_eq!(refusals.len(), 4 * MIB / SMALL);
    }

    #[test]
    fn bytes_that_are_refused_take_no_room_from_others() {
        let all = ByteBudget::new(32 * MIB, 40 * MIB);
        let (tenant, other) = (all.tenant(), all.tenant());
        let mut growing = tenant.take(20 * MIB).unwrap();
        assert_eq!(growing.grow(MIB * 13), Err(NoRoom::Tenant { max: 32 * MIB }));
        assert_eq!(growing.grow(MIB * 11), Err(NoRoom::All { max: 40 * MIB }));
        assert_eq!(growing.grow(MIB * 10), Ok(()));
        assert!(other.take(usize::MAX).is_err());
        assert_eq!((tenant.held(), other.held(), all.held()), (30 * MIB, 0, 30 * MIB));
        drop((growing, other.take_beyond(64 * MIB)));
        assert_eq!((tenant.held(), other.held(), all.held()), (0, 0, 0));
    }
}
