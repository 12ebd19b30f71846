//! The calls on a connection, as operators see them.

use super::in_flight::{InFlightCall, InFlightCalls};
use crate::common::ids::{CallId, TenantId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveCall {
    pub call: CallId,
    pub tenant: TenantId,
    pub state: LiveState,
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

impl InFlightCalls {
    /// Returns the tenants' calls. Requests of the gateway itself are left out.
    pub fn live(&self) -> Vec<LiveCall> {
        let table = self.table.lock();
        let calls = table.calls.values().filter(|call| call.permits.is_some());
        calls.map(LiveCall::of).collect()
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
        Self { call: identity.call, tenant: identity.tenant.clone(), state }
    }
}
