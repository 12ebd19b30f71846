//! The waiting calls of a backend, as operators see them.

use tokio::time::Instant;

use super::Queue;
use crate::common::ids::TenantId;

/// The waiting calls of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCalls {
    pub tenant: TenantId,
    pub calls: usize,
    /// When the one that has waited longest came.
    pub since: Instant,
}

impl Queue {
    pub fn waiting(&self) -> Vec<WaitingCalls> {
        self.backlog.lock().round_robin.by_tenant().collect()
    }
}
