//! The bounds on waiting calls, and the eviction of calls beyond them.
//!
//! The bounds are for all tenants together. The tenant with most is evicted in favour of tenants
//! with less, so a quiet tenant is never refused because another one fills the queue.

use std::collections::VecDeque;

use super::round_robin::{QueuedCall, RoundRobin, TenantQueue};

/// Calls that may wait for one backend. With more, waiting would only make the answers later.
pub const WAITING_MAX: usize = 4096;
/// Bytes of arguments that may wait for one backend.
pub const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

impl RoundRobin {
    /// Makes room for one more call of a tenant, with so many bytes, by evicting the newest calls
    /// of the tenants that have most. Returns how many of the evicted calls wanted a slot. Evicts
    /// none and returns `None` if that would not make enough room.
    pub(super) fn ensure_capacity(&mut self, number: u32, bytes: usize) -> Option<u64> {
        let (calls_then, bytes_then) = match self.tenants.get(&number) {
            Some(queue) => (queue.len() + 1, queue.bytes + bytes),
            None => (1, bytes),
        };
        let is_over = |this: &Self| this.bytes + bytes > WAITING_BYTES_MAX;
        if is_over(self) {
            let missing = self.bytes + bytes - WAITING_BYTES_MAX;
            let queues = self.tenants.values();
            let surplus: usize = queues.map(|queue| queue.bytes.saturating_sub(bytes_then)).sum();
            if surplus < missing {
                return None;
            }
        } else if self.calls >= WAITING_MAX {
            let most = self.tenants.values().map(TenantQueue::len).max().unwrap_or(0);
            if most <= calls_then {
                return None;
            }
        }
        let mut evicted = 0;
        while is_over(self) {
            evicted += u64::from(self.evict_one(|queue| queue.bytes));
        }
        if self.calls >= WAITING_MAX {
            evicted += u64::from(self.evict_one(TenantQueue::len));
        }
        Some(evicted)
    }

    /// Evicts the newest call of the tenant that has most; returns whether it wanted a slot.
    fn evict_one(&mut self, measure: impl Fn(&TenantQueue) -> usize) -> bool {
        let most = self.tenants.iter_mut().max_by_key(|(number, queue)| (measure(queue), **number));
        let Some((&number, queue)) = most else { return false };
        let newest = |calls: &VecDeque<QueuedCall>| calls.back().map(|call| call.key);
        let wanted_slot = newest(&queue.calls) > newest(&queue.early);
        let calls = if wanted_slot { &mut queue.calls } else { &mut queue.early };
        if let Some(call) = calls.pop_back() {
            self.note_removed(number, call.bytes);
        }
        wanted_slot
    }
}
