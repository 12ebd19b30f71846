//! What each tenant uses of one server, to be looked up without a lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::common::ids::TenantId;

/// A tenant that has asked for a slot since then counts as a user of the server.
const LATELY: Duration = Duration::from_secs(10);
/// Time is counted in steps of this length, so that it is written down seldom.
const TICK: Duration = Duration::from_millis(100);
const LATELY_TICKS: u32 = (LATELY.as_millis() / TICK.as_millis()) as u32;
/// Tenants that are remembered before those that are not there any more are forgotten.
const TENANTS_MAX: usize = 1024;

/// One tenant's share.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) tenant: TenantId,
    /// Names it, for as long as it is not retired.
    pub(super) number: u32,
    /// Slots in the lower half, those of calls that were given up included; reasons to keep it in the upper.
    uses: AtomicU64,
    /// The tick in which it last asked for a slot, or used one that others wanted.
    used: AtomicU32,
    /// What it has used, in nanoseconds of a slot for each unit of its weight. Moved under the lock of the line.
    pub(super) account: AtomicU64,
}

const ONE_PIN: u64 = 1 << 32;
/// The share is not in the table any more, and nobody may use it.
const RETIRED: u64 = 1 << 63;

impl Share {
    /// Counts one more slot; gives how many there were before. Not if retired.
    pub(super) fn hold(&self) -> Option<u32> {
        let before = self.uses.fetch_add(1, Ordering::AcqRel);
        (before < RETIRED).then_some(before as u32)
    }

    /// Counts one slot less.
    pub(super) fn let_go(&self) {
        self.uses.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many slots it holds.
    pub(super) fn held(&self) -> u32 {
        self.uses.load(Ordering::Acquire) as u32
    }

    /// Keeps it from being retired, unless it is already.
    pub(super) fn pin(&self) -> bool {
        self.uses.fetch_add(ONE_PIN, Ordering::AcqRel) < RETIRED
    }

    /// Undoes [`Share::pin`].
    pub(super) fn unpin(&self) {
        self.uses.fetch_sub(ONE_PIN, Ordering::AcqRel);
    }

    /// Only if nobody uses it; whoever comes too late sees it.
    fn retire(&self) -> bool {
        self.uses.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// All of them.
pub(super) struct Shares {
    began: Instant,
    by_tenant: ArcSwap<HashMap<TenantId, Arc<Share>>>,
    adding: Mutex<Adding>,
    /// Who asked last and in which tick: the number in the upper half. 0 before anybody did.
    last: AtomicU64,
    /// The tick until which there is more than one user.
    shared_until: AtomicU32,
}

/// What is held while a tenant is added.
struct Adding {
    /// The number of the newest.
    number: u32,
    /// When there are so many, those that are not there any more are forgotten.
    purge_at: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            by_tenant: ArcSwap::default(),
            adding: Mutex::new(Adding { number: 0, purge_at: TENANTS_MAX }),
            last: AtomicU64::new(0),
            shared_until: AtomicU32::new(0),
        }
    }
}

impl Shares {
    /// A tenant's share.
    pub(super) fn of(&self, tenant: &TenantId) -> Arc<Share> {
        if let Some(share) = self.by_tenant.load().get(tenant) {
            return share.clone();
        }
        self.add(tenant)
    }

    /// The same, where the table may still show a share that is retired.
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
            used: AtomicU32::new(self.now()),
            account: AtomicU64::new(0),
        });
        table.insert(tenant.clone(), share.clone());
        self.by_tenant.store(Arc::new(table));
        share
    }

    /// Notes that a tenant asks for a slot. Tells whether it had not done so for long, and holds none.
    pub(super) fn note_use(&self, share: &Share) -> bool {
        let now = self.now();
        let was_idle = share.is_idle(now) && share.held() == 0;
        if share.used.load(Ordering::Relaxed) != now {
            share.used.store(now, Ordering::Relaxed);
        }
        let this = (u64::from(share.number) << 32) | u64::from(now);
        if self.last.load(Ordering::Relaxed) != this {
            let before = self.last.swap(this, Ordering::AcqRel);
            if before != 0 && (before >> 32) as u32 != share.number {
                let until = (before as u32).saturating_add(LATELY_TICKS);
                self.shared_until.fetch_max(until, Ordering::AcqRel);
            }
        }
        was_idle
    }

    /// Notes that a tenant has just been using a slot.
    pub(super) fn note_end(&self, share: &Share) {
        share.used.store(self.now(), Ordering::Relaxed);
    }

    /// Whether a tenant other than this one has asked for a slot lately. This one has, or waits for one.
    pub(super) fn others_came(&self, share: &Share) -> bool {
        let last = self.last.load(Ordering::Acquire);
        let mut until = self.shared_until.load(Ordering::Acquire);
        if (last >> 32) as u32 != share.number {
            // It came after those who wait, however long ago they came.
            until = until.max((last as u32).saturating_add(LATELY_TICKS));
        }
        until != 0 && self.now() < until
    }

    /// When to look again whether others still are there.
    pub(super) fn look_again_at(&self) -> Instant {
        let until = self.began + TICK * self.shared_until.load(Ordering::Acquire);
        let now = Instant::now();
        if until > now { until } else { now + LATELY }
    }

    fn now(&self) -> u32 {
        (self.began.elapsed().as_millis() / TICK.as_millis()) as u32
    }

    /// The tenants in the table.
    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<Arc<Share>> {
        self.by_tenant.load().values().cloned().collect()
    }
}

impl Share {
    /// Whether its tenant neither holds a slot nor waits.
    #[cfg(test)]
    pub(super) fn is_unused(&self) -> bool {
        self.uses.load(Ordering::Acquire) == 0
    }

    fn is_idle(&self, now: u32) -> bool {
        self.used.load(Ordering::Relaxed) + LATELY_TICKS < now
    }
}
