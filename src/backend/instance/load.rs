//! How busy one run of a copy is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::backend::instance::adaptive::{Adaptive, Limit};

/// How busy one run of a copy is.
pub struct Load {
    in_flight: AtomicU32,
    limit: AtomicU32,
    /// What there should be of that now.
    limit_now: AtomicU32,
    begun: AtomicU64,
    /// When it was last chosen among others, as the pool counts; 0 if never.
    turn: AtomicU64,
    idle: Notify,
    /// Finds out the limit, where that is asked for.
    adaptive: Option<Adaptive>,
}

impl Load {
    /// Nothing to do yet, and so much at once; or what turns out to be of use up to that.
    pub fn new(limit: u32, is_adaptive: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            limit_now: AtomicU32::new(limit),
            begun: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            idle: Notify::new(),
            adaptive: is_adaptive.then(|| Adaptive::new(limit)),
        })
    }

    pub(crate) fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    /// Calls on it now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
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

    /// Done when it has no call.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Takes a place, if there is one.
    pub(crate) fn take(&self) -> bool {
        let below = |taken| (taken < self.limit()).then_some(taken + 1);
        let taken = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below);
        if taken.is_ok() {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    /// Gives a place back.
    pub(crate) fn give_back(&self) {
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }
}
