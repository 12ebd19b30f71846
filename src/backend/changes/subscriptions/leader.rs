//! The subscription leader, and the slots that requests to it need.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::listen_request::LISTEN_TIMEOUT;
use crate::backend::Ready;
use crate::backend::changes::Changes;
use crate::backend::instance::tools::TYPICAL_TIME;
use crate::backend::queue::{Queue, SlotPermit};
use crate::common::ids::TenantId;

/// The pause of a request that found the backlog full.
const FULL_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
pub(super) struct Leader<'a> {
    pub(super) changes: &'a Changes,
    pub(super) queue: &'a Arc<Queue>,
    pub(super) ready: &'a Ready,
}

impl Leader<'_> {
    /// Waits for a slot, as a call of a tenant does: the server's rate counts the request, and
    /// tenants take turns.
    pub(super) async fn slot(&self, tenant: &TenantId) -> SlotPermit {
        loop {
            let entry = self.queue.enqueue(tenant, 1, 0);
            match entry.acquire(TYPICAL_TIME, Instant::now() + LISTEN_TIMEOUT).await {
                Ok(permit) => return permit,
                Err(_) => sleep(FULL_PAUSE).await,
            }
        }
    }
}
