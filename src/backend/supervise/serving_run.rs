//! A run that takes calls, and why it no longer does.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::super::{Backend, Ready};
use super::recycle::lifetime;
use crate::backend::connection::CloseReason;
use crate::backend::instance::pool::Load;
use crate::backend::instance::run::Run;

/// A run that takes calls.
pub(super) struct Serving {
    /// Without its tools.
    pub(super) run: Run,
    /// As it is now: its tools may change.
    pub(super) ready: ArcSwap<Ready>,
    pub(super) load: Arc<Load>,
    pub(super) since: Instant,
    /// How old it gets, if that is bounded.
    pub(super) lifetime: Option<Duration>,
    /// It is not replaced as planned before this time.
    pub(super) stays_until: Option<Instant>,
}

impl Serving {
    pub(super) fn new(backend: &Backend, mut run: Run) -> Self {
        let ready = Arc::new(run.ready.without_tools());
        let ready = ArcSwap::new(std::mem::replace(&mut run.ready, ready));
        let load = Load::new(backend.config.max_in_flight, backend.config.adaptive);
        let lifetime = lifetime(&backend.config.recycle);
        Self { run, ready, load, since: Instant::now(), lifetime, stays_until: None }
    }
}

/// Why a copy no longer serves.
pub(super) enum Left {
    /// It was told to stop.
    Stopped,
    /// It ended, or had to be ended.
    Failed(CloseReason),
    /// It takes no more calls; those it has may go on.
    Lost(String),
    /// It is well, and has served its time.
    Worn(String),
}

impl Left {
    /// What went wrong, if anything did.
    pub(super) fn failure(&self) -> Option<&str> {
        match self {
            Self::Failed(end) => Some(end.reason()),
            Self::Lost(reason) => Some(reason),
            Self::Stopped | Self::Worn(_) => None,
        }
    }
}
