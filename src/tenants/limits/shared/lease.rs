//! One limit of calls in flight, as one replica has it: what is in use here, and what it may use without asking.
//!
//! Most calls take a place that is leased already. Where none is, [`voice`](super::lease_sync) asks for more. A limit is in one of two
//! moods: while much of it is free over all replicas, each may hold a little more than it needs, and gives it back
//! when the keeper comes round; where little is free, or the limit is small, a place is given back when its call ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;
use uuid::Uuid;

use super::leased::{Places, Seen};
use super::statement::{Granted, Statement, room};
use super::{AWAY, Shared};

/// Who has called nothing for so many rounds of the keeper holds nothing.
const IDLE_ROUNDS: u32 = 4;

/// What this replica has of one limit.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) shared: Arc<Shared>,
    /// Where Valkey keeps it.
    pub(super) key: String,
    /// Who speaks. Not the replica: a tenant that was removed and made again has calls of both in flight.
    pub(super) id: Uuid,
    pub(super) places: Places,
    /// How many calls may be in flight over all replicas, by the newest policy.
    limit: AtomicU32,
    /// The connection over which the lease was granted; over another one, or after a change of the limit, it must be stated
    /// anew.
    link: AtomicU32,
    /// Whether what is not needed is given back at once.
    is_exact: AtomicBool,
    /// How often the keeper has come by since the last call ended.
    idle: AtomicU32,
    /// Callers that ask for a place, and those of them that wait for an answer.
    pub(super) asking: AtomicU32,
    pub(super) waiting: AtomicU32,
    /// See [`voice`](super::lease_sync).
    pub(super) voice: AtomicU8,
    /// How often something was said, and the last of it that was answered.
    pub(super) said: AtomicU64,
    pub(super) answered: AtomicU64,
    pub(super) answer: Notify,
    /// Whether the keeper knows of it.
    pub(super) is_kept: AtomicBool,
}

/// Whether there is a place for a call.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// It has one.
    Taken,
    /// There is none.
    None,
    /// Only Valkey knows.
    Unknown,
}

impl Lease {
    /// Nothing of a limit yet.
    pub fn new(shared: &Arc<Shared>, key: String) -> Arc<Self> {
        Arc::new(Self {
            shared: shared.clone(),
            key,
            id: Uuid::new_v4(),
            places: Places::default(),
            limit: AtomicU32::new(u32::MAX),
            link: AtomicU32::new(AWAY),
            is_exact: AtomicBool::new(true),
            idle: AtomicU32::new(0),
            asking: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            voice: AtomicU8::default(),
            said: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            answer: Notify::new(),
            is_kept: AtomicBool::new(false),
        })
    }

    /// From now on the limit is another one. Calls in flight stay.
    pub fn set_limit(self: &Arc<Self>, limit: Option<u32>) {
        let now = limit.unwrap_or(u32::MAX);
        if self.limit.swap(now, Ordering::SeqCst) != now {
            // What is held was granted of another limit.
            self.link.store(AWAY, Ordering::SeqCst);
        }
        // They may have come while there was no limit, when nobody else was told of them.
        if limit.is_some() && self.places.see().taken > 0 {
            self.be_kept();
        }
    }

    /// Takes a place of at most `max`, if there is one. Waits only where Valkey must be asked.
    pub async fn take(self: &Arc<Self>, max: Option<u32>) -> bool {
        let Some(max) = max else { return self.places.take(|_| u32::MAX).is_ok() };
        // Those who wait come first: what they were given is not for others.
        match self.try_take(max, self.waiting.load(Ordering::SeqCst)) {
            Place::Taken => true,
            Place::None => false,
            // In a box: every call would carry the room for it.
            Place::Unknown => Box::pin(self.take_by_asking(max)).await,
        }
    }

    /// The same without asking, and without taking the last `kept` places that are held.
    pub(super) fn try_take(self: &Arc<Self>, max: u32, kept: u32) -> Place {
        let link = self.shared.link_number.load(Ordering::SeqCst);
        if link == AWAY {
            let part = max.div_ceil(self.shared.replicas());
            if self.places.take(|_| part).is_err() {
                return Place::None;
            }
            // Afterwards: a keeper that comes by in between would see nothing to keep, and forget the lease.
            self.be_kept();
            return Place::Taken;
        }
        if link != self.link.load(Ordering::SeqCst) {
            return Place::Unknown;
        }
        match self.places.take(|seen| seen.leased.saturating_sub(kept).min(max)) {
            Ok(()) => Place::Taken,
            Err(seen) if seen.taken >= max => Place::None,
            Err(_) => Place::Unknown,
        }
    }

    /// Gives the place of a call back.
    pub fn give(self: &Arc<Self>) {
        let left = self.places.give();
        self.idle.store(0, Ordering::Relaxed);
        if self.is_too_much(left) {
            self.speak_up();
        }
    }

    /// Whether something is held here that should be given back now.
    pub(super) fn has_too_much(&self) -> bool {
        self.is_too_much(self.places.see())
    }

    fn is_too_much(&self, seen: Seen) -> bool {
        seen.leased > seen.taken
            && self.is_exact.load(Ordering::SeqCst)
            && seen.leased - seen.taken > self.waiting.load(Ordering::SeqCst)
            && self.is_in_force()
    }

    /// Whether it was granted over the connection that there is.
    pub(super) fn is_in_force(&self) -> bool {
        let link = self.link.load(Ordering::SeqCst);
        link != AWAY && link == self.shared.link_number.load(Ordering::SeqCst)
    }

    /// Whether anything of the limit is held or in use here.
    pub(super) fn is_in_use(&self) -> bool {
        self.places.see() != Seen { taken: 0, leased: 0 }
    }

    /// From now on what is not needed is given back at once.
    pub(super) fn be_exact(&self) {
        self.is_exact.store(true, Ordering::SeqCst);
    }

    /// Notes that the keeper has come by once more.
    pub(super) fn note_round(&self) {
        if self.idle.fetch_add(1, Ordering::Relaxed) + 1 >= IDLE_ROUNDS {
            self.be_exact();
        }
    }

    /// What is to be said over a connection now. What is held after that is no more than it says.
    pub(super) fn state(&self, number: u64, link: u32) -> Statement {
        let limit = self.limit.load(Ordering::SeqCst);
        // Who cannot be asked to give it back does not get any.
        let hears = self.shared.hears.load(Ordering::SeqCst);
        let room = if hears { room(limit, self.shared.replicas()) } else { 0 };
        let waiting = self.waiting.load(Ordering::SeqCst);
        let is_in_force = self.link.load(Ordering::SeqCst) == link;
        let kept_room = if self.is_exact.load(Ordering::SeqCst) { 0 } else { room };
        let seen = self.places.keep(if is_in_force { waiting + kept_room } else { 0 });
        Statement::new(seen, number, waiting, limit, room)
    }

    /// Goes by what was answered over a connection, unless the limit has become another meanwhile.
    pub(super) fn hear(self: &Arc<Self>, granted: Granted, said: &Statement, link: u32) {
        self.places.lease(granted.places);
        self.is_exact.store(!granted.is_roomy, Ordering::SeqCst);
        self.link.store(link, Ordering::SeqCst);
        if self.limit.load(Ordering::SeqCst) != said.limit {
            self.link.store(AWAY, Ordering::SeqCst);
        }
        if granted.places > 0 {
            self.be_kept();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ANSWER_TIMEOUT;
    use super::*;
    use crate::config::Secret;
    use crate::telemetry::metrics::Metrics;

    fn lease() -> Arc<Lease> {
        let url = Secret::new("redis://127.0.0.1:1".to_owned());
        let shared = Shared::connect(&url, ANSWER_TIMEOUT, &Metrics::new()).unwrap();
        Lease::new(&shared, "limit".to_owned())
    }

    #[test]
    fn a_lease_is_good_for_the_connection_that_it_came_over() {
        let lease = lease();
        let connected = |number| lease.shared.link_number.store(number, Ordering::SeqCst);
        connected(1);
        assert_eq!(lease.try_take(10, 0), Place::Unknown);
        lease.hear(Granted { places: 3, is_roomy: true }, &lease.state(1, 1), 1);
        let taken = [(); 4].map(|()| lease.try_take(10, 0));
        assert_eq!(taken, [Place::Taken, Place::Taken, Place::Taken, Place::Unknown]);
        // All that is allowed is in use: there is nothing to ask.
        assert_eq!(lease.try_take(3, 0), Place::None);
        lease.give();
        connected(2);
        assert_eq!(lease.try_take(10, 0), Place::Unknown);
        assert_eq!(lease.state(9, 2).held, 2, "no more than is in use");
        // Alone, half of the limit is its part.
        connected(AWAY);
        lease.shared.replicas.store(2, Ordering::SeqCst);
        assert_eq!(lease.try_take(5, 0), Place::Taken);
        assert_eq!(lease.try_take(5, 0), Place::None);
    }

    #[test]
    fn an_answer_that_is_about_another_limit_is_good_for_nothing() {
        let lease = lease();
        lease.shared.link_number.store(1, Ordering::SeqCst);
        lease.set_limit(Some(100));
        let said = lease.state(1, 1);
        lease.set_limit(Some(10));
        lease.hear(Granted { places: 50, is_roomy: true }, &said, 1);
        assert_eq!(lease.try_take(10, 0), Place::Unknown);
        lease.hear(Granted { places: 5, is_roomy: false }, &lease.state(2, 1), 1);
        assert_eq!(lease.try_take(10, 0), Place::Taken);
    }

    #[test]
    fn what_is_said_to_be_held_is_all_that_can_be_used() {
        let lease = lease();
        lease.shared.link_number.store(1, Ordering::SeqCst);
        lease.hear(Granted { places: 8, is_roomy: false }, &lease.state(1, 1), 1);
        assert_eq!(lease.try_take(10, 0), Place::Taken);
        assert!(lease.has_too_much());
        lease.waiting.store(2, Ordering::SeqCst);
        assert_eq!((lease.state(9, 1).held, lease.has_too_much()), (3, false));
        // They are for those who wait.
        assert_eq!(lease.try_take(10, 2), Place::Unknown);
        let taken = [(); 3].map(|()| lease.try_take(10, 0));
        assert_eq!(taken, [Place::Taken, Place::Taken, Place::Unknown]);
    }
}
