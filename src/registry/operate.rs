//! The changes that an operator makes to running servers.

use std::sync::Arc;

use super::{Registry, Server};
use crate::backend::Backend;
use crate::common::ids::{CallId, ServerId, TenantId};

/// A call that waits or runs.
pub struct FoundCall {
    pub tenant: TenantId,
    pub server: ServerId,
}

impl Registry {
    /// Finds a call that waits or runs.
    pub fn find_call(&self, call: CallId) -> Option<FoundCall> {
        self.servers().iter().find_map(|server| {
            let tenant = server.backends().iter().find_map(|backend| backend.tenant_of(call))?;
            Some(FoundCall { tenant, server: server.id().clone() })
        })
    }

    /// Cancels a call, wherever it waits or runs. Returns whether it was found.
    pub fn cancel(&self, call: CallId) -> bool {
        self.servers().iter().flat_map(|server| server.backends()).any(|it| it.cancel(call))
    }

    /// Pauses a server, or resumes it: also what a reload makes of it.
    pub fn pause(&self, server: &Server, is_paused: bool) {
        self.inner.environment.set_paused(server.id(), is_paused);
        let owned = server.owned().into_iter().filter_map(|owned| owned.replacement);
        let next = self.replacement(server, None).into_iter().chain(owned);
        for backend in server.backends().into_iter().chain(next) {
            backend.pause(is_paused);
        }
    }

    /// Drains and replaces one instance of a shared server. Returns whether it is ready.
    pub fn replace_instance(&self, server: &Server, number: usize) -> bool {
        server.shared().is_some_and(|backend: &Arc<Backend>| backend.replace_instance(number))
    }
}
