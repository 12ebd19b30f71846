//! A backend: one configured server, however often its process is started again.
//!
//! From the outside in:
//!
//! - [`Backend`]: what a call sees: the [`queue`] before the server, and whether it is ready
//! - [`supervisor`] keeps it running, [`run`] is one run of it
//! - [`process`] is the child under its [`guard`], [`handshake`] opens it, [`tools`] lists what it has
//! - [`connection`] multiplexes all callers: [`writer`], [`reader`], and the [`pending`] calls between them
//! - [`during`] a call its caller may hear of it; [`changes`] are told to those who asked ([`subscriptions`] asks the
//!   server); [`client`] is who a server that is not shared belongs to

mod backoff;
pub mod changes;
pub mod client;
pub mod connection;
pub mod during;
pub mod guard;
mod handshake;
pub mod mailbox;
pub mod pending;
mod proc_table;
mod process;
pub mod queue;
mod reader;
pub mod request_ids;
pub mod run;
mod subscriptions;
mod supervisor;
#[cfg(test)]
pub mod testing;
pub mod tools;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::changes::Changes;
use self::client::{Audience, Client};
use self::connection::Connection;
use self::mailbox::Lists;
use self::queue::Queue;
use self::request_ids::{IdSource, RequestIds};
use self::tools::ToolSet;
use crate::config;
use crate::ids::ServerId;
use crate::mcp::Era;
use crate::mcp::requests::Dialect;
use crate::mcp::results::{Implementation, ServerCapabilities};
use crate::telemetry::metrics::{Metrics, ServerMetrics};

/// How long a cancelled call keeps its slot if the server goes on with it.
pub const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// What all backends of one gateway share.
#[derive(Clone)]
pub struct Environment {
    /// This executable, which is run again as the guard of each server.
    pub own_program: PathBuf,
    /// The longest answer that is accepted.
    pub max_response: usize,
    /// See [`CANCEL_GRACE`].
    pub cancel_grace: Duration,
    /// Makes the source of ids for each run of a server.
    pub ids: fn() -> Arc<dyn IdSource>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Environment {
    /// The environment of a gateway in earnest.
    pub fn new(own_program: PathBuf, max_response: usize, metrics: Metrics) -> Self {
        let ids: fn() -> Arc<dyn IdSource> = || Arc::new(RequestIds::new());
        Self { own_program, max_response, cancel_grace: CANCEL_GRACE, ids, metrics }
    }
}

/// One configured server.
pub struct Backend {
    id: ServerId,
    config: config::Server,
    environment: Environment,
    /// What its tenant has stored for it.
    secrets: Arc<config::Secrets>,
    queue: Queue,
    state: watch::Sender<State>,
    audience: Audience,
    /// Wakes a lazy server.
    wanted: Notify,
    /// Whether it has started or failed once.
    settled: AtomicBool,
    metrics: ServerMetrics,
}

/// Where a server stands.
#[derive(Clone)]
pub enum State {
    /// Waits for its first call.
    Idle,
    /// On its way up.
    Starting,
    /// Takes calls.
    Ready(Arc<Ready>),
    /// Failed; will be started again.
    Backoff {
        /// When.
        until: Instant,
        /// What happened.
        reason: Arc<str>,
    },
    /// Gone for good.
    Stopped,
}

/// What a call needs of a running server.
pub struct Ready {
    /// The way to it.
    pub connection: Arc<Connection>,
    /// How to write to it.
    pub dialect: Arc<Dialect>,
    /// What it said of itself.
    pub about: Arc<About>,
    /// What it has.
    pub tools: Arc<ToolSet>,
}

/// What a server said of itself.
#[derive(Debug, Default)]
pub struct About {
    /// Its name and version.
    pub info: Implementation,
    /// What it can do.
    pub capabilities: ServerCapabilities,
    /// How to use it, in words for a model.
    pub instructions: Option<String>,
}

impl About {
    /// The lists it has.
    fn lists(&self) -> Lists {
        Lists {
            tools: self.capabilities.tools.is_some(),
            prompts: self.capabilities.prompts.is_some(),
            resources: self.capabilities.resources.is_some(),
        }
    }
}

/// Why a server takes no calls.
#[derive(Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It failed and waits to be started again.
    Backoff {
        /// For how long still.
        retry_after: Duration,
        /// What happened.
        reason: Arc<str>,
    },
    /// It was still starting when the deadline passed.
    StillStarting,
    /// The gateway shuts down.
    Stopped,
}

impl Backend {
    /// A backend whose server is not running yet. With a `client` it is that client's alone.
    pub fn new(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        secrets: Arc<config::Secrets>,
        client: Option<Arc<dyn Client>>,
    ) -> Arc<Self> {
        let audience = Audience::new(id.clone(), client);
        Self::with_audience(id, config, environment, secrets, audience)
    }

    /// The same for those who listen already: they were told by another one, in whose place it comes.
    pub fn with_audience(
        id: ServerId,
        config: config::Server,
        environment: Environment,
        secrets: Arc<config::Secrets>,
        audience: Audience,
    ) -> Arc<Self> {
        let initial = match config.start {
            config::Start::Eager => State::Starting,
            config::Start::Lazy => State::Idle,
        };
        Arc::new(Self {
            audience,
            secrets,
            queue: Queue::new(config.max_in_flight as usize),
            state: watch::Sender::new(initial),
            wanted: Notify::new(),
            settled: AtomicBool::new(config.start == config::Start::Lazy),
            metrics: environment.metrics.server(id.as_str()),
            id,
            config,
            environment,
        })
    }

    /// Keeps the server running until `stop`; done when its process is gone.
    pub async fn supervise(self: Arc<Self>, stop: CancellationToken) {
        supervisor::run(self, stop).await;
    }

    /// The running server. Waits while it is being started; refuses at once while it is not.
    pub async fn ready(&self, deadline: Instant) -> Result<Arc<Ready>, NotReady> {
        if let State::Ready(ready) = &*self.state.borrow()
            && !ready.connection.is_closed()
        {
            return Ok(ready.clone());
        }
        self.wanted.notify_one();
        let mut state = self.state.subscribe();
        let settled = state.wait_for(State::is_settled);
        match timeout_at(deadline, settled).await.map(|state| state.map(|state| state.clone())) {
            Err(_) => Err(NotReady::StillStarting),
            Ok(Ok(State::Ready(ready))) => Ok(ready),
            Ok(Ok(State::Backoff { until, reason })) => {
                Err(NotReady::Backoff { retry_after: until.duration_since(Instant::now()), reason })
            }
            Ok(Ok(State::Idle | State::Starting | State::Stopped) | Err(_)) => {
                Err(NotReady::Stopped)
            }
        }
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

    /// The tools it is known to have.
    fn tools_now(&self) -> Arc<ToolSet> {
        match &*self.state.borrow() {
            State::Ready(ready) => ready.tools.clone(),
            _ => Arc::default(),
        }
    }

    fn set_state(&self, state: State) {
        // Of those that are not shared there are many; one of them does not speak for all.
        if self.config.sharing == config::Sharing::Shared {
            self.metrics.up.set(i64::from(matches!(state, State::Ready(_))));
        }
        if matches!(state, State::Ready(_) | State::Backoff { .. } | State::Stopped) {
            self.settled.store(true, Ordering::Release);
        }
        self.state.send_replace(state);
    }
}

impl State {
    /// Whether there is nothing to wait for. A server whose connection has ended will be said to be
    /// starting in a moment: calls that come before that wait for it too.
    fn is_settled(&self) -> bool {
        match self {
            Self::Idle | Self::Starting => false,
            Self::Ready(ready) => !ready.connection.is_closed(),
            Self::Backoff { .. } | Self::Stopped => true,
        }
    }
}

impl Ready {
    /// The same server with other tools.
    fn with_tools(&self, tools: ToolSet) -> Self {
        Self {
            connection: self.connection.clone(),
            dialect: self.dialect.clone(),
            about: self.about.clone(),
            tools: Arc::new(tools),
        }
    }
}
