//! The servers of a gateway, by id.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, Environment};
use crate::config;
use crate::ids::ServerId;

/// All configured servers, in the order of their ids.
pub struct Registry {
    servers: BTreeMap<ServerId, Arc<Backend>>,
}

impl Registry {
    /// Starts every configured server. Each is supervised by a task of `tasks` until `stop`.
    pub fn start(
        servers: &BTreeMap<ServerId, config::Server>,
        environment: &Environment,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let servers = servers.iter().map(|(id, server)| {
            let backend = Backend::new(id.clone(), server.clone(), environment.clone());
            tasks.spawn(backend.clone().supervise(stop.clone()));
            (id.clone(), backend)
        });
        Self { servers: servers.collect() }
    }

    /// The server with that id.
    pub fn get(&self, id: &str) -> Option<&Arc<Backend>> {
        self.servers.get(id)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.servers.values()
    }

    /// Whether every server has started or failed once.
    pub fn is_settled(&self) -> bool {
        self.iter().all(|server| server.is_settled())
    }
}
