//! Sessions that ended before their tokens expire, so that the tokens are rejected. Their number is
//! bounded: sessions whose tokens expire first are forgotten first.

use std::collections::HashMap;

use crate::common::ids::SessionId;

/// The most that are remembered per shard. A table of this many takes about a megabyte.
const REVOKED_MAX: usize = 28 * 1024;

#[derive(Default)]
pub(crate) struct RevokedSessions {
    /// When each token expires, in seconds since 1970.
    expires: HashMap<u64, u32>,
    /// How many were forgotten before their tokens expired.
    forgotten: u64,
}

impl RevokedSessions {
    /// Adds a session whose token expires at `expires`.
    pub(crate) fn add(&mut self, id: &SessionId, expires: u64, now: u64) {
        self.expires.insert(half(id), u32::try_from(expires).unwrap_or(u32::MAX));
        if self.expires.len() > REVOKED_MAX {
            self.remove_expired(now);
        }
        if self.expires.len() > REVOKED_MAX
            && let Some((&first, _)) = self.expires.iter().min_by_key(|(_, expires)| **expires)
        {
            self.expires.remove(&first);
            self.forgotten += 1;
        }
    }

    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.expires.contains_key(&half(id))
    }

    pub(crate) fn remove_expired(&mut self, now: u64) {
        self.expires.retain(|_, expires| u64::from(*expires) >= now);
    }

    /// Returns how many were forgotten before their tokens expired, since the last call.
    pub(crate) fn take_forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.forgotten)
    }
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
        let ids: Vec<_> = (0..REVOKED_MAX + 10).map(|_| SessionId::generate()).collect();
        // In any order.
        for (id, expires) in ids.iter().rev().zip((0..ids.len() as u64).rev()) {
            revoked.add(id, expires, 0);
        }
        assert_eq!(revoked.expires.len(), REVOKED_MAX);
        assert!(!revoked.contains(&ids[9]) && revoked.contains(&ids[10]));
        assert_eq!((revoked.take_forgotten(), revoked.take_forgotten()), (10, 0));
        revoked.remove_expired(100);
        assert!(!revoked.contains(&ids[99]) && revoked.contains(&ids[100]));
        revoked.remove_expired(u64::MAX);
        assert!(revoked.expires.is_empty());
    }

    #[test]
    fn expired_tokens_are_forgotten_before_valid_ones() {
        let mut revoked = RevokedSessions::default();
        for n in 0..REVOKED_MAX as u64 {
            revoked.add(&SessionId::generate(), n, 0);
        }
        let last = SessionId::generate();
        revoked.add(&last, 1 << 20, 5000);
        assert_eq!((revoked.expires.len(), revoked.take_forgotten()), (REVOKED_MAX - 5000 + 1, 0));
        assert!(revoked.contains(&last));
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
