//! One instance of a backend holds the subscriptions for all: the subscription leader.

use std::future::pending;
use std::sync::Arc;

use crate::backend::changes::subscriptions::keep_subscribed;
use crate::backend::{Backend, RunState};

/// Keeps subscriptions with the leader. During a rollover only the active backend has them. Never
/// ends.
pub(crate) async fn keep_subscribed_to_one(backend: &Backend) {
    backend.activated().await;
    tokio::select! {
        () = follow_leader(backend) => {}
        () = backend.draining() => {}
    }
    pending().await
}

async fn follow_leader(backend: &Backend) {
    let mut state = backend.state.subscribe();
    loop {
        let open = state.wait_for(RunState::is_open).await.ok();
        let leader = open.and_then(|state| match &*state {
            RunState::Ready(ready) => Some(ready.without_tools()),
            _ => None,
        });
        let Some(ready) = leader else { return pending().await };
        backend.changes().lists_may_have_changed(ready.about.lists());
        backend.changes().resources_may_have_changed();
        let is_leader = |state: &RunState| match state {
            RunState::Ready(now) => Arc::ptr_eq(&now.connection, &ready.connection),
            _ => false,
        };
        tokio::select! {
            () = keep_subscribed(backend.changes(), &ready) => {}
            _ = ready.connection.closed() => {}
            _ = state.wait_for(|state| !is_leader(state)) => {}
        }
    }
}
