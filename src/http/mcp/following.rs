//! Which servers a stream hears of. They come and go, and a stream that is open meanwhile goes with them.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::Scope;
use crate::backend::{Backend, State};
use crate::gateway::Caller;
use crate::http::Front;
use crate::ids::ServerId;

/// The shared servers that an endpoint shows to a caller, as of now and from now on.
pub(super) struct Following {
    pub(super) front: Arc<Front>,
    pub(super) caller: Caller,
    pub(super) scope: Scope,
    changed: watch::Receiver<u64>,
    known: HashSet<ServerId>,
}

impl Following {
    /// Knows none of them yet.
    pub(super) fn new(front: &Arc<Front>, caller: &Caller, scope: &Scope) -> Self {
        Self {
            front: front.clone(),
            caller: caller.clone(),
            scope: scope.clone(),
            changed: front.gateway.registry().changed(),
            known: HashSet::new(),
        }
    }

    /// Those that were not there when this was last asked.
    pub(super) fn new_ones(&mut self) -> Vec<Arc<Backend>> {
        self.changed.borrow_and_update();
        let servers = self.front.gateway.servers(&self.caller);
        let shared = servers.filter_map(|server| server.shared().cloned());
        let shared = shared.filter(|backend| match &self.scope {
            Scope::All => true,
            Scope::One(id) => backend.id().as_str() == id,
        });
        let now: Vec<_> = shared.collect();
        let new = now.iter().filter(|backend| !self.known.contains(backend.id()));
        let new = new.cloned().collect();
        self.known = now.iter().map(|backend| backend.id().clone()).collect();
        new
    }

    /// Done when there may be others. Safe to give up.
    pub(super) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Whether a server has been ready for others already: then it tells nobody else that its lists are there.
pub(super) fn is_ready(backend: &Backend) -> bool {
    matches!(backend.state(), State::Ready(_))
}
