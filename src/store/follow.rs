//! Keeps what a component holds in memory up to date with the store.
//!
//! ```text
//! loop {
//!     follower.changed(wake).await;
//!     while follower.retry(read().await).await.is_none() {}
//! }
//! ```

use std::time::Duration;

use tokio::time::sleep;

use super::changes::RETRY_EVERY;
use super::{Result, StoreChanges};

/// Everything is read again at least this often, even if no change is announced.
const CONFIRM_EVERY: Duration = Duration::from_secs(60);

/// Waits for changes of the store, and retries reads while it is away.
pub struct Follower {
    changes: StoreChanges,
    outage: Outage,
}

/// Logs the first failure of an outage of the store, and its end.
pub struct Outage {
    what: &'static str,
    meanwhile: &'static str,
    is_away: bool,
}

impl Follower {
    /// `what` is read from the store; while it cannot be, `meanwhile` holds. Both are for the log.
    pub fn new(changes: StoreChanges, what: &'static str, meanwhile: &'static str) -> Self {
        Self { changes, outage: Outage::new(what, meanwhile) }
    }

    /// Waits for a change of the store, for `wake`, or until it is time to confirm. Does not wait
    /// the first time. May be dropped and called again.
    pub async fn changed(&mut self, wake: impl Future<Output = ()>) {
        tokio::select! {
            () = self.changes.next() => {}
            () = wake => {}
            () = sleep(CONFIRM_EVERY) => {}
        }
    }

    /// Returns what was read; or `None` after a pause, if the store could not be read.
    pub async fn retry<T>(&mut self, outcome: Result<T>) -> Option<T> {
        let value = self.outage.note(outcome);
        if value.is_none() {
            sleep(RETRY_EVERY).await;
        }
        value
    }
}

impl Outage {
    pub fn new(what: &'static str, meanwhile: &'static str) -> Self {
        Self { what, meanwhile, is_away: false }
    }

    /// Returns the value, if the store gave one.
    pub fn note<T>(&mut self, outcome: Result<T>) -> Option<T> {
        let was_away = std::mem::replace(&mut self.is_away, outcome.is_err());
        let Self { what, meanwhile, .. } = self;
        match &outcome {
            Err(error) if !was_away => {
                tracing::warn!(%error, "the store is away for {what}: {meanwhile}");
            }
            Ok(_) if was_away => tracing::info!("the store is back for {what}"),
            _ => {}
        }
        outcome.ok()
    }
}
