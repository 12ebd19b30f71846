//! The stage of a backend in a rollover: during one there are two backends of a name.
//!
//! ```text
//!  Waiting ──ready, switch──▶ Active ──replaced, removed, idle, evicted──▶ Draining ──▶ Gone
//!     └──────────────another is wanted──────────────────────────────────────────▲
//! ```
//!
//! A backend without a predecessor begins as `Active`; so does one that must not overlap with its
//! predecessor (`exclusive`). Calls go to the `Active` one alone. A `Draining` one finishes the
//! calls that it has, for a limited time. `registry/rollover.rs` decides about the switch.

use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::backend::{Backend, RunState};
use crate::telemetry::tasks::restart_on_panic;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    Active,
    Draining { until: Instant },
    Gone,
}

impl Stage {
    fn has_begun_to_drain(&self) -> bool {
        matches!(self, Self::Draining { .. } | Self::Gone)
    }
}

/// Waits for a stage. Never ends if it never comes.
async fn reached(stage: &watch::Sender<Stage>, wanted: impl FnMut(&Stage) -> bool) {
    if stage.subscribe().wait_for(wanted).await.is_err() {
        pending().await
    }
}

impl Backend {
    pub(crate) fn is_active(&self) -> bool {
        *self.stage.borrow() == Stage::Active
    }

    /// Returns whether it takes no more calls.
    pub fn is_draining(&self) -> bool {
        self.stage.borrow().has_begun_to_drain()
    }

    pub fn is_gone(&self) -> bool {
        *self.stage.borrow() == Stage::Gone
    }

    pub(crate) async fn activated(&self) {
        reached(&self.stage, |stage| *stage == Stage::Active).await;
    }

    pub async fn draining(&self) {
        reached(&self.stage, Stage::has_begun_to_drain).await;
    }

    /// Waits until its last process is gone for good.
    pub async fn gone(&self) {
        reached(&self.stage, |stage| *stage == Stage::Gone).await;
    }

    /// Waits until it drains and has no more time for its calls. That time may be shortened.
    pub(crate) async fn drain_timed_out(&self) {
        let mut stage = self.stage.subscribe();
        loop {
            let until = match *stage.borrow_and_update() {
                Stage::Draining { until } => Some(until),
                Stage::Waiting | Stage::Active | Stage::Gone => None,
            };
            tokio::select! {
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => return,
                _ = stage.changed() => {}
            }
        }
    }

    /// Directs calls to one that waits for them, and tells those who listen.
    pub fn activate(&self) {
        let has_waited = self.stage.send_if_modified(|stage| {
            let is_waiting = *stage == Stage::Waiting;
            if is_waiting {
                *stage = Stage::Active;
            }
            is_waiting
        });
        if has_waited {
            self.update_up_metrics();
            self.changes().all_may_have_changed();
        }
    }

    /// Directs no more calls to it, and stops it when those that it has have ended, or after
    /// `within`. Whoever waits for it to be ready looks its server up again.
    pub fn drain(&self, within: Duration) {
        let was_active = self.is_active();
        let latest = Instant::now() + within;
        self.stage.send_modify(|stage| {
            *stage = match *stage {
                Stage::Waiting | Stage::Active => Stage::Draining { until: latest },
                Stage::Draining { until } => Stage::Draining { until: until.min(latest) },
                Stage::Gone => Stage::Gone,
            };
        });
        if was_active {
            self.update_up_metrics();
        }
    }

    pub(crate) fn set_gone(&self) {
        self.stage.send_replace(Stage::Gone);
    }

    /// Waits until it drains and can be stopped: it has no calls left, or no more time for them.
    pub(crate) async fn drained(&self) {
        self.draining().await;
        let mut state = self.state.subscribe();
        let may_have_calls =
            |state: &RunState| matches!(state, RunState::Ready(_) | RunState::Draining);
        tokio::select! {
            () = self.uses.drained() => {}
            _ = state.wait_for(|state| !may_have_calls(state)) => {}
            () = self.drain_timed_out() => {}
        }
    }

    /// Waits until it can replace `old`: as many of its instances are ready as of the old one, or
    /// one is and the others have had the time to start. Returns false if it is stopped before.
    pub async fn can_replace(&self, old: &Self) -> bool {
        let (metrics, mut both) = (&self.environment.metrics, (self, old));
        let can_replace = restart_on_panic(metrics, "rollover", &mut both, |(next, old)| {
            next.wait_to_replace(old).boxed()
        });
        can_replace.await
    }

    async fn wait_to_replace(&self, old: &Self) -> bool {
        if let RunState::Backoff { reason, .. } | RunState::Quarantined { reason, .. } =
            self.first_settled().await
        {
            let server = &self.id;
            tracing::warn!(
                %server, %reason,
                "server `{server}` does not start with its new configuration; \
                 the old one goes on serving"
            );
        }
        while self.first_ready().await.is_some() {
            let _ = timeout(self.config.start_timeout, self.as_ready_as(old)).await;
            // All may have failed meanwhile.
            if self.pool.ready_len() > 0 {
                return true;
            }
        }
        false
    }

    /// Waits until as many of its instances are ready as of `old`, all are, or none will be.
    async fn as_ready_as(&self, old: &Self) {
        let (mut own, mut olds) = (self.state.subscribe(), old.state.subscribe());
        loop {
            let is_stopped = matches!(*own.borrow_and_update(), RunState::Stopped);
            olds.mark_unchanged();
            let wanted = old.pool.ready_len().min(self.pool.size()).max(1);
            if is_stopped || self.pool.ready_len() >= wanted {
                return;
            }
            tokio::select! {
                _ = own.changed() => {}
                _ = olds.changed() => {}
            }
        }
    }
}
