//! A server of which every MCP session has a process of its own (`sharing = "session"`): for
//! servers that keep state per connection, or that ask their client for something.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::known_tools::{KnownTools, learn_tools};
use super::per_tenant::PerTenant;
use super::process_group::{ProcessGroup, ProcessSlot};
use super::{OwnedBackend, rollover, session_places};
use crate::backend::Backend;
use crate::backend::changes::recipients::{Recipients, SessionClient};
use crate::backend::instance::tools::ToolSet;
use crate::backend::supervise::rollover::Stage;
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::common::limit_use::LimitUse;
use crate::config::{self, ServerConfig, Sharing, Start};
use crate::tenants::secrets::Vault;

/// The session that a backend belongs to.
#[derive(Clone)]
pub struct SessionOwner {
    pub tenant: TenantId,
    pub session: SessionId,
    /// Answers the server's questions.
    pub client: Arc<dyn SessionClient>,
}

/// Why there is no backend for a caller.
#[derive(Debug, PartialEq, Eq)]
pub enum NoBackend {
    /// The caller is in no session.
    NoSession,
    /// The tenant has as many processes as it may, and uses all of them.
    TenantFull(LimitUse),
    /// All processes are in use.
    TooMany,
    /// The tenant has not stored these secrets, which the server needs.
    SecretsMissing { server: ServerId, names: Vec<String> },
    /// The tenant has not connected itself to the server.
    NotConnected { server: ServerId, url: String },
    /// The gateway shuts down, or the server was replaced a moment ago.
    Stopped,
}

pub struct PerSession {
    pub(super) group: ProcessGroup,
    processes: Arc<Mutex<HashMap<SessionId, SessionProcess>>>,
    /// All processes are started alike, and no tenant has secrets in them.
    known: Arc<Mutex<KnownTools>>,
    /// Serves callers without a session, if the operator allows that.
    pub(super) sessionless: Option<PerTenant>,
    /// Set once the log says that lists leave the server out.
    is_said: AtomicBool,
}

#[derive(Clone)]
pub(super) struct SessionProcess {
    pub(super) owner: SessionOwner,
    pub(super) backend: Arc<Backend>,
    pub(super) stop: CancellationToken,
}

impl SessionProcess {
    /// Returns whether it is not about to end.
    pub(super) fn stays(&self) -> bool {
        !self.stop.is_cancelled() && !self.owner.client.has_ended()
    }
}

impl PerSession {
    pub(super) fn new(group: ProcessGroup, vault: &Arc<Vault>) -> Self {
        let (processes, known) = Default::default();
        let sessionless = of_tenants(&group.config);
        let sessionless = sessionless.map(|it| PerTenant::new(group.renewed(it), vault.clone()));
        Self { group, processes, known, sessionless, is_said: AtomicBool::new(false) }
    }

    /// Returns the same server with another configuration. Processes of sessions stay until these
    /// end, those of tenants until [`Self::replaced_by`].
    pub(super) fn renewed(&self, config: config::ServerConfig, vault: &Arc<Vault>) -> Self {
        let (processes, known) = (self.processes.clone(), self.known.clone());
        let group = self.group.renewed(config);
        let sessionless = of_tenants(&group.config).map(|config| match &self.sessionless {
            Some(tenants) => tenants.renewed(config),
            None => PerTenant::new(group.renewed(config), vault.clone()),
        });
        Self { group, processes, known, sessionless, is_said: AtomicBool::new(false) }
    }

    /// Starts no more processes for tenants. Those that there are serve until the next server has
    /// others ready, or drain if it serves sessions alone.
    pub(super) fn replaced_by(&self, next: &config::ServerConfig) {
        match (&self.sessionless, of_tenants(next)) {
            (Some(tenants), Some(next)) => tenants.replaced_by(&next),
            (Some(tenants), None) => tenants.drain(rollover::drain_time(&self.group.config, false)),
            (None, _) => {}
        }
    }

    /// Says in the log, once, that lists leave the server out for clients without a session.
    pub fn say_left_out(&self) {
        if !self.is_said.swap(true, Ordering::Relaxed) {
            let server = &self.group.id;
            tracing::info!(
                %server,
                "lists at `/mcp` leave out server `{server}` for clients of the modern era: it has \
                 a process for each session (`sharing = \"session\"`), and they have none"
            );
        }
    }

    /// Starts no more processes, and drains those that there are.
    pub(super) fn drain(&self, within: Duration) {
        let processes = self.processes.lock();
        self.group.retired.cancel();
        processes.values().for_each(|process| process.backend.drain(within));
        drop(processes);
        self.sessionless.iter().for_each(|tenants| tenants.drain(within));
    }

    /// Returns the session's backend; starts it if it is not running.
    pub(super) fn get(&self, owner: &SessionOwner) -> Result<Arc<Backend>, NoBackend> {
        let mut processes = self.processes.lock();
        if let Some(process) = processes.get(&owner.session) {
            return Ok(process.backend.clone());
        }
        let is_over = self.group.stop.is_cancelled() || self.group.retired.is_cancelled();
        if is_over || owner.client.has_ended() {
            return Err(NoBackend::Stopped);
        }
        session_places::ensure_place(&processes, &owner.tenant, self.server())?;
        let config = config::ServerConfig { start: Start::Eager, ..self.group.config.clone() };
        let recipients = Recipients {
            shown_tools: self.known.lock().get(None),
            ..Recipients::new(self.group.id.clone(), Some(owner.client.clone()))
        };
        let id = self.group.id.clone();
        let environment = self.group.environment.of_tenant(&owner.tenant);
        let secrets = Arc::default();
        let backend = Backend::new(id, config, environment, secrets, recipients, Stage::Active);
        let (owner, stop) = (owner.clone(), self.group.stop.child_token());
        let process = SessionProcess { owner, backend: backend.clone(), stop };
        self.group.spawn(self.run(process.clone()));
        process.owner.client.follow_changes(backend.changes());
        processes.insert(process.owner.session.clone(), process);
        Ok(backend)
    }

    /// Runs a process until its session has ended or is idle. An idle session ends with its
    /// process, since the server's memory of it is gone.
    fn run(&self, process: SessionProcess) -> impl Future<Output = ()> + Send + use<> {
        let may_start = self.group.may_start(&process.owner.tenant, ProcessSlot::default());
        let (processes, known) = (self.processes.clone(), self.known.clone());
        async move {
            let SessionProcess { owner, backend, stop } = &process;
            let run = rollover::run(backend.clone(), may_start, None, || {}, stop.clone());
            tokio::pin!(run);
            tokio::select! {
                () = &mut run => {}
                () = learn_tools(backend, None, &known) => {}
                () = idle(&*owner.client, backend.config().idle_timeout) => {
                    owner.client.end();
                    stop.cancel();
                    run.await;
                }
            }
            processes.lock().remove(&owner.session);
        }
    }

    /// Returns the session's backend, if it is running.
    pub(super) fn existing(&self, session: &SessionId) -> Option<Arc<Backend>> {
        self.processes.lock().get(session).map(|process| process.backend.clone())
    }

    fn server(&self) -> (&ServerId, &ServerConfig) {
        (&self.group.id, &self.group.config)
    }

    pub(super) fn limit_use(&self, tenant: &TenantId) -> LimitUse {
        session_places::limit_use(&self.processes.lock(), tenant, self.server())
    }

    /// Returns the tools that the session's process will have, if it does not run and an earlier
    /// one was alike. The definitions of a pinned server must be approved, which only a process
    /// shows.
    pub(super) fn known_tools(&self, session: &SessionId) -> Option<Arc<ToolSet>> {
        if self.group.config.pin || self.existing(session).is_some() {
            return None;
        }
        self.known.lock().get(None)
    }

    pub(super) fn all(&self) -> Vec<OwnedBackend> {
        let processes = self.processes.lock();
        let owned = processes.iter().map(|(session, process)| OwnedBackend {
            tenant: process.owner.tenant.clone(),
            session: Some(session.clone()),
            backend: process.backend.clone(),
            replacement: None,
        });
        let of_tenants = self.sessionless.iter().flat_map(PerTenant::all);
        owned.chain(of_tenants).collect()
    }

    pub(super) fn end(&self, session: &SessionId) {
        if let Some(process) = self.processes.lock().get(session) {
            process.stop.cancel();
        }
    }
}

/// Returns the configuration of the processes that serve callers without a session, if they are
/// served. With one call at a time, a question of the server is about that call.
fn of_tenants(config: &ServerConfig) -> Option<ServerConfig> {
    config.sessionless.then(|| ServerConfig {
        sharing: Sharing::Tenant,
        max_in_flight: 1,
        adaptive: false,
        max_tenants: config.max_sessions,
        ..config.clone()
    })
}

/// Waits until a session has not been used for `idle_timeout`, or has ended.
async fn idle(client: &dyn SessionClient, idle_timeout: Duration) {
    loop {
        let since = client.idle_since().unwrap_or_else(Instant::now);
        if since.elapsed() >= idle_timeout {
            return;
        }
        tokio::select! {
            () = sleep_until(since + idle_timeout) => {}
            // By the idle process of another server, or by its client.
            () = client.ended() => return,
        }
    }
}
