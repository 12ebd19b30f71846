//! The state of a backend or an instance, its changes, and the parts of a ready one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::changes::mailbox::Lists;
use super::connection::Connection;
use super::instance::pool::{Load, ReadyInstance};
use super::instance::tools::ToolSet;
use super::{Backend, Environment};
use crate::common::ids::ServerId;
use crate::events::event::ChangedInstance;
use crate::events::{Event, InstanceChange, Kinds};
use crate::protocol::jsonrpc::JsonText;
use crate::protocol::mcp::about::OwnWords;
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::results::{Implementation, ServerCapabilities};

/// The state of a backend, or of one instance. See `supervise/restart_policy.rs` for the diagram.
#[derive(Clone)]
pub enum RunState {
    /// Waits for its first call.
    Idle,
    Starting,
    Ready(Arc<Ready>),
    /// Failed; restarted soon.
    Backoff {
        until: Instant,
        reason: Arc<str>,
    },
    /// Failed too often, or for good as far as can be told; tried now and then.
    Quarantined {
        until: Instant,
        reason: Arc<str>,
        /// Whether no start will succeed, as far as can be told.
        for_good: bool,
    },
    /// Finishes its calls before an `exclusive` rollover; new calls wait.
    Draining,
    Stopped,
}

/// The parts of a ready server that a call needs.
#[derive(Clone)]
pub struct Ready {
    pub connection: Arc<Connection>,
    pub dialect: Arc<Dialect>,
    pub about: Arc<About>,
    pub tools: Arc<ToolSet>,
}

/// A server's description of itself.
#[derive(Debug, Default)]
pub struct About {
    pub info: Implementation,
    pub capabilities: ServerCapabilities,
    /// Tells a model how to use it.
    pub instructions: Option<JsonText>,
    /// The members that the gateway does not read, as the server wrote them.
    pub own_words: OwnWords,
}

impl About {
    pub(super) fn lists(&self) -> Lists {
        Lists::of(&self.capabilities)
    }
}

/// Why a server takes no calls.
#[derive(Debug, PartialEq, Eq)]
pub enum NotReady {
    /// The server failed and waits for a restart.
    Down { retry_after: Duration, reason: Arc<str>, for_good: bool },
    /// The server asks for more than its tenant has agreed to: a person has to agree first.
    NotConnected { server: ServerId, url: String },
    /// The server was still starting when the deadline passed.
    StillStarting,
    /// The process that alone could answer has ended.
    Gone,
    /// The gateway shuts down, or a rollover has replaced the backend.
    Stopped,
}

impl RunState {
    /// Returns whether there is nothing to wait for. A closed connection becomes `Starting` in a
    /// moment, so calls wait for it, too.
    pub(super) fn is_settled(&self) -> bool {
        match self {
            Self::Idle | Self::Starting | Self::Draining => false,
            Self::Ready(ready) => !ready.connection.is_closed(),
            _ => true,
        }
    }

    /// Returns whether nobody should wait for it.
    pub(super) fn is_hopeless(&self) -> bool {
        matches!(self, Self::Quarantined { .. } | Self::Stopped)
    }

    /// Returns the refusal of a call that needs it now.
    pub(super) fn refusal(&self) -> NotReady {
        match self {
            Self::Backoff { until, reason } | Self::Quarantined { until, reason, .. } => {
                let retry_after = until.duration_since(Instant::now());
                let for_good = matches!(self, Self::Quarantined { for_good: true, .. });
                NotReady::Down { retry_after, reason: reason.clone(), for_good }
            }
            _ => NotReady::Stopped,
        }
    }

    /// Returns the state of a backend with instances in these states: the best of them; of those
    /// that wait for a restart, the one that is restarted first.
    pub(super) fn best<'a>(states: impl Iterator<Item = &'a Self>) -> Self {
        let best = states.min_by_key(|state| {
            let wait = match state {
                Self::Backoff { until, .. } | Self::Quarantined { until, .. } => Some(*until),
                _ => None,
            };
            // A closed connection is about to become another state.
            (state.rank(), !state.is_open(), wait)
        });
        best.cloned().unwrap_or(Self::Stopped)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Ready(ready) if !ready.connection.is_closed())
    }

    /// Orders states from the best to the worst.
    fn rank(&self) -> u8 {
        match self {
            Self::Ready(_) => 0,
            Self::Starting => 1,
            Self::Draining => 2,
            Self::Idle => 3,
            Self::Backoff { .. } => 4,
            Self::Quarantined { .. } => 5,
            Self::Stopped => 6,
        }
    }

    fn change(&self) -> InstanceChange {
        let left = |until: &Instant| until.saturating_duration_since(Instant::now());
        match self {
            Self::Idle | Self::Stopped => InstanceChange::Stopped,
            Self::Starting => InstanceChange::Starting,
            Self::Ready(ready) => InstanceChange::Ready { tools: ready.tools.iter().count() },
            Self::Backoff { until, .. } => InstanceChange::Backoff { retry_in: left(until) },
            Self::Quarantined { until, .. } => {
                InstanceChange::Quarantined { retry_in: left(until) }
            }
            Self::Draining => InstanceChange::Draining,
        }
    }

    /// Returns the name that operators and callers see.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Starting => "starting",
            Self::Ready(_) => "ready",
            Self::Backoff { .. } => "backoff",
            Self::Quarantined { .. } => "quarantined",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

impl Ready {
    /// Returns a clone to keep as long as the server runs: it does not keep tools that are gone.
    pub(super) fn without_tools(&self) -> Self {
        self.with_tools(Arc::default())
    }

    pub(super) fn with_tools(&self, tools: Arc<ToolSet>) -> Self {
        Self { tools, ..self.clone() }
    }
}

impl Backend {
    /// Returns the refusal of a call that needs the server now.
    pub(super) fn refusal(&self, state: &RunState) -> NotReady {
        let refusal = state.refusal();
        let Environment { connections, tenant, .. } = &self.environment;
        match connections {
            Some(connections)
                if matches!(refusal, NotReady::Down { .. })
                    && self.config.needs_connection()
                    && connections.wants_consent(tenant, &self.id) =>
            {
                let url = connections.connect_url(tenant, &self.id);
                NotReady::NotConnected { server: self.id.clone(), url }
            }
            _ => refusal,
        }
    }

    /// Changes the state of an instance; nothing else does.
    pub(super) fn set_instance_state(
        &self,
        number: usize,
        state: RunState,
        load: Option<&Arc<Load>>,
    ) {
        let ready = match (&state, load) {
            (RunState::Ready(ready), Some(load)) => {
                let (ready, load) = (ready.clone(), load.clone());
                Some(Arc::new(ReadyInstance { number, ready, load }))
            }
            _ => None,
        };
        let _changing = self.changing_state.lock();
        self.tell_change(number, || state.change());
        let whole = self.pool.set_state(number, state, ready);
        self.resize_queue();
        if !matches!(whole, RunState::Idle | RunState::Starting) {
            self.settled.store(true, Ordering::Release);
        }
        self.state.send_replace(whole);
        self.forget_tool_metrics();
        if self.is_active() {
            self.update_up_metrics();
        }
    }

    /// Tells of a change of an instance.
    pub(super) fn tell_change(&self, instance: usize, change: impl FnOnce() -> InstanceChange) {
        self.environment.events.tell(Kinds::INSTANCES, || {
            let (server, tenant) = (self.id.clone(), self.environment.tenant.clone());
            let change = change();
            Event::InstanceChanged(Arc::new(ChangedInstance { server, tenant, instance, change }))
        });
    }

    /// Shows how much of the server can be called. During a rollover the active backend shows it.
    pub(super) fn update_up_metrics(&self) {
        let Some(metrics) = &self.up else { return };
        let is_active = self.is_active();
        let shown = |count: usize| if is_active { count as i64 } else { 0 };
        let is_up = matches!(*self.state.borrow(), RunState::Ready(_));
        metrics.up.set(shown(usize::from(is_up)));
        metrics.slots.set(shown(self.pool.slots()));
        metrics.instances.set(shown(self.pool.ready_len()));
        metrics.stalled.set(shown(self.pool.stalled_len()));
        let (suspects, quarantined) = self.suspects_len();
        metrics.suspects.set(shown(suspects));
        metrics.quarantined_tenants.set(shown(quarantined));
        metrics.serial.set(shown(self.pool.serial_len()));
        let down = if is_up || !is_active { None } else { self.pool.down() };
        metrics.down_since.set(down.map_or(0, |down| down.since.as_second()));
    }

    /// Shows whether nothing ends at an instance although calls wait for a slot.
    pub(super) fn set_stalled(&self, number: usize, is_stalled: bool) {
        let mut was_stalled = false;
        self.pool.update(number, |instance| {
            was_stalled = instance.stalled_since.is_some();
            instance.stalled_since = is_stalled.then(Timestamp::now);
        });
        if is_stalled != was_stalled {
            let (server, usual) = (&self.id, self.config.usual_call().as_secs());
            if is_stalled {
                tracing::warn!(
                    %server, instance = number,
                    "server `{server}` is stalled: no call has ended for {usual} s, and calls wait \
                     for a slot"
                );
            } else {
                tracing::info!(%server, instance = number, "server `{server}` goes on");
            }
            self.update_up_metrics();
        }
    }

    /// Removes the metrics of tools that a ready server no longer has.
    fn forget_tool_metrics(&self) {
        if let RunState::Ready(ready) = &*self.state.borrow() {
            self.metrics.tools.forget_unless(|name| ready.tools.get(name).is_some());
        }
    }

    /// Gives the queue as many slots as the ready instances have. Without any, the number stays:
    /// whoever gets a slot then is told that the server is down.
    pub(super) fn resize_queue(&self) {
        let slots = self.pool.slots();
        if slots > 0 {
            self.queue.set_slots(slots, self.pool.slots_left_free());
        }
    }
}
