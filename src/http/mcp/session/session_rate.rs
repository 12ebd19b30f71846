//! Limits how often a tenant may open sessions. Opening one is no call, so no rate of the tenant's
//! counts it. But all replicas remember each ended session until its token expires.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::common::ids::TenantId;

/// Sessions that a tenant may open at once, and then per second.
const BURST: NonZeroU32 = NonZeroU32::new(1000).expect("it is not 0");
const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("it is not 0");

/// Counts the sessions that each tenant has opened recently.
#[derive(Debug)]
pub(crate) struct SessionRate(DefaultKeyedRateLimiter<TenantId>);

impl SessionRate {
    pub(crate) fn new() -> Self {
        Self(RateLimiter::keyed(Quota::per_second(PER_SECOND).allow_burst(BURST)))
    }

    /// Counts a session that the tenant opens. Returns `false` if it may not open one now.
    pub(crate) fn admits(&self, tenant: &TenantId) -> bool {
        self.0.check_key(tenant).is_ok()
    }

    /// Forgets tenants that have opened no sessions recently.
    pub(crate) fn sweep(&self) {
        self.0.retain_recent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_open_sessions_without_end_and_others_do_not_notice() {
        let rate = SessionRate::new();
        let [a, b] = ["a", "b"].map(|tenant| TenantId::parse(tenant).unwrap());
        let opened = (0..10_000).take_while(|_| rate.admits(&a)).count();
        // The rate admits a few more meanwhile.
        assert!((1000..2000).contains(&opened), "{opened}");
        assert!(rate.admits(&b));
        rate.sweep();
        assert_eq!(rate.0.len(), 2, "both have opened sessions just now");
    }
}
