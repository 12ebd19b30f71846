//! How long the machine itself keeps everybody waiting: what is slower than that is our own doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::Instant;

const EVERY: Duration = Duration::from_millis(1);

/// A thread that wants to be woken each millisecond, and notes the longest delay.
pub struct Stalls {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Stalls {
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let thread = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::park_timeout(EVERY);
                longest = longest.max(began.elapsed().saturating_sub(EVERY));
            }
            longest
        });
        Self { stop, thread }
    }

    /// The longest delay since the beginning.
    pub fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only waits")
    }
}
