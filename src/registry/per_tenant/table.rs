//! The processes of all tenants of one server.

use std::collections::HashMap;

use super::process::TenantProcess;
use crate::common::ids::TenantId;
use crate::registry::rollover::{Replaceable, Rollover};

#[derive(Default)]
pub(super) struct TenantTable(HashMap<TenantId, Rollover<TenantProcess>>);

impl TenantTable {
    pub(super) fn get(&self, tenant: &TenantId) -> Option<&Rollover<TenantProcess>> {
        self.0.get(tenant)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TenantId, &Rollover<TenantProcess>)> {
        self.0.iter()
    }

    pub(super) fn rollover(&mut self, tenant: &TenantId) -> &mut Rollover<TenantProcess> {
        if !self.0.contains_key(tenant) {
            self.0.retain(|_, rollover| rollover.prune());
        }
        self.0.entry(tenant.clone()).or_default()
    }

    /// Returns the process that takes a tenant's calls, or did last.
    pub(super) fn current(&self, tenant: &TenantId) -> Option<&TenantProcess> {
        self.get(tenant)?.current()
    }

    /// Whether the tenant may have a process. If others have `max` already, the longest-idle ones
    /// are evicted.
    pub(super) fn evict_for(&self, tenant: &TenantId, max: usize) -> bool {
        let others = self.0.iter().filter(|(other, _)| *other != tenant);
        let others = others.filter_map(|(_, rollover)| Some((rollover.current()?, rollover)));
        let staying: Vec<_> = others.filter(|(current, _)| !current.is_draining()).collect();
        let too_many = (staying.len() + 1).saturating_sub(max);
        let idle_since = |current: &TenantProcess| current.backend.idle_since();
        let idle = staying.iter().filter_map(|(current, it)| Some((idle_since(current)?, it)));
        let mut idle: Vec<_> = idle.collect();
        if idle.len() < too_many {
            return false;
        }
        idle.sort_by_key(|(since, _)| *since);
        for (_, rollover) in idle.into_iter().take(too_many) {
            rollover.active.iter().chain(&rollover.next).for_each(TenantProcess::retire);
        }
        true
    }

    /// Removes a process that is gone.
    pub(super) fn forget(&mut self, tenant: &TenantId, process: &TenantProcess) {
        if let Some(rollover) = self.0.get_mut(tenant) {
            rollover.forget(process);
            if !rollover.prune() {
                self.0.remove(tenant);
            }
        }
    }
}
