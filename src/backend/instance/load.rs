//! How busy one run of an instance is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::backend::instance::adaptive::{Adaptive, ConcurrencyLimit};
use crate::backend::uses::Uses;

pub struct Load {
    in_flight: Uses,
    limit: AtomicU32,
    /// The limit for now, which is lower in a probe.
    limit_now: AtomicU32,
    begun: AtomicU64,
    /// The pool's count of choices when it was last chosen; 0 if never.
    last_chosen: AtomicU64,
    /// Finds out the limit (`adaptive = true`).
    adaptive: Option<Adaptive>,
}

impl Load {
    /// With `is_adaptive`, `limit` is the upper bound of what is found out.
    pub fn new(limit: u32, is_adaptive: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: Uses::default(),
            limit: AtomicU32::new(limit),
            limit_now: AtomicU32::new(limit),
            begun: AtomicU64::new(0),
            last_chosen: AtomicU64::new(0),
            adaptive: is_adaptive.then(|| Adaptive::new(limit)),
        })
    }

    pub(crate) fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_now(&self) -> u32 {
        self.limit_now.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit(&self, limit: ConcurrencyLimit) {
        self.limit.store(limit.usual, Ordering::Relaxed);
        self.limit_now.store(limit.now, Ordering::Relaxed);
    }

    /// Returns the calls that it ever had.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) fn last_chosen(&self) -> u64 {
        self.last_chosen.load(Ordering::Relaxed)
    }

    pub(crate) fn set_last_chosen(&self, choice: u64) {
        self.last_chosen.store(choice, Ordering::Relaxed);
    }

    /// Waits until it has no call.
    pub(crate) async fn drained(&self) {
        self.in_flight.drained().await;
    }

    /// Begins a call, unless there are as many as there may be.
    pub(crate) fn try_begin(&self) -> bool {
        let has_begun = self.in_flight.try_begin(self.limit());
        if has_begun {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        has_begun
    }

    pub(crate) fn end(&self) {
        self.in_flight.end();
    }
}
