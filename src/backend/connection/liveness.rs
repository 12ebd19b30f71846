//! Signs of life of one connection, noted by its tasks and read by
//! [`crate::backend::supervise::health`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Times are atomics, in milliseconds since `opened`: they are written often and read seldom.
#[derive(Debug)]
pub struct Liveness {
    opened: Instant,
    last_output: AtomicU64,
    /// Since when a write has waited for the server to read, plus one; 0 if no write waits.
    write_blocked: AtomicU64,
    /// The number of the last call of that write.
    write_number: AtomicU64,
    overdue: Notify,
}

impl Default for Liveness {
    fn default() -> Self {
        let (last_output, write_blocked, write_number) = Default::default();
        let (opened, overdue) = (Instant::now(), Notify::new());
        Self { opened, last_output, write_blocked, write_number, overdue }
    }
}

impl Liveness {
    /// Notes output of the server.
    pub(crate) fn note_output(&self) {
        self.last_output.store(self.now(), Ordering::Relaxed);
    }

    /// Notes that a write begins, of calls up to this number.
    pub(crate) fn note_write_begun(&self, now: Instant, number: u64) {
        self.write_number.store(number, Ordering::Relaxed);
        self.write_blocked.store(self.millis(now) + 1, Ordering::Relaxed);
    }

    /// Notes that the server has read a part of the current write.
    pub(crate) fn note_write_progress(&self) {
        self.write_blocked.store(self.now() + 1, Ordering::Relaxed);
    }

    pub(crate) fn note_write_done(&self) {
        self.write_blocked.store(0, Ordering::Relaxed);
    }

    /// Notes that a call is overdue.
    pub(crate) fn note_overdue(&self) {
        self.overdue.notify_one();
    }

    /// Waits until a call is overdue. An earlier overdue call ends the wait at once, if nobody
    /// waited then.
    pub(crate) async fn overdue(&self) {
        self.overdue.notified().await;
    }

    /// Returns how long the server has been silent.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_output.load(Ordering::Relaxed)))
    }

    /// Returns since when the server has not read the current write, and the number of its last
    /// call.
    pub fn blocked_since(&self) -> Option<(Instant, u64)> {
        let since = self.write_blocked.load(Ordering::Relaxed).checked_sub(1)?;
        let number = self.write_number.load(Ordering::Relaxed);
        Some((self.opened + Duration::from_millis(since), number))
    }

    fn now(&self) -> u64 {
        self.millis(Instant::now())
    }

    fn millis(&self, time: Instant) -> u64 {
        time.duration_since(self.opened).as_millis() as u64
    }
}
