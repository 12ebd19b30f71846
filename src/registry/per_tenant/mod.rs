//! A server of which every tenant has a process of its own (`sharing = "tenant"`): for servers that keep state, or
//! that need what only the tenant has (`${secret:NAME}`).
//!
//! A process is started by its tenant's first call. It leaves when it has not been used for `idle_timeout`, when another
//! tenant needs its place, or when its tenant's secrets are others: it takes no more calls then, finishes those that it
//! has, and ends. Whoever calls meanwhile gets a new one.
//!
//! A server that is configured anew knows the processes of the one before. A tenant's next call starts a new one, and the
//! old one serves until that is ready; or it leaves at once, if two must not run side by side. It has places of its own:
//! for a while there may be more than `max_tenants`.
//!
//! Places are counted by tenants: a process and the one that comes in its stead share a place. A new tenant's process is
//! started when the one that makes room for it is gone, so of one configuration there are never more than `max_tenants`.

mod running;
mod table;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::running::Running;
use self::table::{Process, Table};
use super::backend_ref::Lease;
use super::{NoProcess, Own, Source};
use crate::backend::changes::Changes;
use crate::backend::changes::recipients::Recipients;
use crate::backend::supervise::service::Service;
use crate::backend::{Backend, Environment};
use crate::common::ids::{ServerId, TenantId};
use crate::config::{self, Start};
use crate::tenants::secrets::{SealedSet, Vault, wanted};

/// The processes of one server.
pub struct PerTenant {
    id: ServerId,
    config: config::Server,
    environment: Environment,
    vault: Arc<Vault>,
    /// The secrets that the server needs.
    names: Arc<[String]>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// How often it has been configured anew.
    generation: u64,
    /// Cancelled, under the lock of the table, when another has its place.
    retired: CancellationToken,
    /// Cancelled when what had its name before is gone, where that must be.
    free: CancellationToken,
    places: Arc<Semaphore>,
    table: Arc<Mutex<Table>>,
    /// The tasks of all processes, whichever configuration they have.
    running: TaskTracker,
}

impl PerTenant {
    pub(super) fn new(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        vault: Arc<Vault>,
        tasks: TaskTracker,
        stop: CancellationToken,
        free: CancellationToken,
    ) -> Self {
        let running = TaskTracker::new();
        // Done whenever there is none; more may come all the same.
        running.close();
        Self {
            id,
            environment: environment.with_own_starts(),
            vault,
            names: wanted(&config).into(),
            tasks,
            stop,
            generation: 0,
            retired: CancellationToken::new(),
            free,
            places: Arc::new(Semaphore::new(config.max_tenants as usize)),
            table: Arc::default(),
            running,
            config,
        }
    }

    /// The same with another configuration. The processes that there are stay until this is retired, or gives them over.
    pub(super) fn renewed(&self, config: config::Server) -> Self {
        let (id, environment, vault) =
            (self.id.clone(), self.environment.clone(), self.vault.clone());
        let (tasks, stop, free) = (self.tasks.clone(), self.stop.clone(), self.free.clone());
        let renewed = Self::new(id, config, environment, vault, tasks, stop, free);
        let (table, running) = (self.table.clone(), self.running.clone());
        Self { generation: self.generation + 1, table, running, ..renewed }
    }

    /// Starts no more processes. Those that there are stay until the renewed one has others ready.
    pub(super) fn give_over(&self) {
        let table = self.table.lock();
        self.retired.cancel();
        table.tell_all();
    }

    /// Starts no more processes, lets the calls of those that there are end, and stops them.
    pub(super) fn retire(&self, within: Duration) {
        let table = self.table.lock();
        self.retired.cancel();
        table.retire(self.generation, within);
    }

    /// Whether nothing is left of it.
    pub(super) fn is_gone(&self) -> bool {
        self.retired.is_cancelled() && self.running.is_empty()
    }

    /// Done when nothing is left of it.
    pub(super) async fn gone(&self) {
        self.retired.cancelled().await;
        self.running.wait().await;
    }

    pub(super) fn id(&self) -> &ServerId {
        &self.id
    }

    pub(super) fn config(&self) -> &config::Server {
        &self.config
    }

    /// The tenant's process; started if it is not running.
    pub(super) fn get(&self, tenant: &TenantId) -> Result<Lease, NoProcess> {
        let mut table = self.table.lock();
        if self.retired.is_cancelled() {
            return Err(NoProcess::Stopped);
        }
        let sealed = self.sealed_of(tenant);
        let Table { processes, older, .. } = &mut *table;
        if let Some(process) = processes.get_mut(tenant)
            && process.generation == self.generation
            && process.serves(sealed.as_ref())
        {
            process.sealed = sealed;
            let older = older.get(tenant).filter(|it| self.serves(it, tenant));
            let process = older.unwrap_or(&*process);
            return Ok(process.usage.lease(process.backend.clone()));
        }
        self.start(&mut table, tenant, sealed)
    }

    /// Starts a process for a tenant that has none, or none of this configuration. Of an earlier one it may have one still.
    fn start(
        &self,
        table: &mut Table,
        tenant: &TenantId,
        sealed: Option<Arc<SealedSet>>,
    ) -> Result<Lease, NoProcess> {
        let older = table.current(tenant).filter(|it| {
            let is_older = it.generation != self.generation;
            is_older && self.serves(it, tenant) && it.can_stay_beside(&self.config)
        });
        let older = older.cloned();
        let before = table.processes.get(tenant).cloned();
        let leaving = before.iter().filter(|it| !older.as_ref().is_some_and(|older| older.is(it)));
        leaving.for_each(Process::give_way);
        if self.stop.is_cancelled() {
            return Err(NoProcess::Stopped);
        }
        let opened = self.vault.open(tenant, &self.id, sealed.as_ref(), &self.names);
        let secrets = opened.map_err(|names| {
            let server = self.id.clone();
            NoProcess::SecretsMissing { server, names }
        })?;
        if !table.make_room(tenant, self.config.max_tenants as usize) {
            let older = older.ok_or(NoProcess::TooMany)?;
            return Ok(older.usage.lease(older.backend));
        }
        let service = if older.is_some() { Service::waiting() } else { Service::active() };
        let backend = self.backend(secrets, table.changes_of(&self.id, tenant), service);
        let (generation, names) = (self.generation, self.names.clone());
        let process = Process::new(backend, generation, sealed, names, before.as_ref());
        let (before, config) = (before.as_ref(), &self.config);
        let mut after = table.waited_for(tenant, config, generation, before, older.as_ref());
        after.push(self.free.clone());
        let replaces = older.as_ref().map(|older| older.backend.clone());
        let running = self.life(tenant.clone(), process.clone()).run(after, replaces);
        self.tasks.spawn(self.running.track_future(running));
        let first = older.as_ref().unwrap_or(&process);
        let lease = first.usage.lease(first.backend.clone());
        table.insert(tenant, &process, older);
        Ok(lease)
    }

    /// Whether a process, whatever its configuration, was started with what the tenant has stored now, and takes calls.
    fn serves(&self, process: &Process, tenant: &TenantId) -> bool {
        process.serves(self.vault.sealed_set(tenant, &self.id).as_ref())
    }

    fn backend(
        &self,
        secrets: config::Secrets,
        changes: Arc<Changes>,
        service: Service,
    ) -> Arc<Backend> {
        let config = config::Server { start: Start::Eager, ..self.config.clone() };
        let recipients = Recipients { changes, client: None };
        let (id, environment) = (self.id.clone(), self.environment.clone());
        Backend::with(id, config, environment, Arc::new(secrets), recipients, service)
    }

    /// The one that takes the place of the tenant's process as soon as it is ready.
    pub(super) fn replacement(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        self.table.lock().next(tenant).map(|process| process.backend.clone())
    }

    /// The tenant's process, if it is running.
    pub(super) fn existing(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        let table = self.table.lock();
        table.current(tenant).map(|process| process.backend.clone())
    }

    pub(super) fn all(&self) -> Vec<Own> {
        let table = self.table.lock();
        let of = |tenant: &TenantId| {
            let backend = table.current(tenant)?.backend.clone();
            let replacement = table.next(tenant).map(|process| process.backend.clone());
            Some(Own { tenant: tenant.clone(), session: None, backend, replacement })
        };
        table.processes.keys().filter_map(of).collect()
    }

    /// Where the tenant hears of changes, now and when its process is another.
    pub(super) fn source(&self, tenant: &TenantId) -> Source {
        let mut table = self.table.lock();
        let changes = table.changes_of(&self.id, tenant);
        let backend = table.current(tenant).map(|process| process.backend.clone());
        Source { changes, backend }
    }

    /// What the tenant has stored, if that is of interest.
    fn sealed_of(&self, tenant: &TenantId) -> Option<Arc<SealedSet>> {
        if self.names.is_empty() { None } else { self.vault.sealed_set(tenant, &self.id) }
    }

    fn life(&self, tenant: TenantId, process: Process) -> Running {
        Running {
            tenant,
            process,
            server: self.id.clone(),
            vault: self.vault.clone(),
            places: self.places.clone(),
            stop: self.stop.child_token(),
            table: self.table.clone(),
        }
    }
}
