//! Whether a backend is the one that calls go to. While one takes the place of another there are two of a name: one
//! waits until it is ready, and the other finishes its last calls.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, State};

/// Where a backend stands between its predecessor and its successor.
pub struct Service {
    stage: watch::Sender<Stage>,
    /// Cancelled when its process is gone for good.
    gone: CancellationToken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Active,
    Retired { until: Instant },
}

impl Service {
    /// Calls go to it from the beginning.
    pub fn active() -> Self {
        Self::new(Stage::Active)
    }

    /// Another has its name still.
    pub fn waiting() -> Self {
        Self::new(Stage::Waiting)
    }

    fn new(stage: Stage) -> Self {
        Self { stage: watch::Sender::new(stage), gone: CancellationToken::new() }
    }

    /// Calls go to it from now on.
    fn enter(&self) {
        self.stage.send_if_modified(|stage| {
            let is_first = *stage == Stage::Waiting;
            if is_first {
                *stage = Stage::Active;
            }
            is_first
        });
    }

    /// No calls go to it from now on, and those it has may take until then. Tells whether they did until now.
    fn retire(&self, until: Instant) -> bool {
        let mut was_active = false;
        self.stage.send_modify(|stage| {
            was_active = *stage == Stage::Active;
            let until = match *stage {
                Stage::Retired { until: before } => before.min(until),
                Stage::Waiting | Stage::Active => until,
            };
            *stage = Stage::Retired { until };
        });
        was_active
    }

    pub(crate) fn is_active(&self) -> bool {
        *self.stage.borrow() == Stage::Active
    }

    /// Until when its calls may take, if it is retired.
    pub(crate) fn retired_until(&self) -> Option<Instant> {
        match *self.stage.borrow() {
            Stage::Retired { until } => Some(until),
            Stage::Waiting | Stage::Active => None,
        }
    }

    /// Done as soon as calls go to it. Never, if they never do.
    pub(crate) async fn entered(&self) {
        let mut stage = self.stage.subscribe();
        if stage.wait_for(|stage| *stage == Stage::Active).await.is_err() {
            std::future::pending().await
        }
    }

    /// Done as soon as it is retired.
    pub(crate) async fn retired(&self) {
        let mut stage = self.stage.subscribe();
        // The other end is here.
        let _ = stage.wait_for(|stage| matches!(stage, Stage::Retired { .. })).await;
    }

    /// Done when it is retired and its calls have no more time.
    pub(crate) async fn over(&self) {
        let mut stage = self.stage.subscribe();
        loop {
            let until = match *stage.borrow_and_update() {
                Stage::Retired { until } => Some(until),
                Stage::Waiting | Stage::Active => None,
            };
            let over = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                // There may be less time. The other end is here.
                _ = stage.changed() => {}
            }
        }
    }

    pub(crate) fn note_gone(&self) {
        self.gone.cancel();
    }
}

impl Backend {
    /// Calls go to it from now on, and those who listen hear of it.
    pub fn enter_service(&self) {
        self.service.enter();
        self.note_up();
        self.changes().all_may_have_changed();
    }

    /// Done when it can take the place of another: as many of its copies take calls as of that one, or one does and the
    /// others have had the time to start. Not if it is stopped before.
    pub async fn can_replace(&self, other: &Self) -> bool {
        if let State::Backoff { reason, .. } | State::Quarantined { reason, .. } =
            self.first_settled().await
        {
            let server = &self.id;
            tracing::warn!(
                %server, %reason,
                "server `{server}` does not start as it is configured now; as it was, it goes on serving"
            );
        }
        while self.first_ready().await.is_some() {
            let _ = timeout(self.config.start_timeout, self.as_ready_as(other)).await;
            // It may have failed meanwhile.
            if self.pool.ready_len() > 0 {
                return true;
            }
        }
        false
    }

    /// Done when as many of its copies take calls as of another, or as it has; or none will any more.
    async fn as_ready_as(&self, other: &Self) {
        let (mut own, mut others) = (self.state.subscribe(), other.state.subscribe());
        loop {
            let is_over = matches!(*own.borrow_and_update(), State::Stopped);
            others.mark_unchanged();
            let wanted = other.pool.ready_len().min(self.pool.size()).max(1);
            if is_over || self.pool.ready_len() >= wanted {
                return;
            }
            // Their other ends are here.
            tokio::select! {
                _ = own.changed() => {}
                _ = others.changed() => {}
            }
        }
    }

    /// No calls go to it from now on. Those it has may take so long to end; then it is stopped. Whoever waits for one that
    /// is not ready looks elsewhere.
    pub fn retire(&self, within: Duration) {
        if self.service.retire(Instant::now() + within) {
            self.note_up();
        }
    }

    /// Whether its process is gone for good.
    pub fn is_gone(&self) -> bool {
        self.service.gone.is_cancelled()
    }

    /// Done when it is.
    pub async fn gone(&self) {
        self.service.gone.cancelled().await;
    }

    /// Done when it is retired and has no calls left, or no more time for them.
    pub(crate) async fn last_call(&self) {
        self.service.retired().await;
        let mut state = self.state.subscribe();
        let may_have_calls = |state: &State| matches!(state, State::Ready(_) | State::Draining);
        tokio::select! {
            () = self.visits.none() => {}
            _ = state.wait_for(|state| !may_have_calls(state)) => {}
            () = self.service.over() => {}
        }
    }
}
