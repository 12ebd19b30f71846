//! The asynchronous calls of one tenant that wait to begin. Those with different fairness keys take
//! turns: a long run of a tenant does not hold up its other runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::open_calls::{Identity, OpenCall};
use super::request::CallRequest;
use crate::backend::queue::{FairnessKey, Lanes};
use crate::common::byte_budget::BytePermit;
use crate::common::ids::CallId;
use crate::common::limit_use::LimitUse;

/// Calls of one tenant that wait to begin here. Their bytes are bounded as well.
pub(super) const ACCEPTED_MAX: usize = 1000;

#[derive(Default)]
pub(super) struct AcceptedQueue {
    calls: Mutex<Lanes<AcceptedCall>>,
    pub(super) is_served: AtomicBool,
    /// Notified when a call of this queue has ended.
    pub(super) ended: Notify,
}

/// A call that waits to begin.
pub(super) struct AcceptedCall {
    pub(super) open: Arc<OpenCall>,
    pub(super) identity: Identity,
    pub(super) request: CallRequest,
    pub(super) _bytes: BytePermit,
}

impl AcceptedQueue {
    pub(super) fn push(&self, call: AcceptedCall) {
        self.calls.lock().push(call.request.details.fairness_key, call);
    }

    /// Removes the call that begins next, and names its lane.
    pub(super) fn pop(&self) -> Option<(FairnessKey, AcceptedCall)> {
        self.calls.lock().pop()
    }

    /// Puts a call back that cannot begin yet: it is still the next one.
    pub(super) fn put_back(&self, lane: FairnessKey, call: AcceptedCall) {
        self.calls.lock().put_back(lane, call);
    }

    /// Removes the call with this id, if it waits.
    pub(super) fn take(&self, id: CallId) -> Option<AcceptedCall> {
        self.calls.lock().take(|call| call.identity.id == id)
    }

    /// Returns the place of a call, from 1.
    pub(super) fn position(&self, id: CallId) -> Option<usize> {
        let calls = self.calls.lock();
        calls.in_order().position(|call| call.identity.id == id).map(|at| at + 1)
    }

    pub(super) fn len(&self) -> usize {
        self.calls.lock().len()
    }

    pub(super) fn limit_use(&self) -> LimitUse {
        LimitUse::new("accepted_calls", ACCEPTED_MAX, self.len())
    }
}
