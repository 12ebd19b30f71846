//! Counts the uses of a backend or of an instance, and waits for the last one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Counts the uses of a backend or of an instance: neither ends under a call, nor counts as idle.
pub(crate) struct Uses {
    count: AtomicU32,
    created: Instant,
    /// Nanoseconds from `created` to the end of the last use.
    last_end: AtomicU64,
    none_left: Notify,
}

impl Default for Uses {
    fn default() -> Self {
        Self {
            count: AtomicU32::new(0),
            created: Instant::now(),
            last_end: AtomicU64::new(0),
            none_left: Notify::new(),
        }
    }
}

impl Uses {
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts one more, unless there are `limit` already.
    pub(crate) fn try_begin(&self, limit: u32) -> bool {
        let below = |count| (count < limit).then_some(count + 1);
        self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below).is_ok()
    }

    pub(crate) fn end(&self) {
        // Before the count: whoever sees it at zero sees this time, too.
        self.last_end.store(self.created.elapsed().as_nanos() as u64, Ordering::SeqCst);
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.none_left.notify_waiters();
        }
    }

    /// Returns when the last use ended, or `None` while there is one.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let last_end = || Duration::from_nanos(self.last_end.load(Ordering::SeqCst));
        (self.count() == 0).then(|| self.created + last_end())
    }

    /// Waits until the last use has ended: the one wait of every drain.
    pub(crate) async fn drained(&self) {
        loop {
            let none_left = self.none_left.notified();
            if self.count() == 0 {
                return;
            }
            none_left.await;
        }
    }
}
