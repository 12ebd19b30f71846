//! The servers of a gateway, by id.

mod lease;
mod per_session;
mod per_tenant;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::lease::Lease;
use self::per_session::PerSession;
pub use self::per_session::{NoProcess, Owner};
use self::per_tenant::PerTenant;
use crate::backend::changes::Changes;
use crate::backend::{Backend, Environment};
use crate::config::{self, Sharing};
use crate::ids::{ServerId, SessionId, TenantId};
use crate::secrets::Vault;

/// All configured servers, in the order of their ids.
pub struct Registry {
    servers: BTreeMap<ServerId, Server>,
}

/// One configured server.
pub enum Server {
    /// One process for everybody.
    Shared(Arc<Backend>),
    /// A process for each tenant.
    PerTenant(Box<PerTenant>),
    /// A process for each MCP session.
    PerSession(Box<PerSession>),
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
}

impl Registry {
    /// Starts every server that is shared. Each is supervised by a task of `tasks` until `stop`. What servers of tenants
    /// need beyond their configuration is in `vault`.
    pub fn start(
        servers: &BTreeMap<ServerId, config::Server>,
        environment: &Environment,
        vault: &Arc<Vault>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let servers = servers.iter().map(|(id, config)| {
            let (config, environment) = (config.clone(), environment.clone());
            let server = match config.sharing {
                Sharing::Shared => {
                    let secrets = Arc::default();
                    let backend = Backend::new(id.clone(), config, environment, secrets, None);
                    tasks.spawn(backend.clone().supervise(stop.clone()));
                    Server::Shared(backend)
                }
                Sharing::Tenant => {
                    let (vault, tasks, stop) = (vault.clone(), tasks.clone(), stop.clone());
                    let id = id.clone();
                    let processes = PerTenant::new(id, config, environment, vault, tasks, stop);
                    Server::PerTenant(Box::new(processes))
                }
                Sharing::Session => {
                    let (tasks, stop) = (tasks.clone(), stop.clone());
                    let processes = PerSession::new(id.clone(), config, environment, tasks, stop);
                    Server::PerSession(Box::new(processes))
                }
            };
            (id.clone(), server)
        });
        Self { servers: servers.collect() }
    }

    /// The server with that id.
    pub fn get(&self, id: &str) -> Option<&Server> {
        self.servers.get(id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Server> {
        self.servers.values()
    }

    /// The processes that were started for a session.
    pub fn of_session(&self, session: &SessionId) -> Vec<Arc<Backend>> {
        let own = self.iter().filter_map(|server| match server {
            Server::Shared(_) | Server::PerTenant(_) => None,
            Server::PerSession(processes) => processes.existing(session),
        });
        own.collect()
    }

    /// Ends whatever was started for a session.
    pub fn end_session(&self, session: &SessionId) {
        for server in self.iter() {
            if let Server::PerSession(processes) = server {
                processes.end(session);
            }
        }
    }

    /// Whether every server has started or failed once.
    pub fn is_settled(&self) -> bool {
        self.iter().all(|server| match server {
            Server::Shared(backend) => backend.is_settled(),
            Server::PerTenant(_) | Server::PerSession(_) => true,
        })
    }
}
