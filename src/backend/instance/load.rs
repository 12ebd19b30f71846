//! How busy one run of a copy is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::backend::instance::adaptive::{Adaptive, Limit};
use crate::backend::uses::Uses;

/// How busy one run of a copy is.
pub struct Load {
    in_flight: Uses,
    limit: AtomicU32,
    /// What there should be of that now.
    limit_now: AtomicU32,
    begun: AtomicU64,
    /// When it was last chosen among others, as the pool counts; 0 if never.
    turn: AtomicU64,
    /// Finds out the limit, where that is asked for.
    adaptive: Option<Adaptive>,
}

impl Load {
    /// Nothing to do yet, and so much at once; or what turns out to be of use up to that.
    pub fn new(limit: u32, is_adaptive: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: Uses::default(),
            limit: AtomicU32::new(limit),
            limit_now: AtomicU32::new(limit),
            begun: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            adaptive: is_adaptive.then(|| Adaptive::new(limit)),
        })
    }

    pub(crate) fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    /// Calls on it now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    /// Calls it may have at once.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Calls it should have at most for now.
    pub(crate) fn limit_now(&self) -> u32 {
        self.limit_now.load(Ordering::Relaxed)
    }

    /// Changes how many it may have.
    pub(crate) fn set_limit(&self, limit: Limit) {
        self.limit.store(limit.usual, Ordering::Relaxed);
        self.limit_now.store(limit.now, Ordering::Relaxed);
    }

    /// Calls it ever had.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// When it was last chosen: of those that are equally busy, the one that was not for longest is next.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    pub(crate) fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
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
