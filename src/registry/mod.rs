//! The servers of a gateway, by id.
//!
//! [`reload`] replaces the snapshot of servers as a whole: a call looks its server up without a
//! lock, and keeps what it has found.

mod known_tools;
mod operate;
mod per_session;
mod per_tenant;
mod process_group;
mod reload;
mod rollover;
mod session_places;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::per_session::PerSession;
pub use self::per_session::{NoBackend, SessionOwner};
use self::per_tenant::PerTenant;
use self::process_group::ProcessGroup;
use self::reload::Rollovers;
use self::rollover::Replaceable;
pub use crate::backend::BackendRef;
use crate::backend::changes::Changes;
use crate::backend::instance::tools::ToolSet;
use crate::backend::{Backend, CallerTokens, Environment, RunState};
use crate::common::ids::{ServerId, SessionId, TenantId};
use crate::common::limit_use::LimitUse;
use crate::common::offload::Offload;
use crate::config::{self, LeftOut};
use crate::events::Events;
use crate::tenants::Tenant;
use crate::tenants::secrets::Vault;

/// All configured servers, in the order of their ids.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    servers: ArcSwap<Servers>,
    /// Servers of an MCP client's file that are not started.
    left_out: ArcSwap<Vec<LeftOut>>,
    rollovers: Mutex<Rollovers>,
    /// Counts the snapshots, for those who follow them.
    version: watch::Sender<u64>,
    /// Whether every server of the first snapshot has started or failed once.
    settled: AtomicBool,
    /// Whether some server is called in the name of callers.
    wants_caller_tokens: AtomicBool,
    environment: Environment,
    vault: Arc<Vault>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

type Servers = BTreeMap<ServerId, Arc<Server>>;

/// One configured server, by who shares a backend.
pub enum Server {
    Shared(Arc<Backend>),
    PerTenant(Box<PerTenant>),
    PerSession(Box<PerSession>),
}

/// The backend of one tenant or session, as the operator sees it.
pub struct OwnedBackend {
    pub tenant: TenantId,
    pub session: Option<SessionId>,
    /// Takes the calls.
    pub backend: Arc<Backend>,
    /// Takes them as soon as it is ready.
    pub replacement: Option<Arc<Backend>>,
}

/// The source of a tenant's notifications of changes at a server.
pub struct ChangeSource {
    /// Stays the same, whatever becomes of the process.
    pub changes: Arc<Changes>,
    /// The backend, if there is one now.
    pub backend: Option<Arc<Backend>>,
}

impl Server {
    /// Returns the backend for a caller; starts one of the caller's own that is not running.
    pub fn backend(
        &self,
        tenant: &Tenant,
        owner: Option<&SessionOwner>,
    ) -> Result<BackendRef, NoBackend> {
        match (self, owner) {
            (Self::Shared(backend), _) => Ok(backend.clone().into()),
            (Self::PerTenant(tenants), _) => tenants.get(tenant),
            (Self::PerSession(sessions), Some(owner)) => Ok(sessions.get(owner)?.into()),
            (Self::PerSession(sessions), None) => match &sessions.sessionless {
                Some(tenants) => tenants.get(tenant),
                None => Err(NoBackend::NoSession),
            },
        }
    }

    /// Returns whether the server is called in the name of callers.
    pub fn wants_caller_tokens(&self) -> bool {
        matches!(self, Self::PerTenant(tenants) if tenants.wants_caller_tokens)
    }

    /// Returns the tokens of a tenant's callers, if the server is called in their name.
    pub(crate) fn caller_tokens(&self, tenant: &TenantId) -> Option<Arc<CallerTokens>> {
        match self {
            Self::PerTenant(tenants) => tenants.caller_tokens(tenant),
            Self::Shared(_) | Self::PerSession(_) => None,
        }
    }

    /// Returns the backend that all callers of a tenant share, if there is one now.
    pub fn running(&self, tenant: &TenantId) -> Option<Arc<Backend>> {
        match self {
            Self::Shared(backend) => Some(backend.clone()),
            Self::PerTenant(tenants) => tenants.existing(tenant),
            Self::PerSession(sessions) => sessions.sessionless.as_ref()?.existing(tenant),
        }
    }

    /// Returns whether callers need a session.
    pub fn needs_session(&self) -> bool {
        matches!(self, Self::PerSession(sessions) if sessions.sessionless.is_none())
    }

    /// Returns whether the server has a process for each session.
    pub fn is_per_session(&self) -> bool {
        matches!(self, Self::PerSession(_))
    }

    /// Returns whether the server may ask callers that have no session.
    pub fn asks_callers(&self) -> bool {
        matches!(self, Self::PerSession(sessions) if sessions.sessionless.is_some())
    }

    /// Returns the limit of a tenant's sessions, if each session has a process of its own.
    pub fn session_limit(&self, tenant: &TenantId) -> Option<LimitUse> {
        match self {
            Self::PerSession(sessions) => Some(sessions.limit_use(tenant)),
            Self::Shared(_) | Self::PerTenant(_) => None,
        }
    }

    /// Returns whether a call of this tenant, in this session, would start a process of its own.
    pub fn must_start_for(&self, tenant: &TenantId, owner: Option<&SessionOwner>) -> bool {
        match (self, owner) {
            (Self::PerTenant(tenants), _) => !tenants.has_process(tenant),
            (Self::PerSession(sessions), Some(it)) => sessions.existing(&it.session).is_none(),
            (Self::PerSession(sessions), None) => {
                sessions.sessionless.as_ref().is_some_and(|it| !it.has_process(tenant))
            }
            (Self::Shared(_), _) => false,
        }
    }

    /// Returns the tools of a process that must be started first, known from an earlier one.
    pub fn known_tools(
        &self,
        tenant: &TenantId,
        owner: Option<&SessionOwner>,
    ) -> Option<Arc<ToolSet>> {
        match (self, owner) {
            (Self::PerTenant(tenants), _) => tenants.known_tools(tenant),
            (Self::PerSession(sessions), Some(owner)) => sessions.known_tools(&owner.session),
            (Self::PerSession(sessions), None) => {
                sessions.sessionless.as_ref()?.known_tools(tenant)
            }
            (Self::Shared(_), _) => None,
        }
    }

    /// Returns the tools that are known now. Starts nothing.
    pub fn tools_now(&self, tenant: &TenantId) -> Option<Arc<ToolSet>> {
        let running = self.running(tenant).and_then(|backend| match backend.state() {
            RunState::Ready(ready) => Some(ready.tools.clone()),
            _ => None,
        });
        running.or_else(|| self.known_tools(tenant, None))
    }

    /// Returns the backend that a session has for itself, if there is one now.
    pub fn of_session(&self, session: &SessionId) -> Option<Arc<Backend>> {
        match self {
            Self::Shared(_) | Self::PerTenant(_) => None,
            Self::PerSession(sessions) => sessions.existing(session),
        }
    }

    /// Returns the backends that not everybody shares.
    pub fn owned(&self) -> Vec<OwnedBackend> {
        match self {
            Self::Shared(_) => vec![],
            Self::PerTenant(tenants) => tenants.all(),
            Self::PerSession(sessions) => sessions.all(),
        }
    }

    /// Returns the source of a tenant's notifications. `None` if each session has its own, and for
    /// callers in a session where others have one.
    pub fn source(&self, tenant: &TenantId, is_in_session: bool) -> Option<ChangeSource> {
        match self {
            Self::Shared(backend) => {
                let (changes, backend) = (backend.changes().clone(), Some(backend.clone()));
                Some(ChangeSource { changes, backend })
            }
            Self::PerTenant(tenants) => Some(tenants.source(tenant)),
            Self::PerSession(_) if is_in_session => None,
            Self::PerSession(sessions) => Some(sessions.sessionless.as_ref()?.source(tenant)),
        }
    }

    /// Returns the shared backend, or else the group of processes.
    fn shared_or_group(&self) -> Result<&Arc<Backend>, &ProcessGroup> {
        match self {
            Self::Shared(backend) => Ok(backend),
            Self::PerTenant(tenants) => Err(&tenants.group),
            Self::PerSession(sessions) => Err(&sessions.group),
        }
    }

    /// Returns the backend that everybody shares.
    pub fn shared(&self) -> Option<&Arc<Backend>> {
        self.shared_or_group().ok()
    }

    /// Returns all its backends, shared or not.
    pub fn backends(&self) -> Vec<Arc<Backend>> {
        match self.shared() {
            Some(shared) => vec![shared.clone()],
            None => self.owned().into_iter().map(|owned| owned.backend).collect(),
        }
    }

    pub fn id(&self) -> &ServerId {
        self.shared_or_group().map_or_else(|group| &group.id, |backend| backend.id())
    }

    pub fn config(&self) -> &config::ServerConfig {
        self.shared_or_group().map_or_else(|group| &group.config, |backend| backend.config())
    }

    /// Waits until nothing is left of one that drains.
    async fn gone(&self) {
        match self.shared_or_group() {
            Ok(backend) => backend.gone().await,
            Err(group) => group.gone().await,
        }
    }
}

impl Replaceable for Arc<Server> {
    fn config(&self) -> &config::ServerConfig {
        Server::config(self)
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }

    fn is_draining(&self) -> bool {
        match self.shared_or_group() {
            Ok(backend) => backend.is_draining(),
            Err(group) => group.retired.is_cancelled(),
        }
    }

    fn is_gone(&self) -> bool {
        match self.shared_or_group() {
            Ok(backend) => backend.is_gone(),
            Err(group) => group.is_gone(),
        }
    }

    fn drain(&self, within: Duration) {
        match &**self {
            Server::Shared(backend) => backend.drain(within),
            Server::PerTenant(tenants) => tenants.drain(within),
            Server::PerSession(sessions) => sessions.drain(within),
        }
    }
}

impl Registry {
    pub fn events(&self) -> &Events {
        &self.inner.environment.events
    }

    pub fn offload(&self) -> &Offload {
        &self.inner.environment.offload
    }

    /// Returns this executable, of which the bundled server is a part.
    pub fn own_program(&self) -> &Path {
        &self.inner.environment.own_program
    }

    /// Starts every shared server. Tasks of `tasks` supervise them until `stop`. `vault` has the
    /// secrets that servers of tenants need.
    pub fn start(
        servers: &BTreeMap<ServerId, config::ServerConfig>,
        environment: &Environment,
        vault: &Arc<Vault>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let registry = Self {
            inner: Arc::new(Inner {
                servers: ArcSwap::default(),
                left_out: ArcSwap::default(),
                rollovers: Mutex::default(),
                version: watch::Sender::new(0),
                settled: AtomicBool::new(false),
                wants_caller_tokens: AtomicBool::new(false),
                environment: environment.clone(),
                vault: vault.clone(),
                tasks: tasks.clone(),
                stop: stop.clone(),
            }),
        };
        registry.apply(servers);
        registry
    }

    pub fn get(&self, id: &str) -> Option<Arc<Server>> {
        self.inner.servers.load().get(id).cloned()
    }

    pub fn servers(&self) -> Vec<Arc<Server>> {
        self.inner.servers.load().values().cloned().collect()
    }

    /// Returns whether some server is called in the name of callers: their tokens are kept then.
    pub fn wants_caller_tokens(&self) -> bool {
        self.inner.wants_caller_tokens.load(Ordering::Relaxed)
    }

    /// Returns the backends that everybody shares.
    pub fn shared(&self) -> impl Iterator<Item = Arc<Backend>> {
        self.servers().into_iter().filter_map(|server| server.shared().cloned())
    }

    /// Returns the backend that replaces a server's when it is ready; the tenant's, if each has its
    /// own.
    pub fn replacement(&self, server: &Server, tenant: Option<&TenantId>) -> Option<Arc<Backend>> {
        if let Server::PerTenant(tenants) = server {
            return tenants.replacement(tenant?);
        }
        self.inner.rollovers.lock().get(server.id())?.waiting()?.shared().cloned()
    }

    /// Tells when servers came or went, or were replaced.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }

    /// Returns the backends that were started for a session.
    pub fn of_session(&self, session: &SessionId) -> Vec<Arc<Backend>> {
        self.servers().iter().filter_map(|server| server.of_session(session)).collect()
    }

    /// Ends whatever was started for a session.
    pub fn end_session(&self, session: &SessionId) {
        for server in self.servers() {
            if let Server::PerSession(sessions) = &*server {
                sessions.end(session);
            }
        }
    }

    /// Returns whether every server has started or failed once. Later ones do not change the
    /// answer.
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
