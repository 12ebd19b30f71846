//! How the servers change while calls run: none of them may fail because of it.
//!
//! A new server is there at once, and whoever calls it waits until it has started. One that is gone gets no more calls
//! and is stopped when those it has have ended. One that has changed is both: its successor is started beside it and
//! takes its place when it is ready, so that nobody waits and a mistake costs nothing; of a server of tenants, each tenant's
//! process does so. Where two must not run side by side (`exclusive`), the successor has the place at once and starts
//! when the other is gone: its callers wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::per_session::PerSession;
use super::per_tenant::PerTenant;
use super::{Registry, Server, Servers};
use crate::backend::changes::Changes;
use crate::backend::changes::recipients::Recipients;
use crate::backend::supervise::service::Service;
use crate::backend::{Backend, CANCEL_GRACE};
use crate::common::ids::ServerId;
use crate::config::{self, Sharing, Start};

/// What is on its way.
#[derive(Default)]
pub(super) struct Changing {
    /// Those that take a server's place as soon as they are ready.
    pub(super) successors: BTreeMap<ServerId, Arc<Backend>>,
    /// Those that finish their last calls.
    leaving: Vec<Arc<Server>>,
    /// Who listens to a server, by its name: whatever has that name later is heard by the same.
    listeners: HashMap<ServerId, Weak<Changes>>,
}

impl Registry {
    /// From now on these are the servers. Those that are as they were are not touched.
    pub fn apply(&self, wanted: &BTreeMap<ServerId, config::Server>) {
        let mut changing = self.inner.changing.lock();
        changing.leaving.retain(|server| !server.is_gone());
        changing.listeners.retain(|_, changes| changes.strong_count() > 0);
        let before = self.inner.servers.load_full();
        let mut after = Servers::clone(&before);
        let mut left = vec![];
        for (id, server) in before.iter().filter(|(id, _)| !wanted.contains_key(*id)) {
            changing.give_up_successor(id);
            changing.leaving.push(server.clone());
            after.remove(id);
            left.push(server);
        }
        for (id, config) in wanted {
            let Some(server) = before.get(id) else {
                after.insert(id.clone(), self.start_one(&mut changing, id, config));
                continue;
            };
            let aim = changing.successors.get(id).map_or(server.config(), |next| next.config());
            if aim == config {
                continue;
            }
            // What was to come is not wanted any more; what is there may be just that.
            changing.give_up_successor(id);
            if server.config() == config {
                continue;
            }
            match &**server {
                Server::PerSession(processes) if config.sharing == Sharing::Session => {
                    let renewed = Server::PerSession(Box::new(processes.renewed(config.clone())));
                    after.insert(id.clone(), Arc::new(renewed));
                }
                Server::PerTenant(processes) if config.sharing == Sharing::Tenant => {
                    let renewed = Server::PerTenant(Box::new(processes.renewed(config.clone())));
                    after.insert(id.clone(), Arc::new(renewed));
                    left.push(server);
                }
                Server::Shared(old) if goes_beside(old.config(), config) => {
                    self.start_successor(&mut changing, old.clone(), config);
                }
                _ => {
                    changing.leaving.push(server.clone());
                    after.insert(id.clone(), self.start_one(&mut changing, id, config));
                    left.push(server);
                }
            }
        }
        self.inner.servers.store(Arc::new(after));
        // Not before: whoever finds its server retired looks for another.
        for server in left {
            let_go(server, wanted.get(server.id()));
            if !wanted.contains_key(server.id()) {
                self.forget(server.clone());
            }
            let listeners = changing.listeners.get(server.id()).and_then(Weak::upgrade);
            listeners.iter().for_each(|changes| changes.all_may_have_changed());
        }
        drop(changing);
        self.note_change();
    }

    /// Nothing is shown any more of a server that is not wanted; of its tools, as soon as its last calls have ended.
    fn forget(&self, server: Arc<Server>) {
        let metrics = self.inner.environment.metrics.clone();
        metrics.forget_up(server.id().as_str());
        self.inner.tasks.spawn(async move {
            server.gone().await;
            metrics.forget_tools(server.id().as_str());
        });
    }

    /// A server that has its place at once.
    fn start_one(
        &self,
        changing: &mut Changing,
        id: &ServerId,
        config: &config::Server,
    ) -> Arc<Server> {
        if config.sharing != Sharing::Shared {
            self.inner.environment.metrics.forget_up(id.as_str());
        }
        Arc::new(match config.sharing {
            Sharing::Shared => {
                Server::Shared(self.start_backend(changing, id, config, Service::active()))
            }
            Sharing::Tenant => {
                let (environment, vault) =
                    (self.inner.environment.clone(), self.inner.vault.clone());
                let (tasks, stop) = (self.inner.tasks.clone(), self.inner.stop.clone());
                let free = self.free(changing, id, config);
                let (id, config) = (id.clone(), config.clone());
                let processes = PerTenant::new(id, config, environment, vault, tasks, stop, free);
                Server::PerTenant(Box::new(processes))
            }
            Sharing::Session => {
                let (environment, tasks) =
                    (self.inner.environment.clone(), self.inner.tasks.clone());
                let (stop, free) = (self.inner.stop.clone(), self.free(changing, id, config));
                let (id, config) = (id.clone(), config.clone());
                let processes = PerSession::new(id, config, environment, tasks, stop, free);
                Server::PerSession(Box::new(processes))
            }
        })
    }

    /// Cancelled when nothing is left of what had that name and must not run beside what has it now.
    fn free(
        &self,
        changing: &Changing,
        id: &ServerId,
        config: &config::Server,
    ) -> CancellationToken {
        let leaving = changing.leaving.iter().filter(|it| it.id() == id);
        let in_the_way = leaving.filter(|it| is_exclusive(it.config(), config));
        let in_the_way: Vec<_> = in_the_way.cloned().collect();
        let free = CancellationToken::new();
        let is_free = free.clone();
        self.inner.tasks.spawn(async move {
            for other in in_the_way {
                other.gone().await;
            }
            is_free.cancel();
        });
        free
    }

    /// A server that has its place when it is ready.
    fn start_successor(&self, changing: &mut Changing, old: Arc<Backend>, config: &config::Server) {
        let id = old.id();
        let next = self.start_backend(changing, id, config, Service::waiting());
        changing.successors.insert(id.clone(), next.clone());
        let registry = self.clone();
        self.inner.tasks.spawn(async move {
            // Else something else is wanted by now, or the gateway ends.
            if next.can_replace(&old).await {
                registry.install(&next);
            }
        });
    }

    fn start_backend(
        &self,
        changing: &mut Changing,
        id: &ServerId,
        config: &config::Server,
        service: Service,
    ) -> Arc<Backend> {
        let recipients = Recipients { changes: changing.listeners_of(id), client: None };
        let environment = self.inner.environment.clone();
        let (id_, config_) = (id.clone(), config.clone());
        let backend = Backend::with(id_, config_, environment, Arc::default(), recipients, service);
        let (supervised, stop) = (backend.clone(), self.inner.stop.clone());
        let free = self.free(changing, id, config);
        self.inner.tasks.spawn(async move {
            free.cancelled().await;
            supervised.supervise(stop).await;
        });
        backend
    }

    /// Gives a successor its place, unless something else is wanted by now.
    fn install(&self, next: &Arc<Backend>) {
        let id = next.id();
        let mut changing = self.inner.changing.lock();
        if !changing.successors.get(id).is_some_and(|it| Arc::ptr_eq(it, next)) {
            return;
        }
        changing.successors.remove(id);
        let mut after = Servers::clone(&self.inner.servers.load());
        let old = after.insert(id.clone(), Arc::new(Server::Shared(next.clone())));
        self.inner.servers.store(Arc::new(after));
        if let Some(old) = old {
            let_go(&old, Some(next.config()));
            changing.leaving.push(old);
        }
        next.enter_service();
        drop(changing);
        tracing::info!(server = %id, "server `{id}` has been replaced");
        self.note_change();
    }

    fn note_change(&self) {
        self.inner.version.send_modify(|version| *version += 1);
    }
}

impl Changing {
    fn give_up_successor(&mut self, id: &ServerId) {
        if let Some(next) = self.successors.remove(id) {
            next.retire(Duration::ZERO);
            self.leaving.push(Arc::new(Server::Shared(next)));
        }
    }

    fn listeners_of(&mut self, id: &ServerId) -> Arc<Changes> {
        if let Some(changes) = self.listeners.get(id).and_then(Weak::upgrade) {
            return changes;
        }
        let changes = Changes::new(id.clone());
        self.listeners.insert(id.clone(), Arc::downgrade(&changes));
        changes
    }
}

/// No more calls go to a server; it is stopped when those it has have ended. Where another waits for that, it is not
/// waited for calls that take longer than they usually may. Tenants' processes serve until there are others, if they may.
fn let_go(server: &Server, next: Option<&config::Server>) {
    match (server, next) {
        (Server::PerTenant(processes), Some(next))
            if next.sharing == Sharing::Tenant && !is_exclusive(server.config(), next) =>
        {
            processes.give_over();
        }
        _ => {
            let is_waited_for = next.is_some_and(|next| next.exclusive);
            server.retire(time_for_last_calls(server.config(), is_waited_for));
        }
    }
}

fn is_exclusive(before: &config::Server, after: &config::Server) -> bool {
    before.exclusive || after.exclusive
}

/// Whether a server can be started while the one before it still runs, and is to be.
fn goes_beside(before: &config::Server, after: &config::Server) -> bool {
    let is_shared = after.sharing == Sharing::Shared;
    is_shared && after.start == Start::Eager && !is_exclusive(before, after)
}

/// How long the calls of a server that takes no more may still take.
pub(super) fn time_for_last_calls(config: &config::Server, is_waited_for: bool) -> Duration {
    let is_short = config.exclusive || is_waited_for;
    let calls = if is_short { config.usual_call() } else { config.longest_call() };
    calls + CANCEL_GRACE
}
