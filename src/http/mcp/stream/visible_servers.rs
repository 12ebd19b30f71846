//! Which servers a stream hears of. They come and go, and a stream that is open meanwhile goes with them.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::State;
use crate::backend::changes::Changes;
use crate::common::ids::ServerId;
use crate::gateway::Caller;
use crate::http::Front;
use crate::http::mcp::Scope;
use crate::registry::ChangeSource;

/// The servers that an endpoint shows to a caller, but for those of its session, as of now and from now on. Listening
/// starts none of them.
pub(crate) struct Following {
    pub(crate) front: Arc<Front>,
    pub(crate) caller: Caller,
    pub(crate) scope: Scope,
    changed: watch::Receiver<u64>,
    /// Of a name there may be others later.
    known: HashMap<ServerId, Arc<Changes>>,
}

impl Following {
    /// Knows none of them yet.
    pub(crate) fn new(front: &Arc<Front>, caller: &Caller, scope: &Scope) -> Self {
        Self {
            front: front.clone(),
            caller: caller.clone(),
            scope: scope.clone(),
            changed: front.gateway.registry().changed(),
            known: HashMap::new(),
        }
    }

    /// Those that were not there when this was last asked.
    pub(crate) fn new_ones(&mut self) -> Vec<ChangeSource> {
        self.changed.borrow_and_update();
        let servers = self.front.gateway.servers(&self.caller);
        let shown = servers.filter(|server| match &self.scope {
            Scope::All => true,
            Scope::One(id) => server.id().as_str() == id,
        });
        let tenant = &self.caller.tenant.id;
        let now: Vec<_> = shown.filter_map(|server| server.source(tenant)).collect();
        let of_now =
            |source: &ChangeSource| (source.changes.server().clone(), source.changes.clone());
        let before = std::mem::replace(&mut self.known, now.iter().map(of_now).collect());
        let is_known = |source: &ChangeSource| {
            let known = before.get(source.changes.server());
            known.is_some_and(|known| Arc::ptr_eq(known, &source.changes))
        };
        now.into_iter().filter(|source| !is_known(source)).collect()
    }

    /// Done when there may be others. Safe to give up.
    pub(crate) async fn changed(&mut self) {
        if self.changed.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Whether a server has been ready for others already: then it tells nobody else that its lists are there.
pub(crate) fn is_ready(source: &ChangeSource) -> bool {
    source.backend.as_ref().is_some_and(|backend| matches!(backend.state(), State::Ready(_)))
}
