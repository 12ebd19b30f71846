//! A server of which every MCP session has a process of its own (`sharing = "session"`): for servers that
//! keep state per connection, or that ask their client for something.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Own;
use crate::backend::changes::recipients::SessionClient;
use crate::backend::{Backend, Environment};
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::config::{self, Start};

/// Whose processes they are.
#[derive(Clone)]
pub struct Owner {
    /// Whose session.
    pub tenant: TenantId,
    /// The session.
    pub session: SessionId,
    /// Who is asked when a server has a question.
    pub client: Arc<dyn SessionClient>,
}

/// Why there is no process for a caller.
#[derive(Debug, PartialEq, Eq)]
pub enum NoProcess {
    /// It does not call in a session.
    NoSession,
    /// There are as many as there may be.
    TooMany,
    /// The tenant has not stored what the server needs.
    SecretsMissing {
        /// Which server.
        server: ServerId,
        /// Their names.
        names: Vec<String>,
    },
    /// The gateway shuts down.
    Stopped,
}

/// The processes of one server.
pub struct PerSession {
    id: ServerId,
    config: config::Server,
    environment: Environment,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Cancelled, under the lock of the processes, when no more are started.
    retired: CancellationToken,
    /// Cancelled when what had its name before is gone, where that must be.
    free: CancellationToken,
    /// For those that run: one that makes room for another has its place until it is gone.
    places: Arc<Semaphore>,
    processes: Arc<Mutex<HashMap<SessionId, Process>>>,
    /// The tasks of all of them.
    running: TaskTracker,
}

struct Process {
    owner: Owner,
    backend: Arc<Backend>,
    stop: CancellationToken,
}

impl Process {
    /// Whether it is not about to end.
    fn stays(&self) -> bool {
        !self.stop.is_cancelled() && !self.owner.client.has_ended()
    }
}

impl PerSession {
    pub(super) fn new(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        tasks: TaskTracker,
        stop: CancellationToken,
        free: CancellationToken,
    ) -> Self {
        let (retired, processes) = (CancellationToken::new(), Arc::default());
        let environment = environment.with_own_starts();
        let places = Arc::new(Semaphore::new(config.max_sessions as usize));
        let running = TaskTracker::new();
        // Done whenever there is none; more may come all the same.
        running.close();
        Self { id, config, environment, tasks, stop, retired, free, places, processes, running }
    }

    /// The same with another configuration. The processes that there are stay as they are until their sessions end.
    pub(super) fn renewed(&self, config: config::Server) -> Self {
        Self {
            id: self.id.clone(),
            places: Arc::new(Semaphore::new(config.max_sessions as usize)),
            config,
            environment: self.environment.clone(),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
            retired: CancellationToken::new(),
            free: self.free.clone(),
            processes: self.processes.clone(),
            running: self.running.clone(),
        }
    }

    /// Starts no more processes, lets the calls of those that there are end, and stops them.
    pub(super) fn retire(&self, within: Duration) {
        let processes = self.processes.lock();
        self.retired.cancel();
        for process in processes.values() {
            process.backend.retire(within);
        }
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

    /// The session's process; started if it is not running.
    pub(super) fn get(&self, owner: &Owner) -> Result<Arc<Backend>, NoProcess> {
        let mut processes = self.processes.lock();
        if let Some(process) = processes.get(&owner.session) {
            return Ok(process.backend.clone());
        }
        let is_over = self.stop.is_cancelled() || self.retired.is_cancelled();
        if is_over || owner.client.has_ended() {
            return Err(NoProcess::Stopped);
        }
        if !make_room(&processes, &owner.tenant, self.config.max_sessions as usize) {
            return Err(NoProcess::TooMany);
        }
        let config = config::Server { start: Start::Eager, ..self.config.clone() };
        let client = Some(owner.client.clone());
        let (id, environment) = (self.id.clone(), self.environment.clone());
        let backend = Backend::new(id, config, environment, Arc::default(), client);
        let stop = self.stop.child_token();
        let running = Running {
            backend: backend.clone(),
            owner: owner.clone(),
            stop: stop.clone(),
            free: self.free.clone(),
            places: self.places.clone(),
            processes: self.processes.clone(),
        };
        self.tasks.spawn(self.running.track_future(running.run()));
        owner.client.follow_changes(backend.changes());
        let process = Process { owner: owner.clone(), backend: backend.clone(), stop };
        processes.insert(owner.session.clone(), process);
        Ok(backend)
    }

    /// The session's process, if it is running.
    pub(super) fn existing(&self, session: &SessionId) -> Option<Arc<Backend>> {
        self.processes.lock().get(session).map(|process| process.backend.clone())
    }

    pub(super) fn all(&self) -> Vec<Own> {
        let processes = self.processes.lock();
        let own = processes.iter().map(|(session, process)| Own {
            tenant: process.owner.tenant.clone(),
            session: Some(session.clone()),
            backend: process.backend.clone(),
            replacement: None,
        });
        own.collect()
    }

    pub(super) fn end(&self, session: &SessionId) {
        if let Some(process) = self.processes.lock().get(session) {
            process.stop.cancel();
        }
    }
}

/// Whether a tenant may have another process. If there are as many as there may be, the session that has been left for
/// longest ends: one of the tenant's own, or else of a tenant that has more than its part, where this one has less.
fn make_room(processes: &HashMap<SessionId, Process>, tenant: &TenantId, max: usize) -> bool {
    let mut counts: HashMap<&TenantId, usize> = HashMap::from([(tenant, 0)]);
    for process in processes.values().filter(|process| process.stays()) {
        *counts.entry(&process.owner.tenant).or_default() += 1;
    }
    let (of_tenant, of_all) = (counts[tenant], counts.values().sum::<usize>());
    // While several tenants use the server, the last quarter is for those that have none.
    let reserve = if of_all > of_tenant && of_tenant > 0 { max / 4 } else { 0 };
    if of_all + reserve < max {
        return true;
    }
    let part = (max / counts.len()).max(1);
    let may_make_room = |process: &Process| {
        let theirs = &process.owner.tenant;
        theirs == tenant || (of_tenant < part && counts[theirs] > part)
    };
    let resting = processes.values().filter(|process| process.stays() && may_make_room(process));
    let resting = resting.filter_map(|process| {
        let since = process.owner.client.inactive_since()?;
        Some((process.owner.tenant != *tenant, since, process))
    });
    let mut resting: Vec<_> = resting.collect();
    resting.sort_by_key(|(is_other, since, _)| (*is_other, *since));
    // It may just have been called.
    let left = resting.into_iter().find(|(_, _, process)| process.owner.client.end_if_inactive());
    if let Some((_, _, process)) = left {
        process.stop.cancel();
    }
    left.is_some()
}

/// The life of a session's process.
struct Running {
    backend: Arc<Backend>,
    owner: Owner,
    stop: CancellationToken,
    free: CancellationToken,
    places: Arc<Semaphore>,
    processes: Arc<Mutex<HashMap<SessionId, Process>>>,
}

impl Running {
    /// Keeps it until its session has ended, or has been left idle: then it ends with its process, since what the server
    /// remembered of it is gone. The process counts against the limit until it is gone.
    async fn run(self) {
        let supervised = async {
            let place = async {
                self.free.cancelled().await;
                self.places.acquire().await
            };
            let _place = tokio::select! {
                place = place => Some(place),
                () = self.stop.cancelled() => None,
            };
            self.backend.clone().supervise(self.stop.clone()).await;
        };
        tokio::pin!(supervised);
        tokio::select! {
            () = &mut supervised => {}
            () = self.left_idle() => {
                self.owner.client.end();
                self.stop.cancel();
                supervised.await;
            }
        }
        self.processes.lock().remove(&self.owner.session);
    }

    async fn left_idle(&self) {
        let (client, idle_timeout) = (&self.owner.client, self.backend.config().idle_timeout);
        loop {
            let since = client.idle_since().unwrap_or_else(Instant::now);
            if since.elapsed() >= idle_timeout {
                return;
            }
            tokio::select! {
                () = sleep_until(since + idle_timeout) => {}
                // Left by another of its processes, or deleted.
                () = client.ended() => return,
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/per_session.rs"]
mod tests;
