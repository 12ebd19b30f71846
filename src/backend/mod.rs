//! A backend: one configured server, however often its process is started again.
//!
//! From the outside in:
//!
//! - [`Backend`]: what a call sees: the [`queue`] before the server, and whether it is ready
//! - [`pool`] is its copies; [`supervisor`] keeps each of them running, [`lifecycle`] decides when it is started,
//!   [`health`] and [`wear`] when it has to go; [`run`] is one run of it, [`start_error`] why there is none, one [`speaker`]
//!   is listened to; [`service`]: before it takes calls, and after
//! - [`process`] is the child under its [`guard`], within the bounds of [`confine`], [`stderr`] the last it said there,
//!   [`handshake`] opens it, [`tools`] lists what it has, [`pins`] holds back what is not as it was approved, [`redaction`]
//!   keeps tenants' secrets out of what it says
//! - [`connection`] multiplexes all callers: [`writer`], [`reader`], and the [`pending`] calls between them, each with
//!   its [`ticket`]; [`http`] is in the place of both for servers that have a URL
//! - [`during`] a call its caller may hear of it; [`changes`] are told to those who asked ([`subscriptions`] asks the
//!   server); [`client`] is who a server that is not shared belongs to

pub mod changes;
pub mod connection;
mod environment;
mod http;
pub mod instance;
pub mod queue;
pub mod retry_budget;
mod state;
pub mod stdio;
pub mod supervise;
#[cfg(test)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod uses;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{SemaphorePermit, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::changes::Changes;
use self::changes::audience::{Audience, Client};
pub use self::environment::Environment;
use self::instance::measured::Measured;
use self::instance::pool::{Lease, Load, Pool};
use self::queue::Queue;
use self::retry_budget::RetryBudget;
pub use self::state::{About, NotReady, Ready, State};
use self::supervise::rollover::Stage;
use self::uses::Uses;
use crate::common::ids::ServerId;
use crate::config::{self, Secrets, Transport};
use crate::protocol::mcp::Era;
use crate::telemetry::metrics::{ServerMetrics, UpMetrics};

/// How long a cancelled call keeps its slot if the server goes on with it.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// One configured server.
pub struct Backend {
    id: ServerId,
    config: config::Server,
    environment: Environment,
    /// What its tenant has stored for it.
    secrets: Arc<Secrets>,
    queue: Queue,
    pool: Pool,
    /// Where it stands as a whole.
    state: watch::Sender<State>,
    /// Held while one copy's change is shown, so that what is shown last is what was last.
    showing: Mutex<()>,
    audience: Audience,
    stage: watch::Sender<Stage>,
    /// Wakes a lazy server.
    wanted: CancellationToken,
    uses: Uses,
    /// Whether it has started or failed once.
    settled: AtomicBool,
    retries: RetryBudget,
    metrics: ServerMetrics,
    /// Of those that are not shared there are many; one of them does not speak for all.
    up: Option<UpMetrics>,
}

impl Backend {
    /// A backend whose server is not running yet. `secrets` are those of the tenant it is for; with a `client` it is
    /// that client's alone.
    pub fn new(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        secrets: Arc<Secrets>,
        client: Option<Arc<dyn Client>>,
    ) -> Arc<Self> {
        let audience = Audience::new(id.clone(), client);
        Self::with(id, config, environment, secrets, audience, Stage::Active)
    }

    /// The same for those who listen already, or beside another that has the name still.
    pub fn with(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        secrets: Arc<Secrets>,
        audience: Audience,
        stage: Stage,
    ) -> Arc<Self> {
        let initial = match config.start {
            config::Start::Eager => State::Starting,
            config::Start::Lazy => State::Idle,
        };
        let gate = environment.gate(&id, config.rate);
        let copies = if audience.client.is_some() { 1 } else { config.instances as usize };
        Arc::new(Self {
            audience,
            stage: watch::Sender::new(stage),
            queue: Queue::with_gate(copies * config.max_in_flight as usize, gate),
            pool: Pool::new(copies, &initial),
            state: watch::Sender::new(initial),
            showing: Mutex::new(()),
            wanted: CancellationToken::new(),
            uses: Uses::default(),
            settled: AtomicBool::new(config.start == config::Start::Lazy),
            retries: RetryBudget::default(),
            metrics: environment.metrics.server(id.as_str()),
            up: (config.sharing == config::Sharing::Shared)
                .then(|| environment.metrics.up(id.as_str())),
            id,
            config,
            environment,
            secrets,
        })
    }

    /// Keeps the server running until `stop`, or until it is retired and has no calls; done when its processes are gone.
    pub async fn supervise(self: Arc<Self>, stop: CancellationToken) {
        if self.is_draining() || stop.is_cancelled() {
            (0..self.pool.size()).for_each(|number| self.enter(number, State::Stopped, None));
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

    /// The running server. Waits while it is being started; refuses at once while it is not.
    pub async fn ready(&self, deadline: Instant) -> Result<Arc<Ready>, NotReady> {
        if let State::Ready(ready) = &*self.state.borrow()
            && !ready.connection.is_closed()
        {
            return Ok(ready.clone());
        }
        self.wanted.cancel();
        let mut state = self.state.subscribe();
        let settled = state.wait_for(State::is_settled);
        match timeout_at(deadline, settled).await.map(|state| state.map(|state| state.clone())) {
            Err(_) => Err(NotReady::StillStarting),
            Ok(Ok(State::Ready(ready))) => Ok(ready),
            Ok(Ok(state)) => Err(state.refusal()),
            Ok(Err(_)) => Err(NotReady::Stopped),
        }
    }

    /// Done when whoever waits in line should not any more, though its turn may be far away: all copies are in quarantine,
    /// or gone. Says why.
    pub async fn refuses(&self) -> NotReady {
        let mut state = self.state.subscribe();
        state.wait_for(State::is_hopeless).await.map_or(NotReady::Stopped, |state| state.refusal())
    }

    /// A place for one call on the copy that has the fewest, for who has a slot of the queue. `avoid` is a copy that has
    /// just failed it.
    pub async fn place(&self, avoid: Option<usize>, deadline: Instant) -> Result<Lease, NotReady> {
        if let Some(lease) = self.pool.take(avoid) {
            return Ok(lease);
        }
        loop {
            self.ready(deadline).await?;
            let mut state = self.state.subscribe();
            tokio::select! {
                lease = timeout_at(deadline, self.pool.place(avoid)) => {
                    return lease.map_err(|_| NotReady::StillStarting);
                }
                _ = state.wait_for(|state| !matches!(state, State::Ready(_))) => {}
            }
        }
    }

    /// Returns since when nobody uses it.
    pub fn idle_since(&self) -> Option<Instant> {
        self.uses.idle_since()
    }

    /// The server as soon as it runs, for whatever reason. Starts nothing.
    pub async fn first_ready(&self) -> Option<Arc<Ready>> {
        let mut state = self.state.subscribe();
        let ready = state.wait_for(|state| matches!(state, State::Ready(_) | State::Stopped)).await;
        match ready.as_deref() {
            Ok(State::Ready(ready)) => Some(ready.clone()),
            _ => None,
        }
    }

    /// Where it stands as soon as it has started or failed.
    pub async fn first_settled(&self) -> State {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(State::is_settled).await;
        settled.map_or(State::Stopped, |state| state.clone())
    }

    /// Has the tools listed again if they are older than their server wanted, and it does not tell when they change.
    /// Meanwhile the old list is as good as any.
    pub fn refresh_if_stale(&self, ready: &Ready) {
        let tells = ready.about.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed);
        if ready.dialect.version().era() == Era::Modern && !tells && ready.tools.is_stale() {
            ready.connection.note_tools_changed();
        }
    }

    /// Its id.
    pub fn id(&self) -> &ServerId {
        &self.id
    }

    /// Who wants to know what changes.
    pub fn changes(&self) -> &Arc<Changes> {
        &self.audience.changes
    }

    /// The line before it.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// How it is configured.
    pub fn config(&self) -> &config::Server {
        &self.config
    }

    /// How long a call may take unless it says otherwise.
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// How long whoever needs to know the server may wait for it to start.
    pub fn start_wait(&self) -> Duration {
        self.config.timeout.max(self.config.start_timeout)
    }

    /// How long calls that are under way may still take.
    fn time_for_calls(&self) -> Duration {
        self.config.longest_call() + self.environment.cancel_grace
    }

    /// Where it stands now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Whether it has started or failed once (or need not start before it is used).
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// What is counted.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Its copies, as the operator sees them.
    pub fn copies(&self) -> Vec<instance::pool::View> {
        self.pool.views()
    }

    /// Since when it takes no calls, and why, if it should.
    pub fn down(&self) -> Option<instance::pool::Down> {
        self.pool.down()
    }

    /// What may be tried again.
    pub fn retries(&self) -> &RetryBudget {
        &self.retries
    }

    /// A turn to start a copy. Connecting to a server elsewhere needs none.
    async fn turn_to_start(&self) -> Option<SemaphorePermit<'_>> {
        match self.config.transport {
            Transport::Stdio(_) => self.environment.turn_to_start().await,
            Transport::Http(_) => None,
        }
    }

    /// The one place where a copy comes to stand somewhere else.
    fn enter(&self, number: usize, state: State, load: Option<&Arc<Load>>) {
        let copy = match (&state, load) {
            (State::Ready(ready), Some(load)) => {
                let (ready, load) = (ready.clone(), load.clone());
                Some(Arc::new(instance::pool::Copy { number, ready, load }))
            }
            _ => None,
        };
        let _showing = self.showing.lock();
        let whole = self.pool.enter(number, state, copy);
        self.resize();
        if !matches!(whole, State::Idle | State::Starting) {
            self.settled.store(true, Ordering::Release);
        }
        self.state.send_replace(whole);
        self.forget_tools();
        if self.is_active() {
            self.update_up_metrics();
        }
    }

    /// Shows how much of the server can be called. Another of its name speaks for itself.
    fn update_up_metrics(&self) {
        let Some(metrics) = &self.up else { return };
        let is_active = self.is_active();
        let shown = |count: usize| if is_active { count as i64 } else { 0 };
        let is_up = matches!(*self.state.borrow(), State::Ready(_));
        metrics.up.set(shown(usize::from(is_up)));
        metrics.slots.set(shown(self.pool.slots()));
        metrics.instances.set(shown(self.pool.ready_len()));
        let down = if is_up || !is_active { None } else { self.pool.down() };
        metrics.down_since.set(down.map_or(0, |down| down.since.as_second()));
    }

    /// Of tools that the server has no more, nothing is shown any more. While it has none at all, it may come back with them.
    fn forget_tools(&self) {
        if let State::Ready(ready) = &*self.state.borrow() {
            self.metrics.tools.forget_unless(|name| ready.tools.get(name).is_some());
        }
    }

    /// Has the queue give out as many slots as the copies have. While none is
    /// ready their number stays: whoever gets one then is told that the server is down.
    fn resize(&self) {
        let slots = self.pool.slots();
        if slots > 0 {
            self.queue.set_slots_but(slots, self.pool.slots_left_free());
        }
    }

    /// Measures a call from now on, where that tells how many the copy can take.
    pub fn measure<'a>(&'a self, lease: &Lease, tool: &str) -> Measured<'a> {
        Measured::begin(self, &lease.copy().load, tool)
    }
}
