//! Sessions that ended before their tokens expire, so that the tokens are rejected. Their number is
//! bounded: sessions whose tokens expire first are evicted first.

use std::collections::HashMap;

use crate::common::ids::SessionId;

/// The most that are remembered per shard. A table of this many takes about a megabyte.
const REVOKED_MAX: usize = 28 * 1024;
/// Evicted at once, since finding the first takes a look at all.
const EVICTED: usize = REVOKED_MAX / 8;
/// The most sessions per shard of which the store has said that they have not ended.
const CONFIRMED_MAX: usize = 8 * 1024;

#[derive(Default)]
pub(crate) struct RevokedSessions {
    /// When each token expires, in seconds since 1970.
    expires: HashMap<u64, u32>,
    /// Sessions that had not ended when the store was asked, and when their tokens expire.
    confirmed: HashMap<u64, u32>,
    /// Tokens that expire by then may be of sessions that were evicted.
    evicted_until: u64,
    /// How many were evicted before their tokens expired.
    evicted: u64,
}

impl RevokedSessions {
    /// Adds a session whose token expires at `expires`.
    pub(crate) fn add(&mut self, id: &SessionId, expires: u64, now: u64) {
        self.confirmed.remove(&half(id));
        self.expires.insert(half(id), seconds(expires));
        if self.expires.len() > REVOKED_MAX {
            self.remove_expired(now);
        }
        if self.expires.len() > REVOKED_MAX {
            self.evict();
        }
    }

    /// Notes that the store knows no end of a session. Ends since then are followed.
    pub(crate) fn confirm(&mut self, id: &SessionId, expires: u64, now: u64) {
        if self.confirmed.len() >= CONFIRMED_MAX {
            self.remove_expired(now);
        }
        if self.confirmed.len() >= CONFIRMED_MAX {
            // Any half: the store is asked again about these.
            let mut is_kept = false;
            self.confirmed.retain(|_, _| {
                is_kept = !is_kept;
                is_kept
            });
        }
        if !self.contains(id) {
            self.confirmed.insert(half(id), seconds(expires));
        }
    }

    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.expires.contains_key(&half(id))
    }

    pub(crate) fn is_confirmed(&self, id: &SessionId) -> bool {
        self.confirmed.contains_key(&half(id))
    }

    /// Returns until when tokens expire whose sessions may have ended without being remembered.
    pub(crate) fn evicted_until(&self) -> u64 {
        self.evicted_until
    }

    pub(crate) fn remove_expired(&mut self, now: u64) {
        self.expires.retain(|_, expires| u64::from(*expires) >= now);
        self.confirmed.retain(|_, expires| u64::from(*expires) >= now);
    }

    /// Returns how many were evicted before their tokens expired, since the last call.
    pub(crate) fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    fn evict(&mut self) {
        let mut all: Vec<u32> = self.expires.values().copied().collect();
        let (before, &mut last, _) = all.select_nth_unstable(EVICTED - 1);
        let mut of_last = EVICTED - before.iter().filter(|expires| **expires < last).count();
        self.expires.retain(|_, expires| {
            let is_evicted = *expires < last || (*expires == last && of_last > 0);
            of_last -= usize::from(is_evicted && *expires == last);
            !is_evicted
        });
        self.evicted += EVICTED as u64;
        self.evicted_until = self.evicted_until.max(u64::from(last));
    }
}

fn seconds(time: u64) -> u32 {
    u32::try_from(time).unwrap_or(u32::MAX)
}

/// Half of an id identifies a session well enough: ids are random, and nobody chooses them.
fn half(id: &SessionId) -> u64 {
    let [_, _, _, _, _, _, _, _, rest @ ..] = *id.as_bytes();
    u64::from_be_bytes(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_bounded_and_tokens_that_expire_first_go_first() {
        let mut revoked = RevokedSessions::default();
        let ids: Vec<_> = (0..=REVOKED_MAX).map(|_| SessionId::generate()).collect();
        // In any order.
        for (id, expires) in ids.iter().rev().zip((0..ids.len() as u64).rev()) {
            revoked.add(id, expires, 0);
        }
        assert_eq!(revoked.expires.len(), REVOKED_MAX + 1 - EVICTED);
        assert!(!revoked.contains(&ids[EVICTED - 1]) && revoked.contains(&ids[EVICTED]));
        assert_eq!(revoked.evicted_until(), EVICTED as u64 - 1);
        assert_eq!((revoked.take_evicted(), revoked.take_evicted()), (EVICTED as u64, 0));
        let next = EVICTED as u64 + 100;
        revoked.remove_expired(next);
        let next = EVICTED + 100;
        assert!(!revoked.contains(&ids[next - 1]) && revoked.contains(&ids[next]));
        revoked.remove_expired(u64::MAX);
        assert!(revoked.expires.is_empty());
    }

    /// Even if all expire in one second, a look at all makes room for many.
    #[test]
    fn eviction_is_rare_and_takes_no_more_than_its_part() {
        let mut revoked = RevokedSessions::default();
        let mut add = |number: usize| {
            (0..number).for_each(|_| revoked.add(&SessionId::generate(), 7, 0));
            revoked.take_evicted()
        };
        assert_eq!(add(REVOKED_MAX), 0);
        assert_eq!(add(1), EVICTED as u64);
        assert_eq!(add(EVICTED - 1), 0);
        assert_eq!(add(1), EVICTED as u64);
        assert_eq!(revoked.expires.len(), REVOKED_MAX + 1 - EVICTED);
    }

    #[test]
    fn expired_tokens_are_forgotten_before_valid_ones() {
        let mut revoked = RevokedSessions::default();
        for n in 0..REVOKED_MAX as u64 {
            revoked.add(&SessionId::generate(), n, 0);
        }
        let last = SessionId::generate();
        revoked.add(&last, 1 << 20, 5000);
        assert_eq!((revoked.expires.len(), revoked.take_evicted()), (REVOKED_MAX - 5000 + 1, 0));
        assert!(revoked.contains(&last));
    }

    #[test]
    fn a_session_that_ends_is_no_longer_confirmed_and_their_number_is_bounded() {
        let (mut revoked, id) = (RevokedSessions::default(), SessionId::generate());
        revoked.confirm(&id, 10, 0);
        assert!(revoked.is_confirmed(&id));
        revoked.add(&id, 10, 0);
        // The store was asked before it ended.
        revoked.confirm(&id, 10, 0);
        assert!(!revoked.is_confirmed(&id) && revoked.contains(&id));
        for _ in 0..2 * CONFIRMED_MAX {
            revoked.confirm(&SessionId::generate(), 10, 0);
        }
        assert!(revoked.confirmed.len() <= CONFIRMED_MAX);
        revoked.remove_expired(11);
        assert!(revoked.confirmed.is_empty());
    }

    #[test]
    fn a_session_that_is_added_twice_counts_once() {
        let (mut revoked, id) = (RevokedSessions::default(), SessionId::generate());
        revoked.add(&id, 7, 0);
        revoked.add(&id, 9, 0);
        revoked.remove_expired(8);
        assert!(revoked.contains(&id) && revoked.expires.len() == 1);
        revoked.remove_expired(10);
        assert!(!revoked.contains(&id));
    }
}
