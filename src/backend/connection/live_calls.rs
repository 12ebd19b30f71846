//! The calls on a connection, as operators see them, and how they end one.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::oneshot::Sender;
use tokio::time::Instant;

use super::call::{CallIdentity, Delivery, RequestError, WriteState};
use super::in_flight::{InFlightCall, InFlightCalls};
use super::{Connection, Outgoing};
use crate::backend::instance::tools::Tool;
use crate::common::ids::{CallId, TenantId};
use crate::events::CallTags;

#[derive(Clone, Debug)]
pub struct LiveCall {
    pub call: CallId,
    pub tenant: TenantId,
    pub state: LiveState,
    pub deadline: Instant,
    pub attempt: Option<AttemptInfo>,
}

/// An attempt at a call, while it runs.
#[derive(Clone, Debug)]
pub struct AttemptInfo {
    pub target: Target,
    /// `None` if the caller has named nothing.
    pub tags: Option<Box<CallTags>>,
    /// The number of the attempt, from 1.
    pub number: u32,
    pub dispatched: Instant,
}

#[derive(Clone, Debug)]
pub enum Target {
    Tool(Arc<Tool>),
    Method(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveState {
    /// The frame is not written yet.
    Queued,
    /// The server has the call.
    Running,
    /// The caller has gone; the server has not answered yet.
    Abandoned,
}

impl LiveState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Abandoned => "abandoned",
        }
    }
}

impl Target {
    pub fn name(&self) -> &str {
        match self {
            Self::Tool(tool) => tool.name(),
            Self::Method(method) => method,
        }
    }
}

impl InFlightCalls {
    /// Returns whether the server has nothing to do. Subscriptions of the gateway itself do not
    /// count: they are answered when they end, if ever.
    pub fn is_idle(&self) -> bool {
        let is_subscription =
            |call: &InFlightCall| call.permits.is_none() && call.listener.is_some();
        self.table.lock().calls.values().all(is_subscription)
    }

    /// Returns the number of calls, abandoned ones included.
    pub fn len(&self) -> usize {
        self.table.lock().calls.len()
    }

    /// Returns the tenants' calls. Requests of the gateway itself are left out.
    pub fn live(&self) -> Vec<LiveCall> {
        let table = self.table.lock();
        let calls = table.calls.values().filter(|call| call.permits.is_some());
        calls.map(LiveCall::of).collect()
    }

    /// Takes the waiter of a tenant's call.
    fn take_waiter(&self, call: CallId) -> Option<(u64, Sender<Delivery>, CallIdentity)> {
        let mut table = self.table.lock();
        let is_it = |it: &InFlightCall| it.identity.call == call && it.permits.is_some();
        let (id, found) = table.calls.iter_mut().find(|(_, it)| is_it(it))?;
        Some((*id, found.waiter.take()?, found.identity.clone()))
    }

    /// Adds the number of each tenant's calls.
    pub fn count_by_tenant(&self, counts: &mut HashMap<TenantId, u32>) {
        let table = self.table.lock();
        for call in table.calls.values().filter(|call| call.permits.is_some()) {
            match counts.get_mut(&call.identity.tenant) {
                Some(count) => *count += 1,
                None => _ = counts.insert(call.identity.tenant.clone(), 1),
            }
        }
    }
}

impl Connection {
    /// Cancels a call for an operator: its caller is told so, and the server is told to stop. As
    /// after any cancel, the call keeps its permits until the answer or the end of the grace
    /// period. Returns whether the call is here.
    pub fn cancel(&self, call: CallId) -> bool {
        let Some((id, waiter, identity)) = self.in_flight.take_waiter(call) else { return false };
        let state = self.in_flight.abandon(id, true, Instant::now() + self.grace);
        if state == WriteState::Written {
            self.metrics.cancelled.inc();
            let reason = "cancelled by an operator";
            let _ = self.outgoing.try_send(Outgoing::Cancel { id, reason });
            self.abandoned.notify_one();
        }
        let written = state != WriteState::NotWritten;
        let outcome = Err(RequestError::Cancelled { written });
        let _ = waiter.send(Delivery { identity, outcome });
        true
    }
}

impl LiveCall {
    fn of(call: &InFlightCall) -> Self {
        let state = match (&call.waiter, call.claim) {
            (None, _) => LiveState::Abandoned,
            (_, None) => LiveState::Queued,
            (_, Some(_)) => LiveState::Running,
        };
        let identity = &call.identity;
        Self {
            call: identity.call,
            tenant: identity.tenant.clone(),
            state,
            deadline: call.deadline,
            attempt: call.attempt.clone(),
        }
    }
}
