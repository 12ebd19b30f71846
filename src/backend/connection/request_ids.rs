//! The ids of requests to a server.
//!
//! The gateway issues them and never takes a caller's. Callers' ids collide all the time, since
//! many clients start at 1, and a collision delivers one caller's answer to another. The ids are
//! unguessable, since some servers can be made to echo an id found in a tool's arguments. And they
//! fit in 53 bits, which is all that some languages' numbers hold.
//!
//! A keyed permutation of a counter gives all three. It never repeats, and its inverse tells issued
//! ids from made-up ones.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

use super::call::CallIdentity;

/// Half of the 52 bits of an id.
const HALF_BITS: u32 = 26;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;
/// Four rounds make a pseudorandom permutation out of a pseudorandom function; these are more.
const ROUNDS: u64 = 6;

/// Issues the ids of a connection.
///
/// A trait with one implementation: the identity test replaces it by one that uses callers' ids, to
/// show that it would notice that bug.
pub trait IdSource: Send + Sync {
    fn issue(&self, identity: &CallIdentity) -> u64;
    fn was_issued(&self, id: u64) -> bool;
}

#[derive(Debug)]
pub struct RequestIds {
    issued: AtomicU64,
    keys: (u64, u64),
}

impl RequestIds {
    /// Applies a Feistel network: each round can be undone, whatever `mix` is.
    fn permute(&self, count: u64) -> u64 {
        let (mut left, mut right) = (count >> HALF_BITS & HALF_MASK, count & HALF_MASK);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ self.mix(round, right));
        }
        left << HALF_BITS | right
    }

    fn invert(&self, id: u64) -> u64 {
        let (mut left, mut right) = (id >> HALF_BITS & HALF_MASK, id & HALF_MASK);
        for round in (0..ROUNDS).rev() {
            (left, right) = (right ^ self.mix(round, left), left);
        }
        left << HALF_BITS | right
    }

    fn mix(&self, round: u64, half: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
        hasher.write_u64(round << HALF_BITS | half);
        hasher.finish() & HALF_MASK
    }
}

impl Default for RequestIds {
    /// Makes a source with a random key.
    fn default() -> Self {
        Self { issued: AtomicU64::new(0), keys: rand::random() }
    }
}

impl IdSource for RequestIds {
    fn issue(&self, _: &CallIdentity) -> u64 {
        self.permute(self.issued.fetch_add(1, Ordering::Relaxed))
    }

    fn was_issued(&self, id: u64) -> bool {
        id >> (2 * HALF_BITS) == 0 && self.invert(id) < self.issued.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn ids_never_repeat_and_fit_in_53_bits() {
        let ids = RequestIds::default();
        let identity = CallIdentity::gateway(1);
        let seen: HashSet<u64> = (0..100_000).map(|_| ids.issue(&identity)).collect();
        assert_eq!(seen.len(), 100_000);
        assert!(seen.iter().all(|id| id >> 53 == 0));
    }

    #[test]
    fn only_issued_ids_are_known() {
        let ids = RequestIds::default();
        let identity = CallIdentity::gateway(1);
        let issued: Vec<u64> = (0..1000).map(|_| ids.issue(&identity)).collect();
        assert!(issued.iter().all(|id| ids.was_issued(*id)));
        // 1,000 of 2^52 ids are issued: a random guess is not expected to hit one.
        assert!((0..1000).all(|_| !ids.was_issued(rand::random::<u64>() >> 12)));
        assert!(!ids.was_issued(issued[0] | 1 << 60));
    }

    #[test]
    fn two_connections_do_not_share_ids() {
        let identity = CallIdentity::gateway(1);
        let (one, other) = (RequestIds::default(), RequestIds::default());
        assert_ne!(
            (0..4).map(|_| one.issue(&identity)).collect::<Vec<_>>(),
            (0..4).map(|_| other.issue(&identity)).collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn the_permutation_can_be_undone(count in 0..1_u64 << 52) {
            let ids = RequestIds::default();
            prop_assert_eq!(ids.invert(ids.permute(count)), count);
        }
    }
}
