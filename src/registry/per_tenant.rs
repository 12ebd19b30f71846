//! A server of which every tenant has a process of its own (`sharing = "tenant"`): for servers that keep state, or
//! that need what only the tenant has (`${secret:NAME}`).
//!
//! A process is started by its tenant's first call. It leaves when it has not been used for `idle_timeout`, when another
//! tenant needs its place, or when its tenant's secrets are others: it takes no more calls then, finishes those that it
//! has, and ends. Whoever calls meanwhile gets a new one.
//!
//! A server that is configured anew has its old processes leave as well. It knows of them, since a tenant's new process
//! may have to wait for the old one, and has places of its own: for a while there may be more than `max_tenants`.
//!
//! Places are counted by tenants: a process and the one that comes in its stead share a place. A new tenant's process is
//! started when the one that makes room for it is gone, so there are never more than `max_tenants`.

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
use super::lease::Lease;
use super::{NoProcess, Own, Source};
use crate::backend::changes::Changes;
use crate::backend::client::Audience;
use crate::backend::service::Service;
use crate::backend::{Backend, Environment};
use crate::config::{self, Start};
use crate::ids::{ServerId, TenantId};
use crate::secrets::{SealedSet, Vault, wanted};

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
    /// Cancelled, under the lock of the table, when another has its place.
    retired: CancellationToken,
    places: Arc<Semaphore>,
    table: Arc<Mutex<Table>>,
}

impl PerTenant {
    pub(super) fn new(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        vault: Arc<Vault>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let names = wanted(&config).into();
        let places = Arc::new(Semaphore::new(config.max_tenants as usize));
        let (retired, table) = (CancellationToken::new(), Arc::default());
        let environment = environment.with_own_starts();
        Self { id, config, environment, vault, names, tasks, stop, retired, places, table }
    }

    /// The same with another configuration. The processes that there are stay until this is retired.
    pub(super) fn renewed(&self, config: config::Server) -> Self {
        let (id, environment, vault) =
            (self.id.clone(), self.environment.clone(), self.vault.clone());
        let (tasks, stop) = (self.tasks.clone(), self.stop.clone());
        let renewed = Self::new(id, config, environment, vault, tasks, stop);
        Self { table: self.table.clone(), ..renewed }
    }

    /// Starts no more processes, lets the calls of those that there are end, and stops them.
    pub(super) fn retire(&self, within: Duration) {
        let table = self.table.lock();
        self.retired.cancel();
        table.retire(within);
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
        let before = match table.processes.get_mut(tenant) {
            Some(process) if process.serves(sealed.as_ref(), &self.names) => {
                process.sealed = sealed;
                return Ok(process.usage.lease(process.backend.clone()));
            }
            Some(process) => {
                process.give_way();
                Some(process.clone())
            }
            None => None,
        };
        if self.stop.is_cancelled() {
            return Err(NoProcess::Stopped);
        }
        let opened = self.vault.open(tenant, &self.id, sealed.as_ref(), &self.names);
        let secrets = opened.map_err(|names| {
            let server = self.id.clone();
            NoProcess::SecretsMissing { server, names }
        })?;
        if !table.make_room(self.config.max_tenants as usize) {
            return Err(NoProcess::TooMany);
        }
        let backend = self.backend(secrets, table.changes_of(&self.id, tenant));
        let process = Process::new(backend, sealed, self.retired.clone(), before.as_ref());
        let after = before.and_then(|before| before.waited_for_by(&self.config));
        self.tasks.spawn(self.running(tenant.clone(), process.clone()).run(after));
        let lease = process.usage.lease(process.backend.clone());
        table.processes.insert(tenant.clone(), process);
        Ok(lease)
    }

    fn backend(&self, secrets: config::Secrets, changes: Arc<Changes>) -> Arc<Backend> {
        let config = config::Server { start: Start::Eager, ..self.config.clone() };
        let audience = Audience { changes, client: None };
        let (id, environment) = (self.id.clone(), self.environment.clone());
        let secrets = Arc::new(secrets);
        Backend::with(id, config, environment, secrets, audience, Service::active())
    }

    /// The tenant's process, if it is running.
    pub(super) fn existing(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        let table = self.table.lock();
        table.processes.get(tenant).map(|process| process.backend.clone())
    }

    pub(super) fn all(&self) -> Vec<Own> {
        let table = self.table.lock();
        let own = table.processes.iter().map(|(tenant, process)| Own {
            tenant: tenant.clone(),
            session: None,
            backend: process.backend.clone(),
        });
        own.collect()
    }

    /// Where the tenant hears of changes, now and when its process is another.
    pub(super) fn source(&self, tenant: &TenantId) -> Source {
        let mut table = self.table.lock();
        let changes = table.changes_of(&self.id, tenant);
        let backend = table.processes.get(tenant).map(|process| process.backend.clone());
        Source { changes, backend }
    }

    /// What the tenant has stored, if that is of interest.
    fn sealed_of(&self, tenant: &TenantId) -> Option<Arc<SealedSet>> {
        if self.names.is_empty() { None } else { self.vault.of(tenant, &self.id) }
    }

    fn running(&self, tenant: TenantId, process: Process) -> Running {
        Running {
            tenant,
            process,
            server: self.id.clone(),
            vault: self.vault.clone(),
            names: self.names.clone(),
            places: self.places.clone(),
            stop: self.stop.child_token(),
            table: self.table.clone(),
        }
    }
}
