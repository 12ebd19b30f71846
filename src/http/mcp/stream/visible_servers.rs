//! The servers whose changes a stream reports. A reload may add and remove servers while the stream
//! is open.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::RunState;
use crate::backend::changes::Changes;
use crate::common::ids::ServerId;
use crate::gateway::Caller;
use crate::http::AppState;
use crate::http::mcp::{HttpRequest, Scope};
use crate::registry::ChangeSource;

/// The servers that an endpoint shows to a caller, kept current. Processes of the caller's session
/// are not among them. Listening to a server does not start it.
pub(crate) struct VisibleServers {
    pub(crate) app: Arc<AppState>,
    pub(crate) caller: Caller,
    pub(crate) scope: Scope,
    changed: watch::Receiver<u64>,
    /// As of the last call of `added`. A server that was removed and added again has new changes.
    known: HashMap<ServerId, Arc<Changes>>,
}

impl VisibleServers {
    pub(crate) fn new(http: &HttpRequest, caller: &Caller) -> Self {
        Self {
            app: http.app.clone(),
            caller: caller.clone(),
            scope: http.scope.clone(),
            changed: http.app.gateway.registry().changed(),
            known: HashMap::new(),
        }
    }

    /// Returns the servers that were added since the last call; the first time, all of them.
    pub(crate) fn added(&mut self) -> Vec<ChangeSource> {
        self.changed.borrow_and_update();
        let servers = self.app.gateway.servers(&self.caller);
        let shown = servers.filter(|server| self.scope.shows(server.id()));
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

    /// Waits until servers may have been added, and returns `true`. Returns `false` when the stream
    /// must close: the gateway shuts down, or the caller's rights have changed. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.app.closing.cancelled() => false,
            () = self.caller.credential.ended() => false,
            changed = self.changed.changed() => match changed {
                Ok(()) => true,
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// Returns whether a server is ready already, so that it will not announce its lists any more.
pub(crate) fn is_ready(source: &ChangeSource) -> bool {
    source.backend.as_ref().is_some_and(|backend| matches!(backend.state(), RunState::Ready(_)))
}
