//! Sessions that ended before their tokens expire, so that the tokens are rejected. Their number is
//! bounded: beyond it, the tenant with the most loses those whose tokens expire first.
//!
//! An evicted session is not known to have ended, and must not be taken for one that has not. So
//! each tenant has a time until which its tokens may be of evicted sessions. A tenant that ends
//! sessions in a flood moves its own time, and nobody else's.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::common::ids::SessionId;

/// The most that are remembered per shard. A table of this many takes about a megabyte.
const REVOKED_MAX: usize = 28 * 1024;
/// Evicted at once, since finding the first takes a look at all.
const EVICTED: usize = REVOKED_MAX / 8;
/// The most sessions per shard of which the store has said that they have not ended.
const CONFIRMED_MAX: usize = 8 * 1024;

#[derive(Default)]
pub(crate) struct RevokedSessions {
    revoked: HashMap<u64, KnownSession>,
    /// Sessions that had not ended when the store was asked.
    confirmed: HashMap<u64, KnownSession>,
    /// Tokens of a tenant that expire by then may be of sessions that were evicted.
    evicted_until: HashMap<TenantTag, u32>,
    /// How many were evicted before their tokens expired.
    evicted: u64,
    tags: RandomState,
}

#[derive(Clone, Copy)]
struct KnownSession {
    /// When its token expires, in seconds since 1970.
    expires: u32,
    tenant: TenantTag,
}

/// Stands for a tenant in a few bytes. Two tenants that have one tag count as one.
type TenantTag = u32;

/// The tenant of sessions that an older version has ended: any.
pub(crate) const ANY_TENANT: &str = "";

impl RevokedSessions {
    /// Adds a session whose token expires at `expires`. A tenant is named by its unique text.
    pub(crate) fn add(&mut self, tenant: &str, id: &SessionId, expires: u64, now: u64) {
        let session = self.known(tenant, expires);
        self.confirmed.remove(&half(id));
        self.revoked.insert(half(id), session);
        if self.revoked.len() > REVOKED_MAX {
            self.remove_expired(now);
        }
        if self.revoked.len() > REVOKED_MAX {
            for (tenant, last) in evict(&mut self.revoked, EVICTED) {
                let until = self.evicted_until.entry(tenant).or_default();
                *until = last.max(*until);
            }
            self.evicted += EVICTED as u64;
        }
    }

    /// Notes that the store knows no end of a session. Ends since then are followed.
    pub(crate) fn confirm(&mut self, tenant: &str, id: &SessionId, expires: u64, now: u64) {
        if self.confirmed.len() >= CONFIRMED_MAX {
            self.remove_expired(now);
        }
        if self.confirmed.len() >= CONFIRMED_MAX {
            // The store is asked again about these.
            evict(&mut self.confirmed, CONFIRMED_MAX / 8);
        }
        if !self.contains(id) {
            let session = self.known(tenant, expires);
            self.confirmed.insert(half(id), session);
        }
    }

    pub(crate) fn contains(&self, id: &SessionId) -> bool {
        self.revoked.contains_key(&half(id))
    }

    pub(crate) fn is_confirmed(&self, id: &SessionId) -> bool {
        self.confirmed.contains_key(&half(id))
    }

    /// Returns until when tokens of a tenant expire whose sessions may have ended without being
    /// remembered.
    pub(crate) fn evicted_until(&self, tenant: &str) -> u64 {
        let until = |tenant| self.evicted_until.get(&self.tag(tenant)).copied().unwrap_or(0);
        u64::from(until(tenant).max(until(ANY_TENANT)))
    }

    pub(crate) fn remove_expired(&mut self, now: u64) {
        self.revoked.retain(|_, session| u64::from(session.expires) >= now);
        self.confirmed.retain(|_, session| u64::from(session.expires) >= now);
        self.evicted_until.retain(|_, until| u64::from(*until) >= now);
    }

    /// Returns how many were evicted before their tokens expired, since the last call.
    pub(crate) fn take_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.evicted)
    }

    fn known(&self, tenant: &str, expires: u64) -> KnownSession {
        KnownSession { expires: seconds(expires), tenant: self.tag(tenant) }
    }

    fn tag(&self, tenant: &str) -> TenantTag {
        self.tags.hash_one(tenant) as TenantTag
    }
}

/// Evicts a number of sessions. The tenants with the most lose up to half of theirs, those that
/// expire first. Returns these tenants, and the last expiry of what each has lost.
fn evict(sessions: &mut HashMap<u64, KnownSession>, number: usize) -> HashMap<TenantTag, u32> {
    let mut by_tenant: HashMap<TenantTag, Vec<u32>> = HashMap::new();
    for session in sessions.values() {
        by_tenant.entry(session.tenant).or_default().push(session.expires);
    }
    let mut by_tenant: Vec<_> = by_tenant.into_iter().collect();
    by_tenant.sort_unstable_by_key(|(_, expiries)| std::cmp::Reverse(expiries.len()));
    let mut left = number;
    // The last expiry, and how many of those that expire then.
    let mut lost: HashMap<TenantTag, (u32, usize)> = HashMap::new();
    for (tenant, mut expiries) in by_tenant {
        let number = expiries.len().div_ceil(2).min(left);
        let Some(nth) = number.checked_sub(1) else { break };
        let (before, &mut last, _) = expiries.select_nth_unstable(nth);
        let of_last = number - before.iter().filter(|expires| **expires < last).count();
        lost.insert(tenant, (last, of_last));
        left -= number;
    }
    sessions.retain(|_, session| {
        let Some((last, of_last)) = lost.get_mut(&session.tenant) else { return true };
        let is_last = session.expires == *last && *of_last > 0;
        *of_last -= usize::from(is_last);
        session.expires > *last || session.expires == *last && !is_last
    });
    lost.into_iter().map(|(tenant, (last, _))| (tenant, last)).collect()
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

    const A: &str = "a@1";
    const B: &str = "b@1";

    #[test]
    fn a_tenant_that_ends_many_sessions_evicts_its_own_alone() {
        let mut revoked = RevokedSessions::default();
        let of_b: Vec<_> = (0..100).map(|_| SessionId::generate()).collect();
        // They would expire first.
        of_b.iter().for_each(|id| revoked.add(B, id, 1, 0));
        of_b.iter().for_each(|_| revoked.confirm(B, &SessionId::generate(), 1, 0));
        let confirmed_of_b = revoked.confirmed.clone();
        for n in 0..3 * REVOKED_MAX as u64 {
            revoked.add(A, &SessionId::generate(), 10 + n, 0);
            revoked.confirm(A, &SessionId::generate(), 10 + n, 0);
        }
        assert!(of_b.iter().all(|id| revoked.contains(id)));
        assert!(confirmed_of_b.keys().all(|id| revoked.confirmed.contains_key(id)));
        assert_eq!(revoked.evicted_until(B), 0);
        assert!(revoked.evicted_until(A) > 2 * REVOKED_MAX as u64);
        assert!(revoked.revoked.len() <= REVOKED_MAX && revoked.confirmed.len() <= CONFIRMED_MAX);
        revoked.remove_expired(u64::MAX);
        assert!(revoked.evicted_until.is_empty());
    }

    #[test]
    fn many_tenants_lose_little_each() {
        let mut revoked = RevokedSessions::default();
        for n in 0..=REVOKED_MAX {
            revoked.add(&format!("t{n}"), &SessionId::generate(), 10, 0);
        }
        assert_eq!(revoked.revoked.len(), REVOKED_MAX + 1 - EVICTED);
        assert_eq!(revoked.evicted_until.len(), EVICTED);
        // What an older version has ended may be of anybody.
        let mut revoked = RevokedSessions::default();
        (0..=REVOKED_MAX).for_each(|_| revoked.add(ANY_TENANT, &SessionId::generate(), 10, 0));
        assert_eq!(revoked.evicted_until(A), 10);
    }

    #[test]
    fn the_number_is_bounded_and_tokens_that_expire_first_go_first() {
        let mut revoked = RevokedSessions::default();
        let ids: Vec<_> = (0..=REVOKED_MAX).map(|_| SessionId::generate()).collect();
        // In any order.
        for (id, expires) in ids.iter().rev().zip((0..ids.len() as u64).rev()) {
            revoked.add(A, id, expires, 0);
        }
        assert_eq!(revoked.revoked.len(), REVOKED_MAX + 1 - EVICTED);
        assert!(!revoked.contains(&ids[EVICTED - 1]) && revoked.contains(&ids[EVICTED]));
        assert_eq!(revoked.evicted_until(A), EVICTED as u64 - 1);
        assert_eq!((revoked.take_evicted(), revoked.take_evicted()), (EVICTED as u64, 0));
        let next = EVICTED as u64 + 100;
        revoked.remove_expired(next);
        let next = EVICTED + 100;
        assert!(!revoked.contains(&ids[next - 1]) && revoked.contains(&ids[next]));
        revoked.remove_expired(u64::MAX);
        assert!(revoked.revoked.is_empty());
    }

    /// Even if all expire in one second, a look at all makes room for many.
    #[test]
    fn eviction_is_rare_and_takes_no_more_than_its_part() {
        let mut revoked = RevokedSessions::default();
        let mut add = |number: usize| {
            (0..number).for_each(|_| revoked.add(A, &SessionId::generate(), 7, 0));
            revoked.take_evicted()
        };
        assert_eq!(add(REVOKED_MAX), 0);
        assert_eq!(add(1), EVICTED as u64);
        assert_eq!(add(EVICTED - 1), 0);
        assert_eq!(add(1), EVICTED as u64);
        assert_eq!(revoked.revoked.len(), REVOKED_MAX + 1 - EVICTED);
    }

    #[test]
    fn expired_tokens_are_forgotten_before_valid_ones() {
        let mut revoked = RevokedSessions::default();
        for n in 0..REVOKED_MAX as u64 {
            revoked.add(A, &SessionId::generate(), n, 0);
        }
        let last = SessionId::generate();
        revoked.add(A, &last, 1 << 20, 5000);
        assert_eq!((revoked.revoked.len(), revoked.take_evicted()), (REVOKED_MAX - 5000 + 1, 0));
        assert!(revoked.contains(&last));
    }

    #[test]
    fn a_session_that_ends_is_no_longer_confirmed_and_their_number_is_bounded() {
        let (mut revoked, id) = (RevokedSessions::default(), SessionId::generate());
        revoked.confirm(A, &id, 10, 0);
        assert!(revoked.is_confirmed(&id));
        revoked.add(A, &id, 10, 0);
        // The store was asked before it ended.
        revoked.confirm(A, &id, 10, 0);
        assert!(!revoked.is_confirmed(&id) && revoked.contains(&id));
        for _ in 0..2 * CONFIRMED_MAX {
            revoked.confirm(A, &SessionId::generate(), 10, 0);
        }
        assert!(revoked.confirmed.len() <= CONFIRMED_MAX);
        revoked.remove_expired(11);
        assert!(revoked.confirmed.is_empty());
    }

    #[test]
    fn a_session_that_is_added_twice_counts_once() {
        let (mut revoked, id) = (RevokedSessions::default(), SessionId::generate());
        revoked.add(A, &id, 7, 0);
        revoked.add(A, &id, 9, 0);
        revoked.remove_expired(8);
        assert!(revoked.contains(&id) && revoked.revoked.len() == 1);
        revoked.remove_expired(10);
        assert!(!revoked.contains(&id));
    }
}
