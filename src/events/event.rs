//! The events. Each is cheap to clone: a slow part of it is shared.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::call::{CallTags, EndedCall, EndedRequest};
use crate::common::ids::{CallId, ServerId, TenantId};

#[derive(Clone, Debug)]
pub enum Event {
    /// A call was admitted by its tenant's own limits, and begins its way to a server.
    CallArrived(Arc<ArrivedCall>),
    /// A call found no free slot, and waits.
    CallQueued {
        call: CallId,
        server: ServerId,
        tenant: TenantId,
        ahead: Ahead,
    },
    /// A call was given to an instance.
    CallDispatched {
        call: CallId,
        server: ServerId,
        tenant: TenantId,
        /// The number of the instance, from 0.
        instance: usize,
        /// The number of the attempt, from 1.
        attempt: u32,
        deadline: Instant,
    },
    /// A call was answered, refused or cancelled, or it failed. A call that was refused before it
    /// arrived has no event but this.
    CallEnded(Arc<EndedCall>),
    /// A traced request that is no call was answered.
    RequestEnded(Arc<EndedRequest>),
    InstanceChanged(Arc<ChangedInstance>),
    /// A new configuration is in force; in words, without values.
    ConfigurationChanged {
        servers: Arc<str>,
        toolsets: Arc<str>,
        tenants: Arc<str>,
        settings: Arc<str>,
    },
    /// A new configuration had a mistake, and the one before stays in force.
    ConfigurationRejected {
        problem: Arc<str>,
    },
    /// A limit of a tenant refused something.
    LimitHit {
        tenant: TenantId,
        call: Option<CallId>,
        code: &'static str,
    },
}

#[derive(Debug)]
pub struct ArrivedCall {
    pub call: CallId,
    pub tenant: TenantId,
    pub server: ServerId,
    /// The tool or the method, as asked for: it need not exist.
    pub target: String,
    pub tags: CallTags,
    pub arrived: Instant,
    pub deadline: Instant,
}

/// The calls that waited for the same server already when a call began to wait, and its slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Waiting calls of the same tenant, and of all others.
    pub own: u32,
    pub others: u32,
    /// The slots that the call's tenant held, those that all held, and how many there were.
    pub held: u32,
    pub taken: u32,
    pub slots: u32,
}

#[derive(Debug)]
pub struct ChangedInstance {
    pub server: ServerId,
    /// The tenant whose own process it is; the gateway's if all tenants share it.
    pub tenant: TenantId,
    /// The number of the instance, from 0.
    pub instance: usize,
    pub change: InstanceChange,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceChange {
    Starting,
    /// Also told when its tools have changed.
    Ready {
        tools: usize,
    },
    /// A start failed, or a run ended. The next change says what follows.
    Failed {
        reason: Arc<str>,
    },
    Backoff {
        retry_in: Duration,
    },
    Quarantined {
        retry_in: Duration,
    },
    /// Takes no more calls, and finishes those that it has.
    Draining,
    /// A run that was replaced has no calls left.
    Drained,
    Stopped,
}
