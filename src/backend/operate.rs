//! The changes that an operator makes to a running backend.

use std::sync::Arc;

use super::Backend;
use crate::common::ids::{CallId, TenantId};

impl Backend {
    /// Returns the tenant of a call that waits or runs here, or in a cell.
    pub fn tenant_of(&self, call: CallId) -> Option<TenantId> {
        let runs = || {
            let calls = self.pool.instances().into_iter().flat_map(|it| it.live_calls());
            calls.into_iter().find(|live| live.call == call).map(|live| live.tenant)
        };
        let in_cell = || self.cells().iter().find_map(|(_, cell)| cell.tenant_of(call));
        self.queue.tenant_of(call).or_else(runs).or_else(in_cell)
    }

    /// Cancels a call that waits or runs here, or in a cell. Returns whether it was found.
    pub fn cancel(&self, call: CallId) -> bool {
        self.queue.cancel(call)
            || self.pool.instances().iter().any(|instance| instance.cancel(call))
            || self.cells().iter().any(|(_, cell)| cell.cancel(call))
    }

    /// Gives no call a slot until it is called with `false`. Callers wait until their deadlines;
    /// calls that run go on.
    pub fn pause(&self, is_paused: bool) {
        self.queue.hold(is_paused);
        for (_, cell) in self.cells() {
            cell.queue.hold(is_paused);
        }
    }

    /// Has the next run of an instance begin, and the present one end after its calls. Returns
    /// whether there is such an instance, and it is ready.
    pub fn replace_instance(self: &Arc<Self>, number: usize) -> bool {
        self.pool.instances().get(number).is_some_and(|instance| instance.ask_to_replace())
    }
}
