//! Those who use a backend, from finding it to their answer: it does not end under their hands.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many there are.
#[derive(Default)]
pub struct Visits {
    count: AtomicUsize,
    none: Notify,
}

/// One of them, until dropped.
pub struct Visit<'a>(&'a Visits);

impl Visits {
    /// One more.
    pub(super) fn enter(&self) -> Visit<'_> {
        self.count.fetch_add(1, Ordering::AcqRel);
        Visit(self)
    }

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Done when there are none.
    pub(super) async fn none(&self) {
        loop {
            let none = self.none.notified();
            if self.are_none() {
                return;
            }
            none.await;
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
