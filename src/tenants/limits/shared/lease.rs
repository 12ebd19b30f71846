//! One limit of calls in flight, as one replica has it: what is in use here, and what it may use without asking.
//!
//! Most calls take a permit that is leased already. Where none is, [`sync_state`](super::lease_sync) asks for more. A limit is in one of two
//! moods: while much of it is free over all replicas, each may hold a little more than it needs, and gives it back
//! when the keeper comes round; where little is free, or the limit is small, a permit is given back when its call ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;
use uuid::Uuid;

use super::lease_request::{LeaseGrant, LeaseRequest, headroom};
use super::leased_permits::{LeasedPermits, PermitCounts};
use super::{NO_LINK, SharedLimits};

/// Who has called nothing for so many rounds of the keeper holds nothing.
const IDLE_ROUNDS_MAX: u32 = 4;

/// What this replica has of one limit.
#[derive(Debug)]
pub(crate) struct LimitLease {
    pub(super) shared: Arc<SharedLimits>,
    /// Where Valkey keeps it.
    pub(super) key: String,
    /// Who speaks. Not the replica: a tenant that was removed and made again has calls of both in flight.
    pub(super) id: Uuid,
    pub(super) permits: LeasedPermits,
    /// How many calls may be in flight over all replicas, by the newest policy.
    limit: AtomicU32,
    /// The connection over which the lease was granted; over another one, or after a change of the limit, it must be stated
    /// anew.
    link: AtomicU32,
    /// Whether what is not needed is given back at once.
    returns_surplus: AtomicBool,
    /// How often the keeper has come by since the last call ended.
    idle: AtomicU32,
    /// Callers that ask for a permit, and those of them that wait for an answer.
    pub(super) asking: AtomicU32,
    pub(super) waiting: AtomicU32,
    /// See [`sync_state`](super::lease_sync).
    pub(super) sync_state: AtomicU8,
    /// How often something was said, and the last of it that was answered.
    pub(super) sent: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) answered_notify: Notify,
    /// Whether the keeper knows of it.
    pub(super) is_registered: AtomicBool,
}

/// Whether there is a permit for a call.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum TryTake {
    /// It has one.
    Taken,
    /// There is none.
    Full,
    /// Only Valkey knows.
    MustAsk,
}

impl LimitLease {
    /// Nothing of a limit yet.
    pub fn new(shared: &Arc<SharedLimits>, key: String) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            key,
            id: Uuid::new_v4(),
            permits: LeasedPermits::default(),
            limit: AtomicU32::new(u32::MAX),
            link: AtomicU32::new(NO_LINK),
            returns_surplus: AtomicBool::new(true),
            idle: AtomicU32::new(0),
            asking: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            sync_state: AtomicU8::default(),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            answered_notify: Notify::new(),
            is_registered: AtomicBool::new(false),
        })
    }

    /// From now on the limit is another one. Calls in flight stay.
    pub fn set_limit(self: &Arc<Self>, limit: Option<u32>) {
        let now = limit.unwrap_or(u32::MAX);
        if self.limit.swap(now, Ordering::SeqCst) != now {
            // What is held was granted of another limit.
            self.link.store(NO_LINK, Ordering::SeqCst);
        }
        // They may have come while there was no limit, when nobody else was told of them.
        if limit.is_some() && self.permits.counts().in_use > 0 {
            self.register();
        }
    }

    /// Takes a permit of at most `max`, if there is one. Waits only where Valkey must be asked.
    pub async fn take(self: &Arc<Self>, max: Option<u32>) -> bool {
        let Some(max) = max else { return self.permits.take(|_| u32::MAX).is_ok() };
        // Those who wait come first: what they were given is not for others.
        match self.try_take(max, self.waiting.load(Ordering::SeqCst)) {
            TryTake::Taken => true,
            TryTake::Full => false,
            // In a box: every call would carry the headroom for it.
            TryTake::MustAsk => Box::pin(self.take_by_asking(max)).await,
        }
    }

    /// The same without asking, and without taking the last `kept` permits that are held.
    pub(super) fn try_take(self: &Arc<Self>, max: u32, kept: u32) -> TryTake {
        let link = self.shared.link_number.load(Ordering::SeqCst);
        if link == NO_LINK {
            let part = max.div_ceil(self.shared.replicas());
            if self.permits.take(|_| part).is_err() {
                return TryTake::Full;
            }
            // Afterwards: a keeper that comes by in between would see nothing to keep, and forget the lease.
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

    /// Gives the permit of a call back.
    pub fn give(self: &Arc<Self>) {
        let remaining = self.permits.give();
        self.idle.store(0, Ordering::Relaxed);
        if self.is_surplus(remaining) {
            self.request_sync();
        }
    }

    /// Whether something is held here that should be given back now.
    pub(super) fn has_surplus(&self) -> bool {
        self.is_surplus(self.permits.counts())
    }

    fn is_surplus(&self, counts: PermitCounts) -> bool {
        counts.leased > counts.in_use
            && self.returns_surplus.load(Ordering::SeqCst)
            && counts.leased - counts.in_use > self.waiting.load(Ordering::SeqCst)
            && self.is_in_force()
    }

    /// Whether it was granted over the connection that there is.
    pub(super) fn is_in_force(&self) -> bool {
        let link = self.link.load(Ordering::SeqCst);
        link != NO_LINK && link == self.shared.link_number.load(Ordering::SeqCst)
    }

    /// Whether anything of the limit is held or in use here.
    pub(super) fn is_in_use(&self) -> bool {
        self.permits.counts() != PermitCounts { in_use: 0, leased: 0 }
    }

    /// From now on what is not needed is given back at once.
    pub(super) fn return_surplus_at_once(&self) {
        self.returns_surplus.store(true, Ordering::SeqCst);
    }

    /// Notes that the keeper has come by once more.
    pub(super) fn count_round(&self) {
        if self.idle.fetch_add(1, Ordering::Relaxed) + 1 >= IDLE_ROUNDS_MAX {
            self.return_surplus_at_once();
        }
    }

    /// What is to be said over a connection now. What is held after that is no more than it says.
    pub(super) fn lease_request(&self, number: u64, link: u32) -> LeaseRequest {
        let limit = self.limit.load(Ordering::SeqCst);
        // Who cannot be asked to give it back does not get any.
        let hears_recalls = self.shared.hears_recalls.load(Ordering::SeqCst);
        let headroom = if hears_recalls { headroom(limit, self.shared.replicas()) } else { 0 };
        let waiting = self.waiting.load(Ordering::SeqCst);
        let is_in_force = self.link.load(Ordering::SeqCst) == link;
        let kept_headroom = if self.returns_surplus.load(Ordering::SeqCst) { 0 } else { headroom };
        let counts = self.permits.keep(if is_in_force { waiting + kept_headroom } else { 0 });
        LeaseRequest::new(counts, number, waiting, limit, headroom)
    }

    /// Goes by what was answered over a connection, unless the limit has become another meanwhile.
    pub(super) fn apply_grant(
        self: &Arc<Self>,
        granted: LeaseGrant,
        said: &LeaseRequest,
        link: u32,
    ) {
        self.permits.lease(granted.permits);
        self.returns_surplus.store(!granted.has_headroom, Ordering::SeqCst);
        self.link.store(link, Ordering::SeqCst);
        if self.limit.load(Ordering::SeqCst) != said.limit {
            self.link.store(NO_LINK, Ordering::SeqCst);
        }
        if granted.permits > 0 {
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
    fn a_lease_is_good_for_the_connection_that_it_came_over() {
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
        // All that is allowed is in use: there is nothing to ask.
        assert_eq!(lease.try_take(3, 0), TryTake::Full);
        lease.give();
        connected(2);
        assert_eq!(lease.try_take(10, 0), TryTake::MustAsk);
        assert_eq!(lease.lease_request(9, 2).held, 2, "no more than is in use");
        // Alone, half of the limit is its part.
        connected(NO_LINK);
        lease.shared.replicas.store(2, Ordering::SeqCst);
        assert_eq!(lease.try_take(5, 0), TryTake::Taken);
        assert_eq!(lease.try_take(5, 0), TryTake::Full);
    }

    #[test]
    fn an_answer_that_is_about_another_limit_is_good_for_nothing() {
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
    fn what_is_said_to_be_held_is_all_that_can_be_used() {
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
        // They are for those who wait.
        assert_eq!(lease.try_take(10, 2), TryTake::MustAsk);
        let taken = [(); 3].map(|()| lease.try_take(10, 0));
        assert_eq!(taken, [TryTake::Taken, TryTake::Taken, TryTake::MustAsk]);
    }
}
