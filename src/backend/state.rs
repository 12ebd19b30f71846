//! The state of a backend or an instance, and the parts of a ready one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::changes::mailbox::Lists;
use super::connection::Connection;
use super::instance::tools::ToolSet;
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
    },
    /// Finishes its calls before an `exclusive` rollover; new calls wait.
    Draining,
    Stopped,
}

/// The parts of a ready server that a call needs.
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
    pub instructions: Option<String>,
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
    Down { retry_after: Duration, reason: Arc<str> },
    /// The server was still starting when the deadline passed.
    StillStarting,
    /// The gateway shuts down, or a rollover has replaced the backend.
    Stopped,
}

impl RunState {
    /// Whether there is nothing to wait for. A closed connection becomes `Starting` in a moment, so
    /// calls wait for it, too.
    pub(super) fn is_settled(&self) -> bool {
        match self {
            Self::Idle | Self::Starting | Self::Draining => false,
            Self::Ready(ready) => !ready.connection.is_closed(),
            _ => true,
        }
    }

    /// Whether nobody should wait for it.
    pub(super) fn is_hopeless(&self) -> bool {
        matches!(self, Self::Quarantined { .. } | Self::Stopped)
    }

    /// Returns the refusal of a call that needs it now.
    pub(super) fn refusal(&self) -> NotReady {
        match self {
            Self::Backoff { until, reason } | Self::Quarantined { until, reason } => {
                let retry_after = until.duration_since(Instant::now());
                NotReady::Down { retry_after, reason: reason.clone() }
            }
            _ => NotReady::Stopped,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Ready(ready) if !ready.connection.is_closed())
    }

    /// Orders states from the best to the worst.
    pub(super) fn rank(&self) -> u8 {
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

    /// Whether it is the same state, whatever its fields.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.rank() == other.rank()
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
        Self {
            connection: self.connection.clone(),
            dialect: self.dialect.clone(),
            about: self.about.clone(),
            tools,
        }
    }
}
