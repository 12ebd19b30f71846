//! A server of which every tenant has a process of its own (`sharing = "tenant"`): for servers that
//! keep state, or that need what only the tenant has (`${secret:NAME}`).
//!
//! A tenant's first call starts its process. The process drains when it was not used for
//! `idle_timeout`, when another tenant needs its slot, or when the tenant's secrets change. The
//! next call starts a new one. A tenant's processes drain when it is removed; the next tenant of
//! its name has processes of its own.
//!
//! After a reload, a tenant's next call starts the rollover to a process of the new configuration.
//! Each configuration has slots of its own, so for a while there may be more than `max_tenants`.
//!
//! Slots are counted by tenants: a process and the next one of its tenant share a slot. A new
//! tenant's process starts when the evicted one is gone, so one configuration never has more than
//! `max_tenants`.

mod process;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::process::TenantProcess;
use super::known_tools::KnownTools;
use super::process_group::ProcessGroup;
use super::rollover::{Replaceable, Rollover, drain_time, is_exclusive};
use super::{BackendRef, ChangeSource, NoBackend, OwnedBackend};
use crate::backend::changes::recipients::Recipients;
use crate::backend::instance::tools::ToolSet;
use crate::backend::supervise::rollover::Stage;
use crate::backend::{Backend, CallerTokens};
use crate::common::ids::TenantId;
use crate::config::{self, Sharing, Start};
use crate::tenants::Tenant;
use crate::tenants::secrets::{CONNECTION, SealedSet, Vault, started_with};

pub struct PerTenant {
    pub(super) group: ProcessGroup,
    vault: Arc<Vault>,
    /// The names of the secrets that the server needs.
    names: Arc<[String]>,
    /// Whether the server is called in the name of callers.
    pub(super) wants_caller_tokens: bool,
    /// Counts the configurations of the server.
    generation: u64,
    table: Arc<Mutex<TenantTable>>,
    known: Arc<Mutex<KnownTools>>,
}

impl PerTenant {
    pub(super) fn new(group: ProcessGroup, vault: Arc<Vault>) -> Self {
        let names = started_with(&group.config).into();
        let wants_caller_tokens = group.config.wants_caller_tokens();
        let (table, known) = (Arc::default(), Arc::default());
        Self { group, vault, names, wants_caller_tokens, generation: 0, table, known }
    }

    /// Returns the same server with another configuration. Processes stay until
    /// [`Self::replaced_by`].
    pub(super) fn renewed(&self, config: config::ServerConfig) -> Self {
        let renewed = Self::new(self.group.renewed(config), self.vault.clone());
        let (table, known) = (self.table.clone(), self.known.clone());
        Self { generation: self.generation + 1, table, known, ..renewed }
    }

    /// Starts no more processes. Those that there are serve until the next server has others ready,
    /// or drain if the two must not overlap.
    pub(super) fn replaced_by(&self, next: &config::ServerConfig) {
        if next.sharing != Sharing::Tenant || is_exclusive(&self.group.config, next) {
            return self.drain(drain_time(&self.group.config, next.exclusive));
        }
        let table = self.table.lock();
        self.group.retired.cancel();
        table.0.values().for_each(Rollover::tell_listeners);
    }

    /// Starts no more processes, and drains those that there are.
    pub(super) fn drain(&self, within: Duration) {
        let table = self.table.lock();
        self.group.retired.cancel();
        for rollover in table.0.values() {
            let ours = rollover.all().filter(|it| it.generation <= self.generation);
            ours.for_each(|process| process.drain(within));
            rollover.tell_listeners();
        }
    }

    /// Returns the tenant's backend; starts it if it is not running.
    pub(super) fn get(&self, tenant: &Tenant) -> Result<BackendRef, NoBackend> {
        let (removed, tenant) = (&tenant.removed, &tenant.id);
        let mut table = self.table.lock();
        if self.group.retired.is_cancelled() || removed.is_cancelled() {
            return Err(NoBackend::Stopped);
        }
        let sealed = if self.names.is_empty() {
            None
        } else {
            self.vault.sealed_set(tenant, &self.group.id)
        };
        if let Some(rollover) = table.0.get(tenant)
            && let Some(newest) = rollover.newest()
            && newest.generation == self.generation
            && newest.serves(sealed.as_ref())
        {
            let active = rollover.active.as_ref().filter(|it| self.serves(it, tenant));
            return Ok(active.unwrap_or(newest).backend.clone().into());
        }
        self.start(&mut table, tenant, removed, sealed)
    }

    /// Starts a process for a tenant that has none of this configuration and these secrets.
    fn start(
        &self,
        table: &mut TenantTable,
        tenant: &TenantId,
        removed: &CancellationToken,
        sealed: Option<Arc<SealedSet>>,
    ) -> Result<BackendRef, NoBackend> {
        let rollover = table.rollover(tenant);
        let kept = rollover.current().filter(|it| {
            let is_older = it.generation != self.generation;
            is_older && self.serves(it, tenant) && it.can_run_beside(&self.group.config)
        });
        let (kept, replaced) = (kept.cloned(), rollover.newest().cloned());
        let is_kept = |it: &&TenantProcess| kept.as_ref().is_some_and(|kept| kept.is(it));
        let others = rollover.active.iter().chain(&rollover.next).filter(|it| !is_kept(it));
        others.for_each(TenantProcess::retire);
        if self.group.stop.is_cancelled() {
            return Err(NoBackend::Stopped);
        }
        let opened = self.vault.open(tenant, &self.group.id, sealed.as_ref(), &self.names);
        let secrets = opened.map_err(|names| {
            let server = self.group.id.clone();
            let connections = self.group.environment.connections.as_ref();
            match connections.filter(|_| names.iter().all(|name| name == CONNECTION)) {
                Some(connections) => {
                    let url = connections.connect_url(tenant, &server);
                    NoBackend::NotConnected { server, url }
                }
                None => {
                    let names = names.into_iter().filter(|name| name != CONNECTION).collect();
                    NoBackend::SecretsMissing { server, names }
                }
            }
        })?;
        if !table.evict_for(tenant, self.group.config.max_tenants as usize) {
            return Ok(kept.ok_or(NoBackend::TooMany)?.backend.into());
        }
        let rollover = table.rollover(tenant);
        rollover.keep_only(kept.as_ref());
        kept.iter().for_each(|kept| kept.backend.activate());
        let stage = if kept.is_some() { Stage::Waiting } else { Stage::Active };
        let config = config::ServerConfig { start: Start::Eager, ..self.group.config.clone() };
        let changes = rollover.changes(&self.group.id);
        let asks_callers = self.group.config.sessionless;
        let recipients = Recipients::new(self.group.id.clone(), None);
        let recipients = Recipients { changes, is_of_tenant: true, asks_callers, ..recipients };
        let (id, environment) = (self.group.id.clone(), self.group.environment.of_tenant(tenant));
        let backend = Backend::new(id, config, environment, Arc::new(secrets), recipients, stage);
        let is_replaced =
            |it: &TenantProcess| replaced.as_ref().is_some_and(|replaced| replaced.is(it));
        let blocking = rollover.all().filter(|it| match &kept {
            _ if is_exclusive(it.config(), &self.group.config) => true,
            // Next ones that were dropped: they have served nobody, and are gone soon.
            Some(kept) => it.generation > kept.generation,
            // Two at most run side by side, however often a tenant changes its secrets.
            None => it.generation == self.generation && !is_replaced(it),
        });
        let blocking = blocking.map(|it| it.backend.clone()).collect();
        let slot = replaced.as_ref().filter(|it| it.generation == self.generation);
        let slot = slot.map(|it| it.slot.clone()).unwrap_or_default();
        let (generation, names) = (self.generation, self.names.clone());
        let process = TenantProcess { backend: backend.clone(), generation, sealed, names, slot };
        let old = kept.map(|kept| kept.backend);
        let removed = removed.clone();
        let run = self.run(tenant, removed, process.clone(), blocking, old.clone());
        self.group.spawn(run);
        match old {
            Some(_) => rollover.next = Some(process),
            None => rollover.active = Some(process),
        }
        Ok(old.unwrap_or(backend).into())
    }

    /// Returns whether a process of any configuration has the tenant's present secrets, and takes
    /// calls.
    fn serves(&self, process: &TenantProcess, tenant: &TenantId) -> bool {
        process.serves(self.vault.sealed_set(tenant, &self.group.id).as_ref())
    }

    /// Returns the backend that replaces the tenant's when it is ready.
    pub(super) fn replacement(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        Some(self.table.lock().0.get(tenant)?.waiting()?.backend.clone())
    }

    /// Returns the tenant's backend, if it is running.
    pub(super) fn existing(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        self.table.lock().current(tenant).map(|process| process.backend.clone())
    }

    /// Returns whether the tenant has a process that takes calls, or will.
    pub(super) fn has_process(&self, tenant: &TenantId) -> bool {
        self.table.lock().current(tenant).is_some_and(|process| !process.is_draining())
    }

    /// Returns the tools that the tenant's process will have, if it does not run and an earlier one
    /// was alike. The definitions of a pinned server must be approved, which only a process shows.
    pub(super) fn known_tools(&self, tenant: &TenantId) -> Option<Arc<ToolSet>> {
        if self.group.config.pin || self.has_process(tenant) {
            return None;
        }
        self.known.lock().get(self.owner_of_tools(tenant))
    }

    /// Returns the tenant whose the list of tools is: none, unless processes start with secrets, or
    /// with a caller's token. Then a definition may tell something of its tenant.
    fn owner_of_tools<'t>(&self, tenant: &'t TenantId) -> Option<&'t TenantId> {
        (!self.names.is_empty() || self.wants_caller_tokens).then_some(tenant)
    }

    /// Returns the tokens of the tenant's callers, if the server is called in their name.
    pub(super) fn caller_tokens(&self, tenant: &TenantId) -> Option<Arc<CallerTokens>> {
        let ProcessGroup { id, config, environment, .. } = &self.group;
        let tokens = || environment.tokens.of_callers(tenant, id, config);
        self.wants_caller_tokens.then(tokens)
    }

    pub(super) fn all(&self) -> Vec<OwnedBackend> {
        let table = self.table.lock();
        let owned = table.0.iter().filter_map(|(tenant, rollover)| {
            let backend = rollover.current()?.backend.clone();
            let replacement = rollover.waiting().map(|process| process.backend.clone());
            Some(OwnedBackend { tenant: tenant.clone(), session: None, backend, replacement })
        });
        owned.collect()
    }

    /// Returns the source of the tenant's notifications, which outlives its process.
    pub(super) fn source(&self, tenant: &TenantId) -> ChangeSource {
        let mut table = self.table.lock();
        let rollover = table.rollover(tenant);
        let changes = rollover.changes(&self.group.id);
        let backend = rollover.current().map(|process| process.backend.clone());
        ChangeSource { changes, backend }
    }
}

/// The processes of all tenants of one server.
#[derive(Default)]
struct TenantTable(HashMap<TenantId, Rollover<TenantProcess>>);

impl TenantTable {
    fn rollover(&mut self, tenant: &TenantId) -> &mut Rollover<TenantProcess> {
        if !self.0.contains_key(tenant) {
            self.0.retain(|_, rollover| rollover.prune());
        }
        self.0.entry(tenant.clone()).or_default()
    }

    /// Returns the process that takes a tenant's calls, or did last.
    fn current(&self, tenant: &TenantId) -> Option<&TenantProcess> {
        self.0.get(tenant)?.current()
    }

    /// Returns whether the tenant may have a process. If others have `max` already, the
    /// longest-idle ones are evicted.
    fn evict_for(&self, tenant: &TenantId, max: usize) -> bool {
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
    fn forget(&mut self, tenant: &TenantId, process: &TenantProcess) {
        if let Some(rollover) = self.0.get_mut(tenant) {
            rollover.forget(process);
            if !rollover.prune() {
                self.0.remove(tenant);
            }
        }
    }
}
