//! A backend: the running side of one configured server.
//!
//! From the outside in:
//!
//! - [`Backend`]: one server as calls see it, and its [`state`]
//! - [`queue`]: gives slots to tenants fairly
//! - [`retry_budget`]: bounds how often each tenant's calls are made again
//! - [`instance`]: one process or one connection with a `url`, and the pool of them
//! - [`supervise`]: starts, watches, restarts and replaces instances
//! - [`connection`]: multiplexes the calls of all tenants over one stream
//! - [`stdio`] and [`http`]: the two transports
//! - [`changes`]: tells listeners what has changed at the server

pub mod changes;
pub mod connection;
mod environment;
mod http;
pub mod instance;
mod operate;
pub mod queue;
mod retry_budget;
mod state;
pub mod stdio;
pub mod supervise;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::changes::Changes;
use self::changes::recipients::Recipients;
pub use self::environment::Environment;
pub(crate) use self::http::oauth::{CallerTokens, TokenError, TokenSource};
use self::instance::pool::{Down, InstancePermit, InstanceStatus, Pool, Uses};
use self::queue::{Queue, QueueOptions, SlotPermit};
use self::retry_budget::RetryBudgets;
pub use self::state::{About, NotReady, Ready, RunState};
use self::supervise::cells::Isolation;
pub use self::supervise::cells::{Suspect, TenantQuarantined};
use self::supervise::rollover::Stage;
use crate::common::ids::{ServerId, TenantId};
use crate::common::offload::Offload;
use crate::config::{self, Secrets, Transport};
use crate::protocol::mcp::Era;
use crate::telemetry::metrics::{ServerMetrics, UpMetrics};

/// A cancelled call keeps its slot for this long if the server goes on with it.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

pub struct Backend {
    id: ServerId,
    config: config::ServerConfig,
    environment: Environment,
    /// The secrets of the backend's tenant, if it has one.
    secrets: Arc<Secrets>,
    queue: Arc<Queue>,
    pool: Pool,
    /// The best state of all instances.
    state: watch::Sender<RunState>,
    /// Held while an instance changes its state, so that `state` ends with the last change.
    changing_state: Mutex<()>,
    recipients: Recipients,
    stage: watch::Sender<Stage>,
    /// Cancelled by the first call: wakes a lazy server.
    wanted: CancellationToken,
    uses: Uses,
    /// True once the server has started or failed.
    settled: AtomicBool,
    retries: RetryBudgets,
    metrics: ServerMetrics,
    /// Set for shared servers only: a tenant's backend does not stand for the whole server.
    up: Option<UpMetrics>,
    isolation: Isolation,
}

impl Backend {
    /// Creates a backend whose server is not running yet. With a client in `recipients` it belongs
    /// to that client alone. During a rollover `stage` is `Waiting`.
    pub fn new(
        id: ServerId,
        config: config::ServerConfig,
        environment: Environment,
        secrets: Arc<Secrets>,
        recipients: Recipients,
        stage: Stage,
    ) -> Arc<Self> {
        let isolation = Isolation::of(&config, environment.budget.probe_every);
        let up = (config.sharing == config::Sharing::Shared)
            .then(|| environment.metrics.up(id.as_str()));
        let mut new = Self::new_alone(id, config, environment, secrets, recipients, stage);
        (new.isolation, new.up) = (isolation, up);
        Arc::new(new)
    }

    /// Creates a cell of this shared backend.
    fn new_cell(self: &Arc<Self>, number: u64) -> Arc<Self> {
        let config = config::ServerConfig {
            instances: 1,
            start: config::Start::Lazy,
            // It does not live long, and its only run is the cell.
            recycle: config::Recycle::default(),
            ..self.config.clone()
        };
        let mut cell = Self::new_alone(
            self.id.clone(),
            config,
            self.environment.clone().with_own_starts(),
            self.secrets.clone(),
            self.recipients.clone(),
            Stage::Active,
        );
        cell.isolation = Isolation::Cell { shared: Arc::downgrade(self), number };
        Arc::new(cell)
    }

    /// Creates a backend that does not stand for a server, and keeps no tenants apart.
    fn new_alone(
        id: ServerId,
        config: config::ServerConfig,
        environment: Environment,
        secrets: Arc<Secrets>,
        recipients: Recipients,
        stage: Stage,
    ) -> Self {
        let initial = match config.start {
            config::Start::Eager => RunState::Starting,
            config::Start::Lazy => RunState::Idle,
        };
        let options = QueueOptions {
            gate: environment.gate(&id, config.rate),
            is_shared: config.sharing == config::Sharing::Shared,
            lend_max: config.timeout,
        };
        let size = if recipients.client.is_some() { 1 } else { config.instances as usize };
        let queue = Queue::new(size * config.max_in_flight as usize, options);
        if environment.is_paused(&id) {
            queue.hold(true);
        }
        Self {
            recipients,
            stage: watch::Sender::new(stage),
            queue,
            pool: Pool::new(size, &initial),
            state: watch::Sender::new(initial),
            changing_state: Mutex::new(()),
            wanted: CancellationToken::new(),
            uses: Uses::default(),
            settled: AtomicBool::new(config.start == config::Start::Lazy),
            retries: RetryBudgets::default(),
            metrics: environment.metrics.server(id.as_str()),
            up: None,
            isolation: Isolation::None,
            id,
            config,
            environment,
            secrets,
        }
    }

    /// Keeps the server running until `stop`, or until it is drained; done when its processes are
    /// gone.
    pub async fn supervise(self: Arc<Self>, stop: CancellationToken) {
        if self.is_draining() || stop.is_cancelled() {
            let stopped = |number| self.set_instance_state(number, RunState::Stopped, None);
            (0..self.pool.size()).for_each(stopped);
        } else {
            let (stop, halt) = (stop.child_token(), stop);
            let mut running = std::pin::pin!(supervise::run(self.clone(), stop.clone(), halt));
            tokio::select! {
                () = &mut running => {}
                () = self.drained() => {
                    stop.cancel();
                    running.await;
                }
            }
        }
        self.set_gone();
    }

    /// Returns the running server. Waits while it is being started; refuses at once while it is
    /// not.
    pub async fn ready(&self, deadline: Instant) -> Result<Arc<Ready>, NotReady> {
        if let RunState::Ready(ready) = &*self.state.borrow()
            && !ready.connection.is_closed()
        {
            return Ok(ready.clone());
        }
        self.wanted.cancel();
        match timeout_at(deadline, self.first_settled()).await {
            Err(_) => Err(NotReady::StillStarting),
            Ok(RunState::Ready(ready)) => Ok(ready),
            Ok(state) => Err(self.refusal(&state)),
        }
    }

    /// Waits until it is pointless to wait in the queue, because all instances are in quarantine or
    /// stopped; says why.
    pub async fn unavailable(&self) -> NotReady {
        let mut state = self.state.subscribe();
        state
            .wait_for(RunState::is_hopeless)
            .await
            .map_or(NotReady::Stopped, |state| self.refusal(&state))
    }

    /// Waits for the least busy instance, for a call that has a slot of the queue. `avoid` is an
    /// instance that has just failed the call.
    pub async fn instance_permit(
        &self,
        avoid: Option<usize>,
        deadline: Instant,
    ) -> Result<InstancePermit, NotReady> {
        if let Some(permit) = self.pool.try_acquire(avoid) {
            return Ok(permit);
        }
        loop {
            self.ready(deadline).await?;
            let mut state = self.state.subscribe();
            tokio::select! {
                permit = timeout_at(deadline, self.pool.acquire(avoid)) => {
                    return permit.map_err(|_| NotReady::StillStarting);
                }
                _ = state.wait_for(|state| !matches!(state, RunState::Ready(_))) => {}
            }
        }
    }

    /// Waits for the instance whose process has this number. [`NotReady::Gone`] if it has ended.
    pub async fn permit_at_run(
        &self,
        run: u64,
        deadline: Instant,
    ) -> Result<InstancePermit, NotReady> {
        let permit = timeout_at(deadline, self.pool.acquire_run(run)).await;
        permit.map_err(|_| NotReady::StillStarting)?.ok_or(NotReady::Gone)
    }

    /// Returns the time of the last use, unless a use goes on.
    pub fn idle_since(&self) -> Option<Instant> {
        self.uses.idle_since()
    }

    /// Waits until the server runs, without starting it. Returns `None` if it was stopped.
    pub async fn first_ready(&self) -> Option<Arc<Ready>> {
        let mut state = self.state.subscribe();
        let ready =
            state.wait_for(|state| matches!(state, RunState::Ready(_) | RunState::Stopped)).await;
        match ready.as_deref() {
            Ok(RunState::Ready(ready)) => Some(ready.clone()),
            _ => None,
        }
    }

    /// Waits until the server has started or failed.
    pub async fn first_settled(&self) -> RunState {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(RunState::is_settled).await;
        settled.map_or(RunState::Stopped, |state| state.clone())
    }

    /// Has the tools listed again if their list has expired, and the server does not announce
    /// changes. The old list serves meanwhile.
    pub fn refresh_if_stale(&self, ready: &Ready) {
        let tells = ready.about.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed);
        if ready.dialect.version().era() == Era::Modern && !tells && ready.tools.is_stale() {
            ready.connection.note_tools_changed();
        }
    }

    pub fn id(&self) -> &ServerId {
        &self.id
    }

    pub fn changes(&self) -> &Arc<Changes> {
        &self.recipients.changes
    }

    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub fn offload(&self) -> &Offload {
        &self.environment.offload
    }

    pub fn config(&self) -> &config::ServerConfig {
        &self.config
    }

    /// Returns how long a call may take unless it says otherwise.
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Returns how long a caller may wait for the server to start.
    pub fn start_wait(&self) -> Duration {
        self.config.timeout.max(self.config.start_timeout)
    }

    pub fn state(&self) -> RunState {
        self.state.borrow().clone()
    }

    /// Returns true if the server has started or failed once, or is lazy.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Returns its instances, as the operator sees them.
    pub fn instances(&self) -> Vec<InstanceStatus> {
        self.pool.instances()
    }

    /// Adds the number of each tenant's calls at all its instances.
    pub fn count_calls(&self, by_tenant: &mut HashMap<TenantId, u32>) {
        self.pool.count_calls(by_tenant);
    }

    /// Returns since when it takes no calls, and why, if it should take them.
    pub fn down(&self) -> Option<Down> {
        self.pool.down()
    }

    pub fn retries(&self) -> &RetryBudgets {
        &self.retries
    }

    /// Waits for the permit to start a process. Connecting to a server with a `url` needs
    /// none.
    async fn start_permit(&self) -> Option<SlotPermit> {
        match &self.config.transport {
            // The bundled server starts in no time, so it waits behind no download. Callers' own
            // processes take turns, whatever they are.
            Transport::Stdio(program)
                if program.command == self.environment.own_program
                    && self.environment.tenant == TenantId::gateway() =>
            {
                None
            }
            Transport::Stdio(_) => Some(self.environment.start_permit().await),
            Transport::Http(_) => None,
        }
    }
}

/// A backend in use, until dropped.
pub struct BackendRef {
    backend: Arc<Backend>,
    /// The shared backend of a cell: it is in use, too.
    _shared: Option<Box<Self>>,
}

impl BackendRef {
    fn of_cell(cell: Arc<Backend>, shared: Self) -> Self {
        cell.uses.try_begin(u32::MAX);
        Self { backend: cell, _shared: Some(Box::new(shared)) }
    }
}

impl From<Arc<Backend>> for BackendRef {
    fn from(backend: Arc<Backend>) -> Self {
        backend.uses.try_begin(u32::MAX);
        Self { backend, _shared: None }
    }
}

impl Deref for BackendRef {
    type Target = Arc<Backend>;

    fn deref(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl Drop for BackendRef {
    fn drop(&mut self) {
        self.backend.uses.end();
    }
}
