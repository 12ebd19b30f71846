//! The use of a process: as long as somebody has it, the process is not idle.

use std::ops::Deref;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::Backend;

/// A process, and that it is in use.
pub struct Lease {
    backend: Arc<Backend>,
    /// Only where it matters.
    _in_use: Option<InUse>,
}

impl Deref for Lease {
    type Target = Arc<Backend>;

    fn deref(&self) -> &Arc<Backend> {
        &self.backend
    }
}

impl From<Arc<Backend>> for Lease {
    fn from(backend: Arc<Backend>) -> Self {
        Self { backend, _in_use: None }
    }
}

/// Who uses a process now.
pub(super) struct Usage(watch::Sender<State>);

#[derive(Clone, Copy)]
struct State {
    users: usize,
    /// When the last one came or left.
    since: Instant,
}

struct InUse(Arc<Usage>);

impl Usage {
    /// Nobody does.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(State { users: 0, since: Instant::now() })))
    }

    /// Somebody does, until the lease is dropped.
    pub(super) fn lease(self: &Arc<Self>, backend: Arc<Backend>) -> Lease {
        self.count(|users| users + 1);
        Lease { backend, _in_use: Some(InUse(self.clone())) }
    }

    fn count(&self, next: impl FnOnce(usize) -> usize) {
        self.0.send_modify(|state| {
            *state = State { users: next(state.users), since: Instant::now() };
        });
    }

    /// Since when nobody does; `None` if somebody does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = *self.0.borrow();
        (state.users == 0).then_some(state.since)
    }

    /// Done when nobody does.
    pub(super) async fn over(&self) {
        // Its other end is here: it cannot be closed.
        let _ = self.0.subscribe().wait_for(|state| state.users == 0).await;
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.count(|users| users - 1);
    }
}
