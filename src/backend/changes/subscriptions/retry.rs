//! Decides when to retry at a modern server that ended a listen request or could not be reached.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The pause before the next request. It doubles each time, unless the last request lasted
/// [`STABLE_AFTER`]: over HTTP, streams are cut now and then.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(300);
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// After this many failures in a row the server counts as down, and no other resources are tried.
const FAILURES_IN_A_ROW_MAX: usize = 3;

pub(super) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: PAUSE }
    }
}

impl Backoff {
    /// Returns the pause after a request that lasted this long.
    pub(super) fn after(&mut self, lasted: Duration) -> Duration {
        let pause = if lasted >= STABLE_AFTER { PAUSE } else { self.next };
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// Resources whose request failed, to be retried together.
#[derive(Default)]
pub(super) struct FailedResources {
    uris: BTreeSet<String>,
    retry_at: Option<Instant>,
    in_a_row: usize,
}

impl FailedResources {
    pub(super) fn end_row(&mut self) {
        self.in_a_row = 0;
    }

    /// Counts a failure. Returns whether the server counts as down.
    pub(super) fn count(&mut self, backoff: &mut Backoff) -> bool {
        if self.retry_at.is_none() {
            self.retry_after(backoff.after(Duration::ZERO));
        }
        self.in_a_row += 1;
        self.in_a_row >= FAILURES_IN_A_ROW_MAX
    }

    /// Retries after a pause, or when others are due.
    pub(super) fn retry_after(&mut self, pause: Duration) {
        self.retry_at.get_or_insert_with(|| Instant::now() + pause);
    }

    pub(super) fn add(&mut self, uri: &str) {
        self.uris.insert(uri.to_owned());
    }

    /// Waits until the resources are due for a retry, and takes them.
    pub(super) async fn due(&mut self) -> BTreeSet<String> {
        match self.retry_at {
            Some(retry_at) => sleep_until(retry_at).await,
            None => std::future::pending().await,
        }
        self.retry_at = None;
        std::mem::take(&mut self.uris)
    }
}
