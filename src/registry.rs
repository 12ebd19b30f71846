//! The servers of a gateway, by id.

mod per_session;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::per_session::PerSession;
pub use self::per_session::{NoProcess, Owner};
use crate::backend::{Backend, Environment};
use crate::config::{self, Sharing};
use crate::ids::{ServerId, SessionId};

/// All configured servers, in the order of their ids.
pub struct Registry {
    servers: BTreeMap<ServerId, Server>,
}

/// One configured server.
pub enum Server {
    /// One process for everybody.
    Shared(Arc<Backend>),
    /// A process for each MCP session.
    PerSession(Box<PerSession>),
}

impl Server {
    /// The process for whoever calls.
    pub fn backend(&self, owner: Option<&Owner>) -> Result<Arc<Backend>, NoProcess> {
        match (self, owner) {
            (Self::Shared(backend), _) => Ok(backend.clone()),
            (Self::PerSession(processes), Some(owner)) => processes.get(owner),
            (Self::PerSession(_), None) => Err(NoProcess::NoSession),
        }
    }

    /// The process, if there is one for everybody.
    pub fn shared(&self) -> Option<&Arc<Backend>> {
        match self {
            Self::Shared(backend) => Some(backend),
            Self::PerSession(_) => None,
        }
    }

    /// Its id.
    pub fn id(&self) -> &ServerId {
        match self {
            Self::Shared(backend) => backend.id(),
            Self::PerSession(processes) => processes.id(),
        }
    }

    /// How it is configured.
    pub fn config(&self) -> &config::Server {
        match self {
            Self::Shared(backend) => backend.config(),
            Self::PerSession(processes) => processes.config(),
        }
    }
}

impl Registry {
    /// Starts every server that is shared. Each is supervised by a task of `tasks` until `stop`.
    pub fn start(
        servers: &BTreeMap<ServerId, config::Server>,
        environment: &Environment,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let servers = servers.iter().map(|(id, config)| {
            let (config, environment) = (config.clone(), environment.clone());
            let server = match config.sharing {
                Sharing::Shared | Sharing::Tenant => {
                    let backend =
                        Backend::new(id.clone(), config, environment, Arc::default(), None);
                    tasks.spawn(backend.clone().supervise(stop.clone()));
                    Server::Shared(backend)
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
            Server::Shared(_) => None,
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
            Server::PerSession(_) => true,
        })
    }
}
