//! Where a server stands, and what is known of one that runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::changes::mailbox::Lists;
use super::connection::Connection;
use super::instance::tools::ToolSet;
use crate::protocol::mcp::requests::Dialect;
use crate::protocol::mcp::results::{Implementation, ServerCapabilities};

/// Where a server, or one copy of it, stands.
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
    /// Failed too often, or for good as far as can be told; will be tried now and then.
    Quarantined {
        /// When next.
        until: Instant,
        /// What happened.
        reason: Arc<str>,
    },
    /// Makes room for its successor, which must not run beside it: those that it has may end, others wait.
    Draining,
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
    pub(super) fn lists(&self) -> Lists {
        Lists::of(&self.capabilities)
    }
}

/// Why a server takes no calls.
#[derive(Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It failed and waits to be started again.
    Down {
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

impl State {
    /// Whether there is nothing to wait for. A server whose connection has ended will be said to be
    /// starting in a moment: calls that come before that wait for it too.
    pub(super) fn is_settled(&self) -> bool {
        match self {
            Self::Idle | Self::Starting | Self::Draining => false,
            Self::Ready(ready) => !ready.connection.is_closed(),
            _ => true,
        }
    }

    /// Whether waiting for it is of no use to anybody.
    pub(super) fn is_hopeless(&self) -> bool {
        matches!(self, Self::Quarantined { .. } | Self::Stopped)
    }

    /// What callers are told who need it now.
    pub(super) fn refusal(&self) -> NotReady {
        match self {
            Self::Backoff { until, reason } | Self::Quarantined { until, reason } => {
                let retry_after = until.duration_since(Instant::now());
                NotReady::Down { retry_after, reason: reason.clone() }
            }
            _ => NotReady::Stopped,
        }
    }

    /// Whether calls can be made now.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Ready(ready) if !ready.connection.is_closed())
    }

    /// The best comes first.
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

    /// Whether it is the same but for details.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }

    /// As operators and callers read it.
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
    /// The same for who keeps it as long as the server runs: tools come and go, and what is kept of them is not freed.
    pub(super) fn without_tools(&self) -> Self {
        self.with_tools(Arc::default())
    }

    /// The same server with other tools.
    pub(super) fn with_tools(&self, tools: Arc<ToolSet>) -> Self {
        Self {
            connection: self.connection.clone(),
            dialect: self.dialect.clone(),
            about: self.about.clone(),
            tools,
        }
    }
}
