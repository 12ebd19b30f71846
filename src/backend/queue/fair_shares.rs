//! The slots and the time that each tenant uses of one backend, read without a lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::common::ids::TenantId;

/// A tenant is active for this long after it has asked for a slot.
const ACTIVE_FOR: Duration = Duration::from_secs(10);
/// Time is counted in steps of this length, so that it is stored seldom.
const TICK: Duration = Duration::from_millis(100);
const ACTIVE_TICKS: u32 = (ACTIVE_FOR.as_millis() / TICK.as_millis()) as u32;
/// The table is purged of idle tenants when it grows beyond this.
const TENANTS_MAX: usize = 1024;

/// The use that one tenant makes of the backend.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) tenant: TenantId,
    /// Identifies the share until it is retired.
    pub(super) number: u32,
    /// Lower half: the tenant's slots, those of abandoned calls included. Upper half: its holds.
    uses: AtomicU64,
    /// The tick in which it last asked for a slot, or used one that others wanted.
    last_used: AtomicU32,
    /// The time used, in nanoseconds of a slot per unit of its weight. Changed under the lock of
    /// the backlog.
    pub(super) account: AtomicU64,
    /// The number of tenants that hold slots of this backend.
    holders: Arc<AtomicU32>,
}

const ONE_HOLD: u64 = 1 << 32;
/// Set when the share has been removed from the table, and must not be used any more.
const RETIRED: u64 = 1 << 63;

impl Share {
    /// Counts one more slot; returns how many there were before, or `None` if retired.
    pub(super) fn add_slot(&self) -> Option<u32> {
        let before = self.uses.fetch_add(1, Ordering::AcqRel);
        if before >= RETIRED {
            return None;
        }
        let held = before as u32;
        if held == 0 {
            self.holders.fetch_add(1, Ordering::Relaxed);
        }
        Some(held)
    }

    pub(super) fn remove_slot(&self) {
        if self.uses.fetch_sub(1, Ordering::AcqRel) as u32 == 1 {
            self.holders.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn slots(&self) -> u32 {
        self.uses.load(Ordering::Acquire) as u32
    }

    /// Keeps the share from being retired; returns `false` if it is retired already.
    pub(super) fn hold(&self) -> bool {
        self.uses.fetch_add(ONE_HOLD, Ordering::AcqRel) < RETIRED
    }

    pub(super) fn release(&self) {
        self.uses.fetch_sub(ONE_HOLD, Ordering::AcqRel);
    }

    /// Retires the share, unless it is in use.
    fn retire(&self) -> bool {
        self.uses.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn is_idle(&self, now: u32) -> bool {
        self.last_used.load(Ordering::Relaxed) + ACTIVE_TICKS < now
    }

    /// Returns whether the tenant neither holds a slot nor waits.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.uses.load(Ordering::Acquire) == 0
    }
}

/// Returns the part of a reserve that each of so many tenants may use.
pub fn part_of_reserve(reserved: u32, holders: u32) -> u32 {
    let others = holders.saturating_sub(1).max(1);
    (reserved.saturating_sub(1) / others).max(1)
}

pub(super) struct FairShares {
    created: Instant,
    by_tenant: ArcSwap<HashMap<TenantId, Arc<Share>>>,
    adding: Mutex<Adding>,
    /// The last request: the number of its share in the upper half, its tick in the lower. 0 before
    /// the first.
    last_request: AtomicU64,
    /// The tick until which more than one tenant is active.
    shared_until: AtomicU32,
    /// The number of tenants that hold slots.
    holders: Arc<AtomicU32>,
}

struct Adding {
    /// The number of the newest share.
    number: u32,
    /// The size at which idle tenants are purged.
    purge_at: usize,
}

impl Default for FairShares {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            by_tenant: ArcSwap::default(),
            adding: Mutex::new(Adding { number: 0, purge_at: TENANTS_MAX }),
            last_request: AtomicU64::new(0),
            shared_until: AtomicU32::new(0),
            holders: Arc::default(),
        }
    }
}

impl FairShares {
    /// Returns a tenant's share.
    pub(super) fn of(&self, tenant: &TenantId) -> Arc<Share> {
        if let Some(share) = self.by_tenant.load().get(tenant) {
            return share.clone();
        }
        self.add(tenant)
    }

    /// Returns a tenant's share for a caller that found none, or a retired one.
    pub(super) fn add(&self, tenant: &TenantId) -> Arc<Share> {
        let mut adding = self.adding.lock();
        let table = self.by_tenant.load();
        if let Some(share) = table.get(tenant) {
            return share.clone();
        }
        let mut table = HashMap::clone(&table);
        if table.len() >= adding.purge_at {
            let now = self.now();
            table.retain(|_, share| !share.is_idle(now) || !share.retire());
            adding.purge_at = (2 * table.len()).max(TENANTS_MAX);
        }
        // 0 is nobody.
        adding.number = adding.number.wrapping_add(1).max(1);
        let share = Arc::new(Share {
            tenant: tenant.clone(),
            number: adding.number,
            uses: AtomicU64::new(0),
            last_used: AtomicU32::new(self.now()),
            account: AtomicU64::new(0),
            holders: self.holders.clone(),
        });
        table.insert(tenant.clone(), share.clone());
        self.by_tenant.store(Arc::new(table));
        share
    }

    /// Notes that a tenant asks for a slot; returns whether it was idle before and holds none.
    pub(super) fn note_request(&self, share: &Share) -> bool {
        let now = self.now();
        let was_idle = share.is_idle(now) && share.slots() == 0;
        if share.last_used.load(Ordering::Relaxed) != now {
            share.last_used.store(now, Ordering::Relaxed);
        }
        let request = (u64::from(share.number) << 32) | u64::from(now);
        if self.last_request.load(Ordering::Relaxed) != request {
            let before = self.last_request.swap(request, Ordering::AcqRel);
            if before != 0 && (before >> 32) as u32 != share.number {
                let until = (before as u32).saturating_add(ACTIVE_TICKS);
                self.shared_until.fetch_max(until, Ordering::AcqRel);
            }
        }
        was_idle
    }

    /// Returns the slots up to which one tenant may use a reserve of this size. The reserve is
    /// divided among the tenants that hold slots, except the one that holds most and has left
    /// nothing else, and one slot stays for a tenant that holds none.
    pub(super) fn part_of_reserve(&self, reserved: u32) -> u32 {
        part_of_reserve(reserved, self.holders.load(Ordering::Relaxed))
    }

    /// Notes that a tenant has just used a slot that others wanted.
    pub(super) fn note_use(&self, share: &Share) {
        share.last_used.store(self.now(), Ordering::Relaxed);
    }

    /// Returns whether a tenant other than this one is active.
    pub(super) fn others_active(&self, share: &Share) -> bool {
        let last = self.last_request.load(Ordering::Acquire);
        let mut until = self.shared_until.load(Ordering::Acquire);
        if (last >> 32) as u32 != share.number {
            // The other tenant asked after this one, however long this one has been waiting.
            until = until.max((last as u32).saturating_add(ACTIVE_TICKS));
        }
        until != 0 && self.now() < until
    }

    /// Returns when to check again whether others are active.
    pub(super) fn recheck_at(&self) -> Instant {
        let until = self.created + TICK * self.shared_until.load(Ordering::Acquire);
        let now = Instant::now();
        if until > now { until } else { now + ACTIVE_FOR }
    }

    fn now(&self) -> u32 {
        (self.created.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Arc<Share>> {
        self.by_tenant.load().values().cloned().collect()
    }
}
