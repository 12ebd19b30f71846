//! How often a tenant may open sessions. Opening one is no call, and is taken from no rate; but each that is ended is remembered
//! by all replicas until its token ends.

use std::num::NonZeroU32;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::common::ids::TenantId;

/// Sessions that a tenant may open at once, and then in a second.
const BURST: NonZeroU32 = NonZeroU32::new(1000).expect("it is not 0");
const PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("it is not 0");

/// What each tenant has opened of late.
#[derive(Debug)]
pub(crate) struct Openings(DefaultKeyedRateLimiter<TenantId>);

impl Openings {
    pub(crate) fn new() -> Self {
        Self(RateLimiter::keyed(Quota::per_second(PER_SECOND).allow_burst(BURST)))
    }

    /// Whether `tenant` may open another now.
    pub(crate) fn take(&self, tenant: &TenantId) -> bool {
        self.0.check_key(tenant).is_ok()
    }

    /// Forgets those who have opened none of late.
    pub(crate) fn sweep(&self) {
        self.0.retain_recent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_cannot_open_without_end_and_others_do_not_notice() {
        let openings = Openings::new();
        let [a, b] = ["a", "b"].map(|tenant| TenantId::parse(tenant).unwrap());
        let opened = (0..10_000).take_while(|_| openings.take(&a)).count();
        // A few are earned meanwhile.
        assert!((1000..2000).contains(&opened), "{opened}");
        assert!(openings.take(&b));
        openings.sweep();
        assert_eq!(openings.0.len(), 2, "both have opened some just now");
    }
}
