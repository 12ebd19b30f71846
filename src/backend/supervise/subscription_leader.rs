//! Of a server's copies one speaks for all: what is subscribed to is subscribed to there.

use std::future::pending;
use std::sync::Arc;

use crate::backend::changes::subscriptions::keep_subscribed;
use crate::backend::{Backend, State};

/// Subscriptions are kept with one of the copies, whichever speaks for the server; and of two backends of a name, only
/// the one that is called keeps them. Never ends.
pub(crate) async fn keep_subscribed_to_one(backend: &Backend) {
    backend.activated().await;
    tokio::select! {
        () = follow_speaker(backend) => {}
        () = backend.draining() => {}
    }
    pending().await
}

async fn follow_speaker(backend: &Backend) {
    let mut state = backend.state.subscribe();
    loop {
        let open = state.wait_for(State::is_open).await.ok();
        let speaker = open.and_then(|state| match &*state {
            State::Ready(ready) => Some(ready.without_tools()),
            _ => None,
        });
        let Some(ready) = speaker else { return pending().await };
        backend.changes().lists_may_have_changed(ready.about.lists());
        backend.changes().resources_may_have_changed();
        let speaks = |state: &State| match state {
            State::Ready(now) => Arc::ptr_eq(&now.connection, &ready.connection),
            _ => false,
        };
        tokio::select! {
            () = keep_subscribed(backend.changes(), &ready) => {}
            _ = ready.connection.closed() => {}
            _ = state.wait_for(|state| !speaks(state)) => {}
        }
    }
}
