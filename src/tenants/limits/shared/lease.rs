//! One replica's lease of a limit of calls in flight: permits in use, and permits that it may use
//! without asking.
//!
//! Most calls take a leased permit. If none is left, [`lease_sync`](super::lease_sync) asks for
//! more. While much of the limit is free over all replicas, each may hold some headroom, and
//! returns it at the next renewal. If little is free, or the limit is small, a permit is returned
//! when its call ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;
use uuid::Uuid;

use super::leased_permits::{LeasedPermits, PermitCounts};
use super::link::{LeaseGrant, LeaseRequest, headroom};
use super::{NO_LINK, SharedLimits};

/// After so many renewals without a call, headroom is returned.
const IDLE_RENEWALS_MAX: u32 = 4;

#[derive(Debug)]
pub(crate) struct LimitLease {
    pub(super) shared: Arc<SharedLimits>,
    /// Its key in Valkey.
    pub(super) key: String,
    /// Not the replica's id: a tenant that was removed and made again has two leases of one limit.
    pub(super) id: Uuid,
    pub(super) permits: LeasedPermits,
    /// Calls in flight allowed over all replicas, by the newest policy.
    limit: AtomicU32,
    /// The link over which the lease was granted. Over another one, or after a change of the limit,
    /// it must be requested again.
    link: AtomicU32,
    /// Whether permits beyond those needed are returned at once.
    returns_surplus: AtomicBool,
    /// Renewals since the last call ended.
    idle_renewals: AtomicU32,
    /// Callers that ask for a permit, and those of them that wait for an answer.
    pub(super) asking: AtomicU32,
    pub(super) waiting: AtomicU32,
    /// See [`lease_sync`](super::lease_sync).
    pub(super) sync_state: AtomicU8,
    /// The numbers of the last request sent and of the last one answered.
    pub(super) sent: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) answered_notify: Notify,
    /// Whether it is among the active leases.
    pub(super) is_registered: AtomicBool,
}

/// The outcome of taking a permit without asking Valkey.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum TryTake {
    Taken,
    /// The limit is reached.
    Full,
    /// Valkey may have more.
    MustAsk,
}

impl LimitLease {
    pub fn new(shared: &Arc<SharedLimits>, key: String) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            key,
            id: Uuid::new_v4(),
            permits: LeasedPermits::default(),
            limit: AtomicU32::new(u32::MAX),
            link: AtomicU32::new(NO_LINK),
            returns_surplus: AtomicBool::new(true),
            idle_renewals: AtomicU32::new(0),
            asking: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            sync_state: AtomicU8::default(),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            answered_notify: Notify::new(),
            is_registered: AtomicBool::new(false),
        })
    }

    /// Changes the limit. Calls in flight stay.
    pub fn set_limit(self: &Arc<Self>, limit: Option<u32>) {
        let now = limit.unwrap_or(u32::MAX);
        if self.limit.swap(now, Ordering::SeqCst) != now {
            // The lease was granted under another limit.
            self.link.store(NO_LINK, Ordering::SeqCst);
        }
        // Calls that came while there was no limit are not registered yet.
        if limit.is_some() && self.permits.counts().in_use > 0 {
            self.register();
        }
    }

    /// Takes a permit of at most `max`. Waits only if Valkey must be asked.
    pub async fn take(self: &Arc<Self>, max: Option<u32>) -> bool {
        let Some(max) = max else { return self.permits.take(|_| u32::MAX).is_ok() };
        // Permits granted to waiting callers are kept for them.
        match self.try_take(max, self.waiting.load(Ordering::SeqCst)) {
            TryTake::Taken => true,
            TryTake::Full => false,
            // Boxed, so that calls which do not ask stay small.
            TryTake::MustAsk => Box::pin(self.take_by_asking(max)).await,
        }
    }

    /// Takes a permit without asking, leaving the last `kept` leased ones.
    pub(super) fn try_take(self: &Arc<Self>, max: u32, kept: u32) -> TryTake {
        let link = self.shared.link_number.load(Ordering::SeqCst);
        if link == NO_LINK {
            let share = max.div_ceil(self.shared.replicas());
            if self.permits.take(|_| share).is_err() {
                return TryTake::Full;
            }
            // Afterwards: a renewal in between would see an unused lease and forget it.
            self.register();
            return TryTake::Taken;
        }
        if link != self.link.load(Ordering::SeqCst) {
            return TryTake::MustAsk;
        }
        match self.permits.take(|counts| counts.leased.saturating_sub(kept).min(max)) {
            Ok(()) => TryTake::Taken,
            Err(counts) if counts.in_use >= max => TryTake::Full,
            Err(_) => TryTake::MustAsk,
        }
    }

    /// Returns the number of this replica's calls in flight.
    pub fn in_use(&self) -> u32 {
        self.permits.counts().in_use
    }

    /// Returns the permit of a call.
    pub fn release(self: &Arc<Self>) {
        let counts = self.permits.release();
        self.idle_renewals.store(0, Ordering::Relaxed);
        if self.is_surplus(counts) {
            self.request_sync();
        }
    }

    /// Returns whether permits should be returned now.
    pub(super) fn has_surplus(&self) -> bool {
        self.is_surplus(self.permits.counts())
    }

    fn is_surplus(&self, counts: PermitCounts) -> bool {
        counts.leased > counts.in_use
            && self.returns_surplus.load(Ordering::SeqCst)
            && counts.leased - counts.in_use > self.waiting.load(Ordering::SeqCst)
            && self.is_in_force()
    }

    /// Returns whether it was granted over the current link.
    pub(super) fn is_in_force(&self) -> bool {
        let link = self.link.load(Ordering::SeqCst);
        link != NO_LINK && link == self.shared.link_number.load(Ordering::SeqCst)
    }

    /// Returns permits that are not needed at once, from now on.
    pub(super) fn return_surplus_at_once(&self) {
        self.returns_surplus.store(true, Ordering::SeqCst);
    }

    /// Counts a renewal.
    pub(super) fn count_renewal(&self) {
        if self.idle_renewals.fetch_add(1, Ordering::Relaxed) + 1 >= IDLE_RENEWALS_MAX {
            self.return_surplus_at_once();
        }
    }

    /// Returns the request to send over a link, and gives up permits beyond it.
    pub(super) fn lease_request(&self, number: u64, link: u32) -> LeaseRequest {
        let limit = self.limit.load(Ordering::SeqCst);
        // A replica that cannot receive recalls gets no headroom.
        let receives_recalls = self.shared.receives_recalls.load(Ordering::SeqCst);
        let headroom = if receives_recalls { headroom(limit, self.shared.replicas()) } else { 0 };
        let waiting = self.waiting.load(Ordering::SeqCst);
        let is_in_force = self.link.load(Ordering::SeqCst) == link;
        let kept_headroom = if self.returns_surplus.load(Ordering::SeqCst) { 0 } else { headroom };
        let counts = self.permits.keep(if is_in_force { waiting + kept_headroom } else { 0 });
        LeaseRequest::new(counts, number, waiting, limit, headroom)
    }

    /// Applies what was granted over a link, unless the limit has changed meanwhile.
    pub(super) fn apply_grant(
        self: &Arc<Self>,
        grant: LeaseGrant,
        request: &LeaseRequest,
        link: u32,
    ) {
        self.permits.lease(grant.permits);
        self.returns_surplus.store(!grant.has_headroom, Ordering::SeqCst);
        self.link.store(link, Ordering::SeqCst);
        if self.limit.load(Ordering::SeqCst) != request.limit {
            self.link.store(NO_LINK, Ordering::SeqCst);
        }
        if grant.permits > 0 {
            self.register();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_TIMEOUT;
    use super::*;
    use crate::config::Secret;
    use crate::telemetry::metrics::Metrics;

    fn lease() -> Arc<LimitLease> {
        let url = Secret::new("redis://127.0.0.1:1".to_owned());
        let shared = SharedLimits::connect(&url, ANSWER_TIMEOUT, &Metrics::new()).unwrap();
        LimitLease::new(&shared, "limit".to_owned())
    }

    #[test]
    fn a_lease_is_valid_for_the_link_it_was_granted_over() {
        let lease = lease();
        let connected = |number| lease.shared.link_number.store(number, Ordering::SeqCst);
        connected(1);
        assert_eq!(lease.try_take(10, 0), TryTake::MustAsk);
        lease.apply_grant(
            LeaseGrant { permits: 3, has_headroom: true },
            &lease.lease_request(1, 1),
            1,
        );
        let taken = [(); 4].map(|()| lease.try_take(10, 0));
        assert_eq!(taken, [TryTake::Taken, TryTake::Taken, TryTake::Taken, TryTake::MustAsk]);
        // The limit is reached: there is nothing to ask.
        assert_eq!(lease.try_take(3, 0), TryTake::Full);
        lease.release();
        connected(2);
        assert_eq!(lease.try_take(10, 0), TryTake::MustAsk);
        assert_eq!(lease.lease_request(9, 2).held, 2, "no more than is in use");
        // Without Valkey, half of the limit is its share.
        connected(NO_LINK);
        lease.shared.replicas.store(2, Ordering::SeqCst);
        assert_eq!(lease.try_take(5, 0), TryTake::Taken);
        assert_eq!(lease.try_take(5, 0), TryTake::Full);
    }

    #[test]
    fn a_grant_under_another_limit_is_ignored() {
        let lease = lease();
        lease.shared.link_number.store(1, Ordering::SeqCst);
        lease.set_limit(Some(100));
        let said = lease.lease_request(1, 1);
        lease.set_limit(Some(10));
        lease.apply_grant(LeaseGrant { permits: 50, has_headroom: true }, &said, 1);
        assert_eq!(lease.try_take(10, 0), TryTake::MustAsk);
        lease.apply_grant(
            LeaseGrant { permits: 5, has_headroom: false },
            &lease.lease_request(2, 1),
            1,
        );
        assert_eq!(lease.try_take(10, 0), TryTake::Taken);
    }

    #[test]
    fn only_reported_permits_can_be_used() {
        let lease = lease();
        lease.shared.link_number.store(1, Ordering::SeqCst);
        lease.apply_grant(
            LeaseGrant { permits: 8, has_headroom: false },
            &lease.lease_request(1, 1),
            1,
        );
        assert_eq!(lease.try_take(10, 0), TryTake::Taken);
        assert!(lease.has_surplus());
        lease.waiting.store(2, Ordering::SeqCst);
        assert_eq!((lease.lease_request(9, 1).held, lease.has_surplus()), (3, false));
        // They are kept for waiting callers.
        assert_eq!(lease.try_take(10, 2), TryTake::MustAsk);
        let taken = [(); 3].map(|()| lease.try_take(10, 0));
        assert_eq!(taken, [TryTake::Taken, TryTake::Taken, TryTake::MustAsk]);
    }
}
