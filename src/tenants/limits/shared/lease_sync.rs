//! Who speaks to Valkey about a limit: one task at a time, so that nothing that is said overtakes anything else.
//!
//! Whoever wants something to be said speaks up. If nobody speaks yet, a task begins to; if one does, it says more when it
//! has its answer. So there is one question under way for each limit, however many callers wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::lease::{LimitLease, TryTake};
use super::lease_request::{LeaseGrant, LeaseRequest};

/// Nobody speaks.
const IDLE: u8 = 0;
/// A task speaks, and what it says has all that is known.
const SYNCING: u8 = 1;
/// A task speaks, and must speak again.
const SYNC_AGAIN: u8 = 2;

/// When to ask again after having been refused. A permit that was given back at another replica may be on its way, and a
/// replica that has more than it needs may be about to give that back.
const ASK_AGAIN_AFTER: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(6), Duration::from_millis(12)];

/// So many callers may ask for a permit of any limit, however small: it is those who ask again that find what others give
/// back.
const ASKING_MIN: u32 = 64;

/// A caller that asks for a permit, pauses included.
struct Asking<'a>(&'a LimitLease);

/// A caller that waits for an answer.
struct Waiting<'a>(&'a Arc<LimitLease>);

impl LimitLease {
    /// Takes a permit of at most `max` after asking for it. About as many may ask as there are permits: more could not all
    /// have one, and each of them has its call in hand.
    pub(super) async fn take_by_asking(self: &Arc<Self>, max: u32) -> bool {
        let Some(_asking) = Asking::new(self, max) else { return false };
        let mut pauses = ASK_AGAIN_AFTER.into_iter();
        loop {
            let waiting = Waiting::new(self);
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

    /// Has something said, and waits until Valkey has answered that, or is away. Not until nothing is remaining to be said: on a
    /// busy limit there always is.
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
        // What is being said already comes first.
        let _ = timeout(self.shared.answer_timeout * 2, answered).await;
    }

    /// Has something said.
    pub(super) fn request_sync(self: &Arc<Self>) {
        // A call that ends where nothing can be said leaves that to the keeper.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.sync_state.swap(SYNC_AGAIN, Ordering::SeqCst) == IDLE {
            runtime.spawn(self.clone().sync_until_idle());
        }
    }

    async fn sync_until_idle(self: Arc<Self>) {
        loop {
            self.sync_state.store(SYNCING, Ordering::SeqCst);
            self.sync_once().await;
            // The answer may have been that there is less than is held.
            if self.has_surplus() {
                continue;
            }
            let (from, to) = (SYNCING, IDLE);
            let order = Ordering::SeqCst;
            if self.sync_state.compare_exchange(from, to, order, order).is_ok() {
                return;
            }
        }
    }

    /// Says what there is to be said, and goes by the answer. If there is none, nobody waits for it any longer either.
    async fn sync_once(self: &Arc<Self>) {
        let link = self.shared.link.load_full();
        // Before anything is looked at: who waits for a later number is in what is said under it.
        let number = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(link) = link {
            let request = self.lease_request(number, link.number);
            match link.lease(self, &request).await {
                Ok(granted) => {
                    self.count(&request, granted);
                    self.apply_grant(granted, &request, link.number);
                }
                Err(error) => self.shared.drop_link(&link, &error),
            }
        }
        self.answered.store(number, Ordering::SeqCst);
        self.answered_notify.notify_waiters();
    }

    fn count(&self, request: &LeaseRequest, granted: LeaseGrant) {
        let metrics = &self.shared.metrics;
        if request.needed > request.held {
            let is_enough = granted.permits >= request.needed;
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

impl<'a> Waiting<'a> {
    fn new(lease: &'a Arc<LimitLease>) -> Self {
        lease.waiting.fetch_add(1, Ordering::SeqCst);
        Self(lease)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Self(lease) = self;
        lease.waiting.fetch_sub(1, Ordering::SeqCst);
        // It may have remaining without the permit that it was given.
        if lease.has_surplus() {
            lease.request_sync();
        }
    }
}
