//! The servers of a gateway, by id.
//!
//! They are a snapshot that is replaced as a whole ([`changing`]): a call looks its server up without a lock, and keeps
//! what it has found.

mod backend_ref;
mod per_session;
mod per_tenant;
mod rollover;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::backend_ref::Lease;
use self::per_session::PerSession;
pub use self::per_session::{NoProcess, Owner};
use self::per_tenant::PerTenant;
use self::rollover::Changing;
use crate::backend::changes::Changes;
use crate::backend::{Backend, Environment};
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::common::offload::Offload;
use crate::config;
use crate::tenants::secrets::Vault;

/// All configured servers, in the order of their ids.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    servers: ArcSwap<Servers>,
    /// What is on its way into the snapshot, or out of it.
    changing: Mutex<Changing>,
    /// Counts the snapshots, for those who follow them.
    version: watch::Sender<u64>,
    /// Whether every server of the first snapshot has started or failed once.
    settled: AtomicBool,
    environment: Environment,
    vault: Arc<Vault>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Servers = BTreeMap<ServerId, Arc<Server>>;

/// One configured server.
pub enum Server {
    /// One process for everybody.
    Shared(Arc<Backend>),
    /// A process for each tenant.
    PerTenant(Box<PerTenant>),
    /// A process for each MCP session.
    PerSession(Box<PerSession>),
}

/// A process that not everybody shares, as the operator sees it.
pub struct Own {
    /// Whose it is.
    pub tenant: TenantId,
    /// Which of that tenant's sessions has it, if it is for one.
    pub session: Option<SessionId>,
    /// The process that takes calls.
    pub backend: Arc<Backend>,
    /// The one that does as soon as it is ready.
    pub replacement: Option<Arc<Backend>>,
}

/// Where a tenant hears of changes at a server.
pub struct Source {
    /// What to subscribe to. It stays the same, whatever becomes of the process.
    pub changes: Arc<Changes>,
    /// The process, if there is one now.
    pub backend: Option<Arc<Backend>>,
}

impl Server {
    /// The process for whoever calls; started if it is one of the caller's own that is not running.
    pub fn backend(&self, tenant: &TenantId, owner: Option<&Owner>) -> Result<Lease, NoProcess> {
        match (self, owner) {
            (Self::Shared(backend), _) => Ok(backend.clone().into()),
            (Self::PerTenant(processes), _) => processes.get(tenant),
            (Self::PerSession(processes), Some(owner)) => Ok(processes.get(owner)?.into()),
            (Self::PerSession(_), None) => Err(NoProcess::NoSession),
        }
    }

    /// The process that all callers of a tenant share, if there is one now.
    pub fn running(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        match self {
            Self::Shared(backend) => Some(backend.clone()),
            Self::PerTenant(processes) => processes.existing(tenant),
            Self::PerSession(_) => None,
        }
    }

    /// The process that a session has for itself, if there is one now.
    pub fn of_session(&self, session: &SessionId) -> Option<Arc<Backend>> {
        match self {
            Self::Shared(_) | Self::PerTenant(_) => None,
            Self::PerSession(processes) => processes.existing(session),
        }
    }

    /// The processes that not everybody shares.
    pub fn own(&self) -> Vec<Own> {
        match self {
            Self::Shared(_) => vec![],
            Self::PerTenant(processes) => processes.all(),
            Self::PerSession(processes) => processes.all(),
        }
    }

    /// Where a tenant hears of changes; nowhere, if that is for sessions alone.
    pub fn source(&self, tenant: &TenantId) -> Option<Source> {
        match self {
            Self::Shared(backend) => {
                let (changes, backend) = (backend.changes().clone(), Some(backend.clone()));
                Some(Source { changes, backend })
            }
            Self::PerTenant(processes) => Some(processes.source(tenant)),
            Self::PerSession(_) => None,
        }
    }

    /// The process, if there is one for everybody.
    pub fn shared(&self) -> Option<&Arc<Backend>> {
        match self {
            Self::Shared(backend) => Some(backend),
            Self::PerTenant(_) | Self::PerSession(_) => None,
        }
    }

    /// Its id.
    pub fn id(&self) -> &ServerId {
        match self {
            Self::Shared(backend) => backend.id(),
            Self::PerTenant(processes) => processes.id(),
            Self::PerSession(processes) => processes.id(),
        }
    }

    /// How it is configured.
    pub fn config(&self) -> &config::Server {
        match self {
            Self::Shared(backend) => backend.config(),
            Self::PerTenant(processes) => processes.config(),
            Self::PerSession(processes) => processes.config(),
        }
    }

    /// Whether nothing is left of one that was retired.
    fn is_gone(&self) -> bool {
        match self {
            Self::Shared(backend) => backend.is_gone(),
            Self::PerTenant(processes) => processes.is_gone(),
            Self::PerSession(processes) => processes.is_gone(),
        }
    }

    /// Done when nothing is left of one that was retired.
    async fn gone(&self) {
        match self {
            Self::Shared(backend) => backend.gone().await,
            Self::PerTenant(processes) => processes.gone().await,
            Self::PerSession(processes) => processes.gone().await,
        }
    }

    /// Lets its calls end, and stops it.
    fn retire(&self, within: Duration) {
        match self {
            Self::Shared(backend) => backend.retire(within),
            Self::PerTenant(processes) => processes.retire(within),
            Self::PerSession(processes) => processes.retire(within),
        }
    }
}

impl Registry {
    /// Runs long computations.
    pub fn offload(&self) -> &Offload {
        &self.inner.environment.offload
    }

    /// Starts every server that is shared. Each is supervised by a task of `tasks` until `stop`. What servers of tenants
    /// need beyond their configuration is in `vault`.
    pub fn start(
        servers: &BTreeMap<ServerId, config::Server>,
        environment: &Environment,
        vault: &Arc<Vault>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let registry = Self {
            inner: Arc::new(Inner {
                servers: ArcSwap::default(),
                changing: Mutex::default(),
                version: watch::Sender::new(0),
                settled: AtomicBool::new(false),
                environment: environment.clone(),
                vault: vault.clone(),
                tasks: tasks.clone(),
                stop: stop.clone(),
            }),
        };
        registry.apply(servers);
        registry
    }

    /// The server with that id.
    pub fn get(&self, id: &str) -> Option<Arc<Server>> {
        self.inner.servers.load().get(id).cloned()
    }

    /// All of them.
    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.inner.servers.load().values().cloned().collect()
    }

    /// The processes of those that everybody shares.
    pub fn shared(&self) -> impl Iterator<Item = Arc<Backend>> {
        self.servers().into_iter().filter_map(|server| server.shared().cloned())
    }

    /// The process that will take a server's place as soon as it is ready; for this tenant, if each has its own.
    pub fn replacement(&self, server: &Server, tenant: Option<&TenantId>) -> Option<Arc<Backend>> {
        if let Server::PerTenant(processes) = server {
            return processes.replacement(tenant?);
        }
        self.inner.changing.lock().successors.get(server.id()).cloned()
    }

    /// Told when servers came or went, or were replaced.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }

    /// The processes that were started for a session.
    pub fn of_session(&self, session: &SessionId) -> Vec<Arc<Backend>> {
        self.servers().iter().filter_map(|server| server.of_session(session)).collect()
    }

    /// Ends whatever was started for a session.
    pub fn end_session(&self, session: &SessionId) {
        for server in self.servers() {
            if let Server::PerSession(processes) = &*server {
                processes.end(session);
            }
        }
    }

    /// Whether every server has started or failed once. Those that come later do not change it.
    pub fn is_settled(&self) -> bool {
        let is_settled = |server: &Arc<Server>| match &**server {
            Server::Shared(backend) => backend.is_settled(),
            Server::PerTenant(_) | Server::PerSession(_) => true,
        };
        let settled = &self.inner.settled;
        if !settled.load(Ordering::Acquire) && self.inner.servers.load().values().all(is_settled) {
            settled.store(true, Ordering::Release);
        }
        settled.load(Ordering::Acquire)
    }
}
