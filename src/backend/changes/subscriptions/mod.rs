//! Keeps one run of a server subscribed to what is watched here, and to its lists.
//!
//! A legacy server tells its only client unasked when a list changes, and is told of each resource. A modern
//! one tells those who listen. What one request listens to cannot be changed: a new request takes the place
//! of the old one as soon as the server has acknowledged it. Lists have a request of their own, so that a
//! resource that the server refuses cannot silence them.

mod listening;
mod retry;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use self::listening::{Listening, NotListening};
use self::retry::{Failures, Pauses};
use self::turns::Turns;
use super::Changes;
use crate::backend::Ready;
use crate::backend::connection::{Answer, RequestError};
use crate::common::ids::TenantId;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use crate::protocol::mcp::{Era, method};

/// How long a server may take to agree to a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Questions about resources that a server is asked at once; and of them, those that end a subscription.
const ASKED_MAX: usize = 16;
const LEFT_MAX: usize = 4;
/// The pause before a change of what is watched is passed on, for every hundred resources: changes often
/// come together, and each tells the server of all of them.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);

/// Runs as long as the server does.
pub(crate) async fn keep_subscribed(changes: &Changes, ready: &Ready) {
    changes.unsettle();
    let can_subscribe = ready.about.capabilities.resources.as_ref().is_some_and(|it| it.subscribe);
    let resources = async {
        match (ready.dialect.version().era(), can_subscribe) {
            (_, false) => refuse_all(changes).await,
            (Era::Legacy, true) => keep_legacy(changes, ready).await,
            (Era::Modern, true) => keep_modern(changes, ready).await,
        }
    };
    tokio::join!(resources, listen_to_lists(changes, ready));
}

/// The server cannot tell, and whoever asks is told so.
async fn refuse_all(changes: &Changes) {
    let mut moved = changes.moved();
    loop {
        moved.borrow_and_update();
        for uri in changes.unsettled().values().flatten() {
            changes.settle(
                uri,
                Err(error(METHOD_NOT_FOUND, "this server does not tell when a resource changes")),
            );
        }
        wait_for_change(&mut moved, 0).await;
    }
}

/// Asks for many resources at once: one that the server does not answer holds up nobody else's, and many of one tenant's
/// hold up its own alone.
async fn keep_legacy(changes: &Changes, ready: &Ready) {
    // Without a tenant nobody wants it any more.
    let ask = |uri: String, tenant: Option<TenantId>| async move {
        let method = match &tenant {
            Some(_) => method::RESOURCES_SUBSCRIBE,
            None => method::RESOURCES_UNSUBSCRIBE,
        };
        let request = |id| ready.dialect.about_resource(id, method, &uri);
        let answer = ready.connection.request(Instant::now() + SUBSCRIBE_TIMEOUT, request).await;
        (uri, tenant, read(answer))
    };
    let mut moved = changes.moved();
    // What the server has been asked about.
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    let mut asked = FuturesUnordered::new();
    let mut turns = Turns::default();
    let mut leaving = 0;
    loop {
        moved.borrow_and_update();
        let watched = changes.watched();
        let left = known.iter().filter(|(uri, is)| **is == Known::On && !watched.contains(*uri));
        let left: Vec<String> = left.map(|(uri, _)| uri.clone()).collect();
        for uri in left.into_iter().take(LEFT_MAX - leaving) {
            known.insert(uri.clone(), Known::Asked);
            asked.push(ask(uri, None));
            leaving += 1;
        }
        let mut waiting = changes.unsettled();
        for uris in waiting.values_mut() {
            uris.retain(|uri| match known.get(uri) {
                Some(Known::On) => {
                    changes.settle(uri, Ok(()));
                    false
                }
                Some(Known::Asked) => false,
                None => true,
            });
        }
        while asked.len() < ASKED_MAX
            && let Some((tenant, uri)) = turns.next(&mut waiting)
        {
            known.insert(uri.clone(), Known::Asked);
            asked.push(ask(uri, Some(tenant)));
        }
        tokio::select! {
            Some((uri, tenant, answer)) = asked.next() => {
                match tenant.is_some() && answer.is_ok() {
                    true => known.insert(uri.clone(), Known::On),
                    false => known.remove(&uri),
                };
                match tenant {
                    Some(tenant) => {
                        turns.end(&tenant);
                        changes.settle(&uri, answer);
                    }
                    None => leaving -= 1,
                }
            }
            () = wait_for_change(&mut moved, 0) => {}
        }
    }
}

/// What a legacy server has said of a resource.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Nothing yet.
    Asked,
    /// That it will tell.
    On,
}

/// One request listens to all resources. If the server refuses it, one of those that were added is to blame: they are
/// added one by one then, each tenant's in its turn.
async fn keep_modern(changes: &Changes, ready: &Ready) {
    let mut moved = changes.moved();
    let mut listening: Option<Listening> = None;
    let (mut pauses, mut since) = (Pauses::default(), Instant::now());
    let mut failures = Failures::default();
    // What the request asked for, and what the server agreed to.
    let (mut asked_for, mut honoured) = (BTreeSet::new(), BTreeSet::new());
    let mut turns = Turns::default();
    let mut one_by_one = false;
    loop {
        moved.borrow_and_update();
        let wanted = changes.watched();
        if wanted.is_subset(&asked_for) {
            one_by_one = false;
        }
        if wanted.is_empty() {
            listening = None;
            asked_for.clear();
        } else if wanted != asked_for {
            let attempt = match one_by_one {
                true => one_more(&wanted, &asked_for, changes.unsettled(), &mut turns),
                false => wanted.clone(),
            };
            // The old request goes when the new one is acknowledged: nothing is missed between them.
            match Listening::begin(ready, &json!({"resourceSubscriptions": attempt})).await {
                Ok((new, acknowledged)) => {
                    listening = Some(new);
                    since = Instant::now();
                    failures.end();
                    honoured = acknowledged.unwrap_or_else(|| attempt.clone());
                    asked_for = attempt;
                }
                Err(not_listening) => {
                    let added: Vec<_> = attempt.difference(&asked_for).collect();
                    match (&added[..], not_listening) {
                        ([], _) => {}
                        ([guilty], NotListening::Refused(refused)) => {
                            failures.end();
                            changes.settle(guilty, Err(refused));
                        }
                        ([_], NotListening::Failed) => {
                            let is_down = failures.note(&mut pauses);
                            let new = wanted.difference(&asked_for);
                            for uri in new.filter(|uri| is_down || attempt.contains(*uri)) {
                                changes.settle(uri, Err(unasked()));
                                failures.add(uri);
                            }
                        }
                        _ => {
                            failures.end();
                            one_by_one = true;
                        }
                    }
                }
            }
        }
        for uri in changes.unsettled().values().flatten().filter(|uri| asked_for.contains(*uri)) {
            let not_honoured = || error(INTERNAL_ERROR, "the server does not watch this resource");
            changes.settle(uri, if honoured.contains(uri) { Ok(()) } else { Err(not_honoured()) });
        }
        if one_by_one {
            continue;
        }
        tokio::select! {
            () = wait_for_change(&mut moved, wanted.len()) => {}
            // Whoever was told that it failed is gone. The server had agreed to tell those who are left.
            failed = failures.due() => {
                for uri in changes.unsettle_failed(&failed) {
                    changes.resource_updated(uri);
                }
            }
            () = Listening::ended(&mut listening) => {
                sleep(pauses.after(since.elapsed())).await;
                listening = None;
                asked_for.clear();
                changes.unsettle();
                changes.resources_may_have_changed();
            }
        }
    }
}

/// What is listened to already, as far as it is still wanted, and one resource more.
fn one_more(
    wanted: &BTreeSet<String>,
    asked_for: &BTreeSet<String>,
    mut waiting: BTreeMap<TenantId, BTreeSet<String>>,
    turns: &mut Turns,
) -> BTreeSet<String> {
    let mut attempt: BTreeSet<_> = wanted.intersection(asked_for).cloned().collect();
    if let Some((tenant, uri)) = turns.next(&mut waiting) {
        turns.end(&tenant);
        attempt.insert(uri);
    }
    attempt
}

/// A legacy server tells of its lists unasked.
async fn listen_to_lists(changes: &Changes, ready: &Ready) {
    let filter = list_filter(ready);
    if ready.dialect.version().era() == Era::Legacy || filter == json!({}) {
        return std::future::pending().await;
    }
    let mut pauses = Pauses::default();
    loop {
        let began = Instant::now();
        match Listening::begin(ready, &filter).await {
            Ok((listening, _)) => Listening::ended(&mut Some(listening)).await,
            // It will not tell anything: the lists stay as they are.
            Err(NotListening::Refused(_)) => return std::future::pending().await,
            Err(NotListening::Failed) => {}
        }
        // What happens before the next one is not told.
        sleep(pauses.after(began.elapsed())).await;
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
        Err(_) => Err(unasked()),
    }
}

fn unasked() -> ErrorObject {
    error(INTERNAL_ERROR, "the server did not answer the subscription")
}

fn error(code: i64, message: &str) -> ErrorObject {
    ErrorObject { code, message: message.to_owned(), data: None }
}

async fn wait_for_change(moved: &mut watch::Receiver<u64>, watched: usize) {
    // The other end lives as long as the backend.
    let _ = moved.changed().await;
    sleep(CHANGE_PAUSE * (1 + watched as u32 / 100)).await;
}

#[cfg(test)]
#[path = "tests/retry.rs"]
mod again_tests;
#[cfg(test)]
#[path = "tests/subscriptions.rs"]
mod tests;
