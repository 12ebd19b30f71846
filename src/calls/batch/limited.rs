//! Waits for the tenant's own limits.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The pause before a call tries again that was refused because too many of its tenant's calls are
/// in flight: nobody knows when one of them ends.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The calls of one batch that wait for the tenant's own limits.
pub(super) struct LimitWait {
    /// Taken by a call that waits, so that one tries again at a time.
    turn: Semaphore,
    /// The time until which the limits refuse calls.
    until: Mutex<Instant>,
}

impl LimitWait {
    pub(super) fn new(now: Instant) -> Self {
        Self { turn: Semaphore::new(1), until: Mutex::new(now) }
    }

    /// Notes a refusal. Returns whether the limits may admit the call before its deadline.
    pub(super) fn refused(&self, retry_after: Option<Duration>, deadline: Instant) -> bool {
        let until = Instant::now() + retry_after.unwrap_or(BUSY_PAUSE);
        let mut limited_until = self.until.lock();
        *limited_until = until.max(*limited_until);
        until < deadline
    }

    /// Waits until the limits may admit a call again, unless that is too late for this one. Calls
    /// wait one behind the other, so that they do not all try at that time.
    pub(super) async fn wait(&self, deadline: Instant) {
        let wait = || {
            let until = *self.until.lock();
            (until > Instant::now() && until < deadline).then_some(until)
        };
        if wait().is_none() {
            return;
        }
        let _turn = timeout_at(deadline, self.turn.acquire()).await;
        while let Some(until) = wait() {
            sleep_until(until).await;
        }
    }
}
