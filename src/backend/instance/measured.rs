//! Measures calls on an instance whose limit is found out (`adaptive = true`).

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::adaptive::{Adaptive, ConcurrencyLimit, Started};
use super::pool::Load;
use crate::backend::Backend;

const ADAPT_EVERY: Duration = Duration::from_secs(1);

/// A call that is measured until dropped, if its instance is adaptive.
pub struct Measured<'a> {
    backend: &'a Backend,
    begun: Option<(Arc<Load>, Started)>,
    is_answered: bool,
}

impl<'a> Measured<'a> {
    pub(crate) fn begin(backend: &'a Backend, load: &Arc<Load>, tool: &str) -> Self {
        let begin = |it: &Adaptive| it.begin(tool, Instant::now());
        let begun = load.adaptive().map(begin).map(|started| (load.clone(), started));
        Self { backend, begun, is_answered: false }
    }

    /// Ends the measurement with an answer.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        if let Some((load, started)) = self.begun.take()
            && let Some(adaptive) = load.adaptive()
            && let Some(limit) = adaptive.end(started, Instant::now(), self.is_answered)
        {
            self.backend.set_limit(&load, limit);
        }
    }
}

/// Checks the limit now and then, for there are times when no call ends. Never ends.
pub(crate) async fn adapt(backend: &Backend, load: &Load) {
    let Some(adaptive) = load.adaptive() else { return pending().await };
    loop {
        sleep(ADAPT_EVERY).await;
        if let Some(limit) = adaptive.check(Instant::now()) {
            backend.set_limit(load, limit);
        }
    }
}

impl Backend {
    fn set_limit(&self, load: &Load, limit: ConcurrencyLimit) {
        let _changing = self.changing_state.lock();
        load.set_limit(limit);
        self.resize_queue();
        self.pool.wake();
        if self.is_active() {
            self.update_up_metrics();
        }
    }
}

#[cfg(test)]
#[path = "tests/measured.rs"]
mod tests;
