//! A request for a lease, and its grant. `lease.lua` is the other side.

use super::leased_permits::PermitCounts;

/// All replicas together may hold an eighth of a limit as headroom,
const HEADROOM_PART: u32 = 8;
/// if a quarter stays free nevertheless.
const SPARE_PART: u32 = 4;

/// Contains totals, never differences, so that the last request is the whole truth.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct LeaseRequest {
    /// Increases with each request.
    pub number: u64,
    /// Permits that may be in use before the answer.
    pub held: u32,
    /// Permits for all calls, waiting ones included.
    pub needed: u32,
    /// Permits that would save further requests.
    pub wanted: u32,
    /// Permits over all replicas.
    pub limit: u32,
    /// Permits that must stay free for `wanted` to be granted.
    pub spare: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseGrant {
    /// Permits that may be in use from now on.
    pub permits: u32,
    /// Whether these may be more than needed.
    pub has_headroom: bool,
}

impl LeaseRequest {
    pub fn new(counts: PermitCounts, number: u64, waiting: u32, limit: u32, headroom: u32) -> Self {
        let needed = counts.in_use.saturating_add(waiting);
        // Only while callers wait: an idle replica must come to hold nothing.
        let wanted = if waiting > 0 { needed.saturating_add(headroom) } else { needed };
        let spare = if headroom > 0 { limit / SPARE_PART } else { u32::MAX };
        Self { number, held: counts.leased, needed, wanted, limit, spare }
    }
}

/// Returns the permits that one replica may hold beyond its need. None of a small limit: asking is
/// better than being inexact.
pub(super) fn headroom(limit: u32, replicas: u32) -> u32 {
    limit / HEADROOM_PART / replicas.max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_limits_have_headroom_and_small_ones_have_none() {
        assert_eq!([1, 10, 15, 16, 64, 256].map(|limit| headroom(limit, 2)), [0, 0, 0, 1, 4, 16]);
        assert_eq!(headroom(256, 1), headroom(256, 2));
        for replicas in 2..100 {
            // All replicas together.
            assert!(headroom(256, replicas) * replicas <= 256 / HEADROOM_PART);
        }
    }

    #[test]
    fn more_is_wanted_only_while_callers_wait() {
        let counts = PermitCounts { in_use: 5, leased: 9 };
        let asks = LeaseRequest::new(counts, 7, 2, 64, 4);
        let expected =
            LeaseRequest { number: 7, held: 9, needed: 7, wanted: 11, limit: 64, spare: 16 };
        assert_eq!(asks, expected);
        assert_eq!(
            LeaseRequest::new(counts, 7, 0, 64, 4),
            LeaseRequest { needed: 5, wanted: 5, ..expected }
        );
    }

    #[test]
    fn without_headroom_nothing_more_is_wanted_and_no_spare_is_enough() {
        let counts = PermitCounts { in_use: 5, leased: 5 };
        let asks = LeaseRequest::new(counts, 7, 1, 10, 0);
        assert_eq!((asks.needed, asks.wanted, asks.spare), (6, 6, u32::MAX));
    }
}
