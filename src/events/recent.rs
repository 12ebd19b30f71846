//! Failures, refusals and slow calls of the last while, to be found by their ids.
//!
//! Each tenant has a share: whoever has the most loses its oldest call when memory is full. So a
//! flood pushes out only its own calls.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{EndedCall, Event, Sink};
use crate::common::ids::{CallId, TenantId};

/// The memory of all calls together.
const BYTES_MAX: usize = 16 << 20;
/// Tenants rarely wait for each other's lock.
const SHARDS: usize = 16;
/// The memory of a tenant beside its calls.
const TENANT_COST: usize = 256;

pub struct RecentCalls {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    by_tenant: HashMap<TenantId, TenantCalls>,
    bytes: usize,
}

#[derive(Default)]
struct TenantCalls {
    /// The oldest first.
    calls: VecDeque<(CallId, Arc<EndedCall>)>,
    bytes: usize,
}

impl Default for RecentCalls {
    fn default() -> Self {
        Self { hasher: RandomState::new(), shards: Default::default() }
    }
}

impl Sink for RecentCalls {
    fn hear(&self, event: &Event) {
        if let Event::CallEnded(call) = event {
            self.shard_of(&call.tenant).lock().add(call);
        }
    }
}

impl RecentCalls {
    /// Returns a tenant's call. Another tenant's call is not found.
    pub fn find(&self, tenant: &TenantId, id: CallId) -> Option<Arc<EndedCall>> {
        self.shard_of(tenant).lock().by_tenant.get(tenant)?.find(id)
    }

    /// Returns a call, whosever it is.
    pub fn find_any(&self, id: CallId) -> Option<Arc<EndedCall>> {
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            shard.by_tenant.values().find_map(|calls| calls.find(id))
        })
    }

    /// Returns the latest calls that are wanted, the latest first.
    pub fn latest(
        &self,
        max: usize,
        is_wanted: impl Fn(&EndedCall) -> bool,
    ) -> Vec<Arc<EndedCall>> {
        let mut found = vec![];
        for shard in &self.shards {
            let shard = shard.lock();
            for calls in shard.by_tenant.values() {
                let wanted = calls.calls.iter().rev().map(|(_, call)| call);
                found.extend(wanted.filter(|call| is_wanted(call)).take(max).cloned());
            }
        }
        found.sort_unstable_by_key(|call| Reverse(call.ended()));
        found.truncate(max);
        found
    }

    /// Returns a tenant's latest calls, the latest first.
    pub fn latest_of(&self, tenant: &TenantId, max: usize) -> Vec<Arc<EndedCall>> {
        let shard = self.shard_of(tenant).lock();
        let calls = shard.by_tenant.get(tenant).into_iter().flat_map(|it| it.calls.iter().rev());
        calls.take(max).map(|(_, call)| call.clone()).collect()
    }

    fn shard_of(&self, tenant: &TenantId) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(tenant) as usize % SHARDS]
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes).sum()
    }
}

impl Shard {
    fn add(&mut self, call: &Arc<EndedCall>) {
        let cost = call.cost();
        let calls = self.by_tenant.entry(call.tenant.clone()).or_insert_with(|| {
            self.bytes += TENANT_COST;
            TenantCalls::default()
        });
        calls.calls.push_back((call.id, call.clone()));
        calls.bytes += cost;
        self.bytes += cost;
        while self.bytes > BYTES_MAX / SHARDS && self.evict_one(&call.tenant) {}
    }

    /// Evicts the oldest call of the tenant that has most, which is nearly always the tenant that
    /// has just added one. Returns whether there was any.
    fn evict_one(&mut self, adding: &TenantId) -> bool {
        let share = BYTES_MAX / SHARDS / self.by_tenant.len().max(1);
        let is_over = |calls: &TenantCalls| calls.bytes + TENANT_COST > share;
        let tenant = if self.by_tenant.get(adding).is_some_and(is_over) {
            adding.clone()
        } else {
            let most = self.by_tenant.iter().max_by_key(|(_, calls)| calls.bytes);
            let Some((tenant, _)) = most else { return false };
            tenant.clone()
        };
        let Some(calls) = self.by_tenant.get_mut(&tenant) else { return false };
        let evicted = calls.calls.pop_front().map_or(0, |(_, call)| call.cost());
        calls.bytes -= evicted;
        self.bytes -= evicted;
        if calls.calls.is_empty() {
            self.by_tenant.remove(&tenant);
            self.bytes -= TENANT_COST;
        }
        true
    }
}

impl TenantCalls {
    fn find(&self, id: CallId) -> Option<Arc<EndedCall>> {
        // Whoever asks, asks soon.
        self.calls.iter().rev().find(|(known, _)| *known == id).map(|(_, call)| call.clone())
    }
}
