//! A run that takes calls, and the reasons why it stops.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::recycle::lifetime;
use crate::backend::connection::CloseReason;
use crate::backend::instance::pool::Load;
use crate::backend::instance::run::Run;
use crate::backend::{Backend, Ready};

pub(super) struct ServingRun {
    /// Without its tools: those of its start would be kept as long as it runs.
    pub(super) run: Run,
    /// With the tools that it has now.
    pub(super) ready: ArcSwap<Ready>,
    pub(super) load: Arc<Load>,
    pub(super) since: Instant,
    /// The age at which it is recycled.
    pub(super) lifetime: Option<Duration>,
    /// No recycling before this time.
    pub(super) stays_until: Option<Instant>,
}

impl ServingRun {
    pub(super) fn new(backend: &Backend, mut run: Run) -> Self {
        let ready = Arc::new(run.ready.without_tools());
        let ready = ArcSwap::new(std::mem::replace(&mut run.ready, ready));
        let load = Load::new(backend.config.max_in_flight, backend.config.adaptive);
        let lifetime = lifetime(&backend.config.recycle);
        Self { run, ready, load, since: Instant::now(), lifetime, stays_until: None }
    }
}

/// Why a run takes no more calls.
pub(super) enum StopReason {
    Stopped,
    /// The run ended, or had to be ended.
    Failed(CloseReason),
    /// The connection is lost; calls in flight may go on.
    Disconnected(String),
    /// The run is well, and due for recycling.
    Recycled(String),
}

impl StopReason {
    pub(super) fn failure(&self) -> Option<String> {
        match self {
            Self::Failed(end) => Some(end.to_string()),
            Self::Disconnected(reason) => Some(reason.clone()),
            Self::Stopped | Self::Recycled(_) => None,
        }
    }
}
