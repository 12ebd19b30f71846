//! Keeps one instance of a server, the subscription leader, subscribed to the watched resources and
//! to its lists, for all instances.
//!
//! A legacy server reports changes of lists unasked, and has one subscription per resource. A
//! modern server reports to those who listen. Lists have a listen request of their own, so that a
//! refused resource cannot silence them.

mod leader;
mod legacy;
mod listen_request;
mod listening;
mod modern;
mod retry;
mod tenant_rotation;

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::leader::Leader;
use self::legacy::subscribe_legacy;
use self::listen_request::{ListenError, ListenRequest};
use self::modern::listen_modern;
use self::retry::Backoff;
use super::Changes;
use crate::backend::connection::{Answer, RequestError};
use crate::backend::{Backend, Ready, RunState};
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use crate::protocol::mcp::Era;

const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a changed set of resources is sent: changes often come together.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);

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
    let (changes, queue) = (backend.changes(), backend.queue());
    let mut state = backend.state.subscribe();
    loop {
        let open = state.wait_for(RunState::is_open).await.ok();
        let leader = open.and_then(|state| match &*state {
            RunState::Ready(ready) => {
                let lists = ready.about.lists();
                let lists = backend.recipients.lists_at_start(lists, &ready.tools);
                Some((ready.without_tools(), lists))
            }
            _ => None,
        });
        let Some((ready, lists)) = leader else { return pending().await };
        changes.lists_may_have_changed(lists);
        changes.resources_may_have_changed();
        let is_leader = |state: &RunState| match state {
            RunState::Ready(now) => Arc::ptr_eq(&now.connection, &ready.connection),
            _ => false,
        };
        tokio::select! {
            () = keep_subscribed(Leader { changes, queue, ready: &ready }) => {}
            _ = ready.connection.closed() => {}
            _ = state.wait_for(|state| !is_leader(state)) => {}
        }
    }
}

/// Runs as long as the instance does.
async fn keep_subscribed(leader: Leader<'_>) {
    let Leader { changes, ready, .. } = leader;
    changes.reset_answers();
    let can_subscribe = ready.about.capabilities.resources.as_ref().is_some_and(|it| it.subscribe);
    let resources = async {
        match (ready.dialect.version().era(), can_subscribe) {
            (_, false) => refuse_all(changes).await,
            (Era::Legacy, true) => subscribe_legacy(&leader).await,
            (Era::Modern, true) => listen_modern(&leader).await,
        }
    };
    tokio::join!(resources, listen_to_lists(changes, ready));
}

/// Refuses all watches, because the server has no subscriptions.
async fn refuse_all(changes: &Changes) {
    let mut watched_changed = changes.watched_changed();
    loop {
        watched_changed.borrow_and_update();
        for uri in changes.unanswered().values().flatten() {
            changes.record_answer(
                uri,
                Err(error(METHOD_NOT_FOUND, "this server does not tell when a resource changes")),
            );
        }
        wait_for_change(&mut watched_changed).await;
    }
}

/// Listens to the lists of a modern server. A legacy server reports them unasked.
async fn listen_to_lists(changes: &Changes, ready: &Ready) {
    let filter = list_filter(ready);
    if ready.dialect.version().era() == Era::Legacy || filter == json!({}) {
        return pending().await;
    }
    let mut backoff = Backoff::default();
    loop {
        let began = Instant::now();
        match ListenRequest::open(ready, &filter).await {
            Ok((mut listening, _)) => poll_fn(|context| listening.poll_ended(context)).await,
            // The server will report nothing, so there is nothing to keep up.
            Err(ListenError::Refused(_)) => return pending().await,
            Err(ListenError::Failed) => {}
        }
        // Changes until the next request are missed, so the lists count as changed.
        sleep(backoff.after(began.elapsed())).await;
        ready.connection.note_tools_changed();
        changes.lists_may_have_changed(ready.about.lists());
    }
}

fn list_filter(ready: &Ready) -> Value {
    let mut filter = json!({});
    let capabilities = &ready.about.capabilities;
    for (name, capability) in [
        ("toolsListChanged", &capabilities.tools),
        ("promptsListChanged", &capabilities.prompts),
        ("resourcesListChanged", &capabilities.resources),
    ] {
        if capability.as_ref().is_some_and(|capability| capability.list_changed) {
            filter[name] = json!(true);
        }
    }
    filter
}

fn read(answer: Result<Answer, RequestError>) -> Result<(), ErrorObject> {
    match answer {
        Ok(Answer::Result(_)) => Ok(()),
        Ok(Answer::Error(refused)) => Err(serde_json::from_slice(&refused)
            .unwrap_or_else(|_| error(INTERNAL_ERROR, "the server refused the subscription"))),
        Err(_) => Err(no_answer()),
    }
}

fn no_answer() -> ErrorObject {
    error(INTERNAL_ERROR, "the server did not answer the subscription")
}

fn error(code: i64, message: &str) -> ErrorObject {
    ErrorObject { code, message: message.into(), data: None }
}

async fn wait_for_change(watched_changed: &mut watch::Receiver<u64>) {
    // The sender lives as long as the backend.
    let _ = watched_changed.changed().await;
    sleep(CHANGE_PAUSE).await;
}

#[cfg(test)]
#[path = "tests/many.rs"]
mod many_tests;
#[cfg(test)]
#[path = "tests/rate.rs"]
mod rate_tests;
#[cfg(test)]
#[path = "tests/retry.rs"]
mod retry_tests;
#[cfg(test)]
#[path = "tests/subscriptions.rs"]
mod tests;
