//! The waiting calls of a backend, as operators see them.

use std::sync::Arc;

use tokio::time::Instant;

use super::lanes::FairnessKey;
use super::round_robin::{QueuedCall, TenantQueue};
use super::{Queue, QueueError};
use crate::common::ids::{CallId, TenantId};
use crate::events::CallTags;

/// The waiting calls of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingCalls {
    pub tenant: TenantId,
    pub calls: usize,
    /// When the one that has waited longest came.
    pub since: Instant,
}

/// Tells what a call is, if it has to wait: most calls need not.
pub trait DescribeCall: Sync {
    fn describe(&self) -> WaitingInfo;
}

#[derive(Clone, Debug)]
pub struct WaitingInfo {
    pub call: CallId,
    /// The tool or the method, as asked for: it need not exist.
    pub target: Box<str>,
    /// `None` if the caller has named nothing.
    pub tags: Option<Box<CallTags>>,
    pub deadline: Instant,
}

/// One waiting call.
#[derive(Clone, Debug)]
pub struct WaitingCall {
    pub tenant: TenantId,
    pub since: Instant,
    /// Whether it waits for something else before it wants a slot, such as the server's start.
    pub is_early: bool,
    pub info: Option<WaitingInfo>,
}

impl Queue {
    /// Returns the tenant of a waiting call.
    pub fn tenant_of(&self, call: CallId) -> Option<TenantId> {
        let is_it = |it: &QueuedCall| it.info.as_ref().is_some_and(|info| info.call == call);
        let backlog = self.backlog.lock();
        let mut queues = backlog.round_robin.tenants.values();
        let has = |queue: &&TenantQueue| {
            queue.calls.find(is_it).is_some() || queue.early.iter().any(is_it)
        };
        queues.find(has).map(|queue| queue.share.tenant.clone())
    }

    /// Takes a waiting call out, and tells it that an operator has cancelled it. Returns whether
    /// the call waits here.
    pub fn cancel(self: &Arc<Self>, call: CallId) -> bool {
        let is_it = |it: &QueuedCall| it.info.as_ref().is_some_and(|info| info.call == call);
        self.update(|round_robin| {
            let found = round_robin.tenants.iter().find_map(|(share, queue)| {
                let early = || queue.early.iter().find(|call| is_it(call));
                let of_early = || early().map(|call| (FairnessKey::default(), call.number));
                let (key, number) = queue.calls.find(is_it).or_else(of_early)?;
                Some((*share, key, number))
            });
            let Some((share, key, number)) = found else { return false };
            let Some(call) = round_robin.take(share, key, number) else { return false };
            if call.request.is_some() {
                self.slots.remove_waiting(1);
            }
            let _ = call.sender.send(Err(QueueError::Cancelled));
            true
        })
    }

    pub fn waiting(&self) -> Vec<WaitingCalls> {
        self.backlog.lock().round_robin.by_tenant().collect()
    }
}
