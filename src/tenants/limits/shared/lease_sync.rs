//! Syncs a lease with Valkey: one task at a time for each lease, so that no request overtakes
//! another.
//!
//! A task that needs a sync requests one. If no task runs, one starts; if one runs, it syncs again
//! after its answer. So there is one request in flight for each lease, however many callers wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::lease::{LimitLease, TryTake};
use super::link::{LeaseGrant, LeaseRequest};
use crate::telemetry::tasks::catch_panic;

/// No task runs.
const IDLE: u8 = 0;
/// A task runs, and its request is up to date.
const SYNCING: u8 = 1;
/// A task runs, and must sync again.
const SYNC_AGAIN: u8 = 2;

/// When to ask again after a refusal. Another replica's permits may be on their way back, or about
/// to be returned.
const ASK_AGAIN_AFTER: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(6), Duration::from_millis(12)];

/// So many callers may ask at once, however small the limit: those that ask again find returned
/// permits.
const ASKING_MIN: u32 = 64;

/// Counts a caller that asks for a permit, pauses included.
struct Asking<'a>(&'a LimitLease);

/// Counts a caller that waits for an answer.
struct SyncWaiters<'a>(&'a Arc<LimitLease>);

impl LimitLease {
    /// Takes a permit of at most `max` after asking. About as many callers may ask as there are
    /// permits: more could not succeed, and each holds its call in memory.
    pub(super) async fn take_by_asking(self: &Arc<Self>, max: u32) -> bool {
        let Some(_asking) = Asking::new(self, max) else { return false };
        let mut pauses = ASK_AGAIN_AFTER.into_iter();
        loop {
            let waiting = SyncWaiters::new(self);
            self.sync().await;
            match self.try_take(max, 0) {
                TryTake::Taken => return true,
                TryTake::Full => return false,
                TryTake::MustAsk => drop(waiting),
            }
            let Some(pause) = pauses.next() else { return false };
            sleep(pause).await;
        }
    }

    /// Requests a sync, and waits until Valkey has answered it or is away. Does not wait for later
    /// requests: on a busy limit there is always one.
    pub(super) async fn sync(self: &Arc<Self>) {
        let before = self.sent.load(Ordering::SeqCst);
        self.request_sync();
        let answered = async {
            loop {
                let next = self.answered_notify.notified();
                if self.answered.load(Ordering::SeqCst) > before {
                    return;
                }
                next.await;
            }
        };
        // A request in flight comes first.
        let _ = timeout(self.shared.answer_timeout * 2, answered).await;
    }

    pub(super) fn request_sync(self: &Arc<Self>) {
        // Without a runtime, the next renewal does it.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.sync_state.swap(SYNC_AGAIN, Ordering::SeqCst) == IDLE {
            runtime.spawn(self.clone().sync_until_idle());
        }
    }

    async fn sync_until_idle(self: Arc<Self>) {
        loop {
            self.sync_state.store(SYNCING, Ordering::SeqCst);
            // A panic must not be the last sync: the state would say for ever that one goes on.
            let synced = catch_panic(&self.shared.all_metrics, "lease", self.sync_once()).await;
            // The grant may be less than what is held.
            if synced.is_some() && self.has_surplus() {
                continue;
            }
            let order = Ordering::SeqCst;
            if self.sync_state.compare_exchange(SYNCING, IDLE, order, order).is_ok() {
                return;
            }
        }
    }

    /// Sends one request and applies the grant. Wakes waiting callers in any case.
    async fn sync_once(self: &Arc<Self>) {
        let link = self.shared.link.load_full();
        // Before the counts are read: callers that wait for a later number are included in that
        // request.
        let number = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(link) = link {
            let request = self.lease_request(number, link.number);
            match link.lease(self, &request).await {
                Ok(grant) => {
                    self.count(&request, grant);
                    self.apply_grant(grant, &request, link.number);
                }
                Err(error) => self.shared.drop_link(&link, &error),
            }
        }
        self.answered.store(number, Ordering::SeqCst);
        self.answered_notify.notify_waiters();
    }

    fn count(&self, request: &LeaseRequest, grant: LeaseGrant) {
        let metrics = &self.shared.metrics;
        if request.needed > request.held {
            let is_enough = grant.permits >= request.needed;
            let counter = if is_enough { &metrics.leases_granted } else { &metrics.leases_refused };
            counter.inc();
        }
    }
}

impl<'a> Asking<'a> {
    fn new(lease: &'a LimitLease, max: u32) -> Option<Self> {
        let one_more = |asking| (asking < max.max(ASKING_MIN)).then(|| asking + 1);
        let counted = lease.asking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        counted.is_ok().then_some(Self(lease))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<'a> SyncWaiters<'a> {
    fn new(lease: &'a Arc<LimitLease>) -> Self {
        lease.waiting.fetch_add(1, Ordering::SeqCst);
        Self(lease)
    }
}

impl Drop for SyncWaiters<'_> {
    fn drop(&mut self) {
        let Self(lease) = self;
        lease.waiting.fetch_sub(1, Ordering::SeqCst);
        // The caller may not have taken its permit.
        if lease.has_surplus() {
            lease.request_sync();
        }
    }
}
