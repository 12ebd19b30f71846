//! Applies a configuration while calls run; none of them fails because of it.
//!
//! A new server is there at once, and its callers wait until it has started. A removed one takes no
//! more calls and drains. A changed one rolls over ([`super::rollover`]): beside the old one if it
//! can, else at once. A server of tenants rolls over tenant by tenant.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::per_session::PerSession;
use super::per_tenant::PerTenant;
use super::process_group::ProcessGroup;
use super::rollover::{self, Rollover, is_exclusive};
use super::{Registry, Server, Servers};
use crate::backend::Backend;
use crate::backend::changes::recipients::Recipients;
use crate::backend::supervise::rollover::Stage;
use crate::common::ids::ServerId;
use crate::config::{self, LeftOut, Sharing, Start};

/// The rollovers of all servers. The snapshot that calls read is made of their active ones.
pub(super) type Rollovers = BTreeMap<ServerId, Rollover<Arc<Server>>>;

impl Registry {
    /// Shows these servers as ones that are not started.
    pub fn set_left_out(&self, left_out: Vec<LeftOut>) {
        self.inner.left_out.store(Arc::new(left_out));
    }

    /// Returns the servers of an MCP client's file that are not started.
    pub fn left_out(&self) -> Arc<Vec<LeftOut>> {
        self.inner.left_out.load_full()
    }

    /// Makes these the servers. Those whose configuration is the same are not touched.
    pub fn apply(&self, wanted: &BTreeMap<ServerId, config::ServerConfig>) {
        let wants_tokens = wanted.values().any(config::ServerConfig::wants_caller_tokens);
        self.inner.wants_caller_tokens.store(wants_tokens, Ordering::Relaxed);
        let mut rollovers = self.inner.rollovers.lock();
        rollovers.retain(|_, rollover| rollover.prune());
        let mut replaced = vec![];
        for (_, rollover) in rollovers.iter_mut().filter(|(id, _)| !wanted.contains_key(*id)) {
            replaced.extend(rollover.active.clone());
            rollover.keep_only(None);
        }
        for (id, config) in wanted {
            let rollover = rollovers.entry(id.clone()).or_default();
            replaced.extend(self.apply_one(id, config, rollover));
        }
        self.publish(&rollovers);
        // Not before: whoever finds its server draining looks it up again.
        for server in replaced {
            let (next, rollover) = (wanted.get(server.id()), &rollovers[server.id()]);
            rollover.drain_old(next);
            match (&*server, next) {
                (Server::PerTenant(tenants), Some(next)) => tenants.replaced_by(next),
                (Server::PerSession(sessions), Some(next)) => sessions.replaced_by(next),
                (_, Some(_)) => {}
                (_, None) => self.forget_metrics(server),
            }
            rollover.tell_listeners();
        }
        drop(rollovers);
        self.count_version();
    }

    /// Starts the rollover of a name to a configuration. Returns the server that is replaced at
    /// once.
    fn apply_one(
        &self,
        id: &ServerId,
        config: &config::ServerConfig,
        rollover: &mut Rollover<Arc<Server>>,
    ) -> Option<Arc<Server>> {
        let Some(active) = rollover.active.clone() else {
            rollover.active = Some(self.start_server(id, config, rollover));
            return None;
        };
        if rollover.newest().is_some_and(|newest| newest.config() == config) {
            return None;
        }
        // The next one is not wanted any more; the active one may be just what is.
        if rollover.next.is_some() {
            rollover.keep_only(Some(&active));
            rollover.drain_old(None);
        }
        if active.config() == config {
            return None;
        }
        match &*active {
            Server::PerSession(sessions) if config.sharing == Sharing::Session => {
                let renewed = sessions.renewed(config.clone(), &self.inner.vault);
                rollover.active = Some(Arc::new(Server::PerSession(Box::new(renewed))));
                sessions.sessionless.is_some().then(|| active.clone())
            }
            Server::PerTenant(tenants) if config.sharing == Sharing::Tenant => {
                let renewed = Server::PerTenant(Box::new(tenants.renewed(config.clone())));
                rollover.active = Some(Arc::new(renewed));
                Some(active)
            }
            Server::Shared(old) if runs_beside(old.config(), config) => {
                let old = Some(old.clone());
                rollover.next = Some(self.start_shared(id, config, rollover, old));
                None
            }
            _ => {
                rollover.keep_only(None);
                rollover.active = Some(self.start_server(id, config, rollover));
                Some(active)
            }
        }
    }

    /// Stores the snapshot that calls read.
    fn publish(&self, rollovers: &Rollovers) {
        let active = |(id, rollover): (&ServerId, &Rollover<Arc<Server>>)| {
            Some((id.clone(), rollover.active.clone()?))
        };
        self.inner.servers.store(Arc::new(Servers::from_iter(rollovers.iter().filter_map(active))));
    }

    /// Removes the metrics of a removed server; those of its tools when its last call has ended.
    fn forget_metrics(&self, server: Arc<Server>) {
        let metrics = self.inner.environment.metrics.clone();
        metrics.forget_up(server.id().as_str());
        self.inner.tasks.spawn(async move {
            server.gone().await;
            metrics.forget_tools(server.id().as_str());
        });
    }

    /// Starts a server that is active at once.
    fn start_server(
        &self,
        id: &ServerId,
        config: &config::ServerConfig,
        rollover: &mut Rollover<Arc<Server>>,
    ) -> Arc<Server> {
        if config.sharing == Sharing::Shared {
            return self.start_shared(id, config, rollover, None);
        }
        let inner = &self.inner;
        inner.environment.metrics.forget_up(id.as_str());
        let (environment, tasks) = (inner.environment.clone(), inner.tasks.clone());
        let (stop, unblocked) = (inner.stop.clone(), CancellationToken::new());
        let (waited, is_unblocked) = (waited(rollover, config), unblocked.clone());
        inner.tasks.spawn(async move {
            waited.await;
            is_unblocked.cancel();
        });
        let (id, config) = (id.clone(), config.clone());
        let is_of_tenants = config.sharing == Sharing::Tenant;
        let group = ProcessGroup::new(id, config, environment, tasks, stop, unblocked);
        Arc::new(if is_of_tenants {
            Server::PerTenant(Box::new(PerTenant::new(group, inner.vault.clone())))
        } else {
            Server::PerSession(Box::new(PerSession::new(group, &inner.vault)))
        })
    }

    /// Starts a server that replaces `old` when it is ready, or is active at once without one.
    fn start_shared(
        &self,
        id: &ServerId,
        config: &config::ServerConfig,
        rollover: &mut Rollover<Arc<Server>>,
        old: Option<Arc<Backend>>,
    ) -> Arc<Server> {
        let stage = if old.is_some() { Stage::Waiting } else { Stage::Active };
        let changes = rollover.changes(id);
        let recipients = Recipients { changes, ..Recipients::new(id.clone(), None) };
        let (id, environment) = (id.clone(), self.inner.environment.clone());
        let waited = waited(rollover, config);
        let backend =
            Backend::new(id, config.clone(), environment, Arc::default(), recipients, stage);
        let server = Arc::new(Server::Shared(backend.clone()));
        let (registry, next) = (self.clone(), server.clone());
        let switch = move || registry.switch(&next);
        let stop = self.inner.stop.clone();
        self.inner.tasks.spawn(rollover::run(backend, waited, old, switch, stop));
        server
    }

    /// Makes a server that is ready the active one, unless another is wanted by now.
    fn switch(&self, next: &Arc<Server>) {
        let (id, mut rollovers) = (next.id(), self.inner.rollovers.lock());
        let Some(rollover) = rollovers.get_mut(id) else { return };
        if !rollover.switch(next) {
            return;
        }
        self.publish(&rollovers);
        rollovers[id].drain_old(Some(next.config()));
        next.shared().into_iter().for_each(|backend| backend.activate());
        drop(rollovers);
        tracing::info!(server = %id, "server `{id}` has been replaced");
        self.count_version();
    }

    fn count_version(&self) {
        self.inner.version.send_modify(|version| *version += 1);
    }
}

/// Waits until all are gone that must not run beside one that is configured so.
fn waited(
    rollover: &Rollover<Arc<Server>>,
    config: &config::ServerConfig,
) -> impl Future<Output = ()> + Send + use<> {
    let blocking: Vec<_> = rollover.blocking(config).cloned().collect();
    async move {
        for server in blocking {
            server.gone().await;
        }
    }
}

/// Returns whether a server is started while the old one still runs.
fn runs_beside(old: &config::ServerConfig, next: &config::ServerConfig) -> bool {
    let is_shared = next.sharing == Sharing::Shared;
    is_shared && next.start == Start::Eager && !is_exclusive(old, next)
}
