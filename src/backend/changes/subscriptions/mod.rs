//! Keeps one instance of a server, the subscription leader, subscribed to the watched resources and
//! to its lists, for all instances.
//!
//! A legacy server reports changes of lists unasked, and has one subscription per resource. A
//! modern server reports to those who listen. The filter of a listen request cannot be changed: a
//! new request replaces the old one as soon as the server has acknowledged it. Lists have a request
//! of their own, so that a refused resource cannot silence them.

mod leader;
mod legacy;
mod listen_request;
mod retry;
mod tenant_rotation;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::leader::Leader;
use self::legacy::subscribe_legacy;
use self::listen_request::{ListenError, ListenRequest};
use self::retry::{Backoff, FailedResources};
use self::tenant_rotation::TenantRotation;
use super::Changes;
use crate::backend::connection::{Answer, RequestError};
use crate::backend::{Backend, Ready, RunState};
use crate::common::ids::TenantId;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use crate::protocol::mcp::Era;

const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before a changed set of resources is sent, for every hundred resources. Changes often
/// come together, and each request names all resources.
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
            RunState::Ready(ready) => Some(ready.without_tools()),
            _ => None,
        });
        let Some(ready) = leader else { return pending().await };
        changes.lists_may_have_changed(ready.about.lists());
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
        wait_for_change(&mut watched_changed, 0).await;
    }
}

/// Listens to all resources with one request. If the server refuses it, one of the added resources
/// is the reason. They are then added one by one, tenants taking turns. Each request is a call of a
/// tenant: of one that waits for it, or else of the last one that did.
async fn listen_modern(leader: &Leader<'_>) {
    let Leader { changes, ready, .. } = *leader;
    let mut watched_changed = changes.watched_changed();
    let mut listening: Option<ListenRequest> = None;
    let (mut backoff, mut since) = (Backoff::default(), Instant::now());
    let mut failures = FailedResources::default();
    // The resources in the current request, and those that the server agreed to.
    let (mut asked_for, mut honoured) = (BTreeSet::new(), BTreeSet::new());
    let mut rotation = TenantRotation::default();
    let mut one_by_one = false;
    let mut tenant = TenantId::gateway();
    loop {
        watched_changed.borrow_and_update();
        let wanted = changes.watched();
        if wanted.is_subset(&asked_for) {
            one_by_one = false;
        }
        if wanted.is_empty() {
            listening = None;
            asked_for.clear();
        } else if wanted != asked_for {
            let next = rotation.next(&mut changes.unanswered());
            if let Some((next, _)) = &next {
                rotation.end(next);
                tenant.clone_from(next);
            }
            let slot = leader.slot(&tenant).await;
            // Resources that came meanwhile share the request.
            let now = changes.watched();
            let attempt = match (one_by_one, next) {
                (true, Some((_, uri))) => one_more(&now, &asked_for, uri),
                (true, None) => now.intersection(&asked_for).cloned().collect(),
                (false, _) => now,
            };
            changes.unanswered().keys().for_each(|it| ready.connection.in_flight.note_tenant(it));
            // The old request ends when the new one is acknowledged, so nothing is missed.
            match ListenRequest::open(ready, &json!({"resourceSubscriptions": attempt})).await {
                Ok((new, acknowledged)) => {
                    listening = Some(new);
                    since = Instant::now();
                    failures.end_row();
                    honoured = acknowledged.unwrap_or_else(|| attempt.clone());
                    asked_for = attempt;
                }
                Err(error) => {
                    let added: Vec<_> = attempt.difference(&asked_for).collect();
                    match (&added[..], error) {
                        ([], _) => {}
                        ([guilty], ListenError::Refused(refused)) => {
                            failures.end_row();
                            changes.record_answer(guilty, Err(refused));
                        }
                        ([_], ListenError::Failed) => {
                            let is_down = failures.count(&mut backoff);
                            let new = wanted.difference(&asked_for);
                            for uri in new.filter(|uri| is_down || attempt.contains(*uri)) {
                                changes.record_answer(uri, Err(no_answer()));
                                failures.add(uri);
                            }
                        }
                        _ => {
                            failures.end_row();
                            one_by_one = true;
                        }
                    }
                }
            }
            drop(slot);
        }
        for uri in changes.unanswered().values().flatten().filter(|uri| asked_for.contains(*uri)) {
            let not_honoured = || error(INTERNAL_ERROR, "the server does not watch this resource");
            changes.record_answer(
                uri,
                if honoured.contains(uri) { Ok(()) } else { Err(not_honoured()) },
            );
        }
        if one_by_one {
            continue;
        }
        tokio::select! {
            () = wait_for_change(&mut watched_changed, wanted.len()) => {}
            // Listeners that waited for these got the failure and left. The others had an agreement
            // before, and may have missed updates since.
            failed = failures.due() => {
                for uri in changes.reset_failed(&failed) {
                    changes.resource_updated(uri);
                }
            }
            () = ListenRequest::ended(&mut listening) => {
                sleep(backoff.after(since.elapsed())).await;
                listening = None;
                asked_for.clear();
                changes.reset_answers();
                changes.resources_may_have_changed();
            }
        }
    }
}

/// Returns the resources already listened to that are still wanted, and one more if it is.
fn one_more(
    wanted: &BTreeSet<String>,
    asked_for: &BTreeSet<String>,
    uri: String,
) -> BTreeSet<String> {
    let mut attempt: BTreeSet<_> = wanted.intersection(asked_for).cloned().collect();
    if wanted.contains(&uri) {
        attempt.insert(uri);
    }
    attempt
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
            Ok((listening, _)) => ListenRequest::ended(&mut Some(listening)).await,
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
    ErrorObject { code, message: message.to_owned(), data: None }
}

async fn wait_for_change(watched_changed: &mut watch::Receiver<u64>, watched: usize) {
    // The sender lives as long as the backend.
    let _ = watched_changed.changed().await;
    sleep(CHANGE_PAUSE * (1 + watched as u32 / 100)).await;
}

#[cfg(test)]
#[path = "tests/rate.rs"]
mod rate_tests;
#[cfg(test)]
#[path = "tests/retry.rs"]
mod retry_tests;
#[cfg(test)]
#[path = "tests/subscriptions.rs"]
mod tests;
