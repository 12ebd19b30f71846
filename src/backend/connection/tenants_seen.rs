//! The tenants for which a server has worked, or may be working.

use std::collections::{HashSet, VecDeque};

use crate::common::ids::TenantId;

/// The tenants that are remembered of a connection that closed: those whose calls were written
/// last. A call that ends a process was written shortly before, mostly.
const LATEST_MAX: usize = 256;
/// The tenants with unanswered calls that are remembered, the latest ones.
const UNANSWERED_MAX: usize = 64;

/// The tenants that have made the server do anything since the connection was opened.
#[derive(Default)]
pub(super) enum TenantsSeen {
    #[default]
    None,
    One(TenantId),
    Several,
}

impl TenantsSeen {
    pub(super) fn add(&mut self, tenant: &TenantId) {
        match self {
            Self::None => *self = Self::One(tenant.clone()),
            Self::One(known) if known != tenant => *self = Self::Several,
            Self::One(_) | Self::Several => {}
        }
    }
}

/// Calls that the server has not answered and that are forgotten otherwise.
#[derive(Default)]
pub(super) struct UnansweredCalls {
    count: usize,
    /// Oldest first.
    tenants: VecDeque<TenantId>,
}

impl UnansweredCalls {
    pub(super) fn add(&mut self, tenant: &TenantId) {
        self.count += 1;
        if self.tenants.contains(tenant) {
            return;
        }
        if self.tenants.len() == UNANSWERED_MAX {
            self.tenants.pop_front();
        }
        self.tenants.push_back(tenant.clone());
    }

    /// Notes a late answer. Nobody knows whose it is, so tenants stay until none is missing.
    pub(super) fn remove_one(&mut self) {
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.tenants.clear();
        }
    }
}

/// Returns the tenants of written calls, which have the numbers of their claims, and of unanswered
/// ones: each tenant once, the latest first.
pub(super) fn latest_tenants<'a>(
    written: impl Iterator<Item = (u64, &'a TenantId)>,
    unanswered: &'a UnansweredCalls,
) -> Vec<TenantId> {
    let mut written: Vec<_> = written.collect();
    written.sort_unstable_by(|a, b| b.cmp(a));
    let tenants = written.into_iter().map(|(_, tenant)| tenant);
    let mut seen = HashSet::new();
    let tenants = tenants.chain(unanswered.tenants.iter().rev()).filter(|it| seen.insert(*it));
    tenants.take(LATEST_MAX).cloned().collect()
}
