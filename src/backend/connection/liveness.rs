//! Signs of life of one connection, noted by its tasks and looked at by [`crate::backend::supervise::health`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Times are kept in milliseconds since the beginning, in atomics: they are written often and read seldom.
#[derive(Debug)]
pub struct Pulse {
    began: Instant,
    /// When something was last heard.
    heard: AtomicU64,
    /// Since when a write has been waiting for the server to read, and one; 0 if none does.
    writing: AtomicU64,
    /// The number of the last call of that write.
    writing_number: AtomicU64,
    /// Told when a call is past its deadline and grace.
    overdue: Notify,
}

impl Default for Pulse {
    fn default() -> Self {
        let (heard, writing, writing_number) = Default::default();
        Self { began: Instant::now(), heard, writing, writing_number, overdue: Notify::new() }
    }
}

impl Pulse {
    /// Something came from the server.
    pub(crate) fn note_heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// A write begins, of calls up to this number.
    pub(crate) fn note_writing(&self, now: Instant, number: u64) {
        self.writing_number.store(number, Ordering::Relaxed);
        self.writing.store(self.millis(now) + 1, Ordering::Relaxed);
    }

    /// The server has read a part of what is being written.
    pub(crate) fn note_read(&self) {
        self.writing.store(self.now() + 1, Ordering::Relaxed);
    }

    /// The write is done.
    pub(crate) fn note_written(&self) {
        self.writing.store(0, Ordering::Relaxed);
    }

    /// A call is past its deadline and grace.
    pub(crate) fn note_overdue(&self) {
        self.overdue.notify_one();
    }

    /// Done when one has not, since this was last asked.
    pub(crate) async fn overdue(&self) {
        self.overdue.notified().await;
    }

    /// How long nothing has been heard.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Since when the server has not read what is being written, if something is; and the number of the last call of that.
    pub fn blocked_since(&self) -> Option<(Instant, u64)> {
        let since = self.writing.load(Ordering::Relaxed).checked_sub(1)?;
        let number = self.writing_number.load(Ordering::Relaxed);
        Some((self.began + Duration::from_millis(since), number))
    }

    fn now(&self) -> u64 {
        self.millis(Instant::now())
    }

    fn millis(&self, time: Instant) -> u64 {
        time.duration_since(self.began).as_millis() as u64
    }
}
