//! Signs of life of one connection, noted by its tasks and looked at by [`super::health`].

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
    /// Told when a call has not been answered although it was given up long ago.
    overdue: Notify,
}

impl Default for Pulse {
    fn default() -> Self {
        let (heard, writing) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { began: Instant::now(), heard, writing, overdue: Notify::new() }
    }
}

impl Pulse {
    /// Something came from the server.
    pub(super) fn note_heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// A write begins.
    pub(super) fn note_writing(&self, now: Instant) {
        self.writing.store(self.millis(now) + 1, Ordering::Relaxed);
    }

    /// The write is done.
    pub(super) fn note_written(&self) {
        self.writing.store(0, Ordering::Relaxed);
    }

    /// A call that was given up has not been answered within its grace.
    pub(super) fn note_overdue(&self) {
        self.overdue.notify_one();
    }

    /// Done when one has not, since this was last asked.
    pub(super) async fn overdue(&self) {
        self.overdue.notified().await;
    }

    /// How long nothing has been heard.
    pub fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.heard.load(Ordering::Relaxed)))
    }

    /// Since when the server has not read what is being written, if something is.
    pub fn blocked_since(&self) -> Option<Instant> {
        let since = self.writing.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.began + Duration::from_millis(since))
    }

    fn now(&self) -> u64 {
        self.millis(Instant::now())
    }

    fn millis(&self, time: Instant) -> u64 {
        time.duration_since(self.began).as_millis() as u64
    }
}
