//! Keeps one run of a server subscribed to what is watched here, and to its lists.
//!
//! A legacy server tells its only client unasked when a list changes, and is told of each resource. A modern
//! one tells those who listen. What one request listens to cannot be changed: a new request takes the place
//! of the old one as soon as the server has acknowledged it. Lists have a request of their own, so that a
//! resource that the server refuses cannot silence them.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Ready;
use super::changes::Changes;
use super::connection::Failure;
use super::during::{Event, Listener};
use super::pending::Answer;
use crate::ids::{CallId, TenantId};
use crate::jsonrpc::envelope::ErrorObject;
use crate::jsonrpc::{INTERNAL_ERROR, METHOD_NOT_FOUND};
use crate::mcp::{Era, method};

/// How long a server may take to agree to a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Subscriptions that a server is asked for at once.
const ASKED_MAX: usize = 16;
/// The pause before listening again, when a server ended the subscription.
/// It grows each time.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(5);
const LISTEN_AGAIN_MAX: Duration = Duration::from_secs(300);
/// A subscription has no deadline of its own; this one is further off than any server lives.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause before a change of what is watched is passed on, for every hundred resources: changes often
/// come together, and each tells the server of all of them.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);

/// Runs as long as the server does.
pub(super) async fn keep_subscribed(changes: &Changes, ready: &Ready) {
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
        for uri in changes.unsettled() {
            changes.settle(
                &uri,
                Err(error(METHOD_NOT_FOUND, "this server does not tell when a resource changes")),
            );
        }
        wait_for_change(&mut moved, 0).await;
    }
}

/// Asks for many resources at once: one that the server does not answer holds up nobody else's.
async fn keep_legacy(changes: &Changes, ready: &Ready) {
    let ask = |method, uri: String| async move {
        let request = |id| ready.dialect.about_resource(id, method, &uri);
        let answer = ready.connection.request(Instant::now() + SUBSCRIBE_TIMEOUT, request).await;
        (uri, method == method::RESOURCES_SUBSCRIBE, read(answer))
    };
    let mut moved = changes.moved();
    // Whether each is subscribed to, as far as the server has said; `None` while it is asked.
    let mut known: BTreeMap<String, Option<bool>> = BTreeMap::new();
    let mut asked = FuturesUnordered::new();
    loop {
        moved.borrow_and_update();
        let watched = changes.watched();
        let left = known.iter().filter(|(uri, is)| **is == Some(true) && !watched.contains(*uri));
        let left: Vec<String> = left.map(|(uri, _)| uri.clone()).collect();
        for uri in left.into_iter().take(ASKED_MAX.saturating_sub(asked.len())) {
            known.insert(uri.clone(), None);
            asked.push(ask(method::RESOURCES_UNSUBSCRIBE, uri));
        }
        for uri in changes.unsettled() {
            match known.get(&uri) {
                Some(Some(true)) => changes.settle(&uri, Ok(())),
                Some(None) => {}
                Some(Some(false)) | None if asked.len() < ASKED_MAX => {
                    known.insert(uri.clone(), None);
                    asked.push(ask(method::RESOURCES_SUBSCRIBE, uri));
                }
                Some(Some(false)) | None => {}
            }
        }
        tokio::select! {
            Some((uri, is_subscription, answer)) = asked.next() => {
                match is_subscription && answer.is_ok() {
                    true => known.insert(uri.clone(), Some(true)),
                    false => known.remove(&uri),
                };
                if is_subscription {
                    changes.settle(&uri, answer);
                }
            }
            () = wait_for_change(&mut moved, 0) => {}
        }
    }
}

/// One request listens to all resources. If the server refuses it, one of those that were added is to blame.
async fn keep_modern(changes: &Changes, ready: &Ready) {
    let mut moved = changes.moved();
    let mut listening: Option<Listening> = None;
    let mut pause = LISTEN_AGAIN_AFTER;
    // What the request asked for, and what the server agreed to.
    let (mut asked_for, mut honoured) = (BTreeSet::new(), BTreeSet::new());
    loop {
        moved.borrow_and_update();
        let wanted = changes.watched();
        if wanted.is_empty() {
            listening = None;
            asked_for.clear();
        } else if wanted != asked_for {
            // The old request goes when the new one is acknowledged: nothing is missed between them.
            let mut attempts = vec![wanted.clone()];
            while let Some(attempt) = attempts.pop() {
                let filter = json!({"resourceSubscriptions": attempt});
                match Listening::begin(ready, &filter).await {
                    Ok((new, acknowledged)) => {
                        listening = Some(new);
                        honoured = acknowledged.unwrap_or_else(|| attempt.clone());
                        asked_for = attempt;
                    }
                    Err(refused) => {
                        let added: Vec<_> = attempt.difference(&asked_for).cloned().collect();
                        match &added[..] {
                            [guilty] => changes.settle(guilty, Err(refused)),
                            // One of several: each is tried on top of what is listened to already.
                            several => attempts.extend(
                                several
                                    .iter()
                                    .map(|uri| asked_for.iter().chain([uri]).cloned().collect()),
                            ),
                        }
                    }
                }
                for attempt in &mut attempts {
                    attempt.extend(asked_for.iter().cloned());
                }
            }
        }
        for uri in changes.unsettled().iter().filter(|uri| asked_for.contains(*uri)) {
            let not_honoured = || error(INTERNAL_ERROR, "the server does not watch this resource");
            changes.settle(uri, if honoured.contains(uri) { Ok(()) } else { Err(not_honoured()) });
        }
        tokio::select! {
            () = wait_for_change(&mut moved, wanted.len()) => {}
            () = Listening::ended(&mut listening) => {
                sleep(pause).await;
                pause = (pause * 2).min(LISTEN_AGAIN_MAX);
                listening = None;
                asked_for.clear();
                changes.unsettle();
                changes.resources_may_have_changed();
            }
        }
    }
}

/// A legacy server tells of its lists unasked.
async fn listen_to_lists(changes: &Changes, ready: &Ready) {
    let filter = list_filter(ready);
    if ready.dialect.version().era() == Era::Legacy || filter == json!({}) {
        return std::future::pending().await;
    }
    let mut pause = LISTEN_AGAIN_AFTER;
    // A server that refuses will not tell anything: the lists stay as they are.
    while let Ok((listening, _)) = Listening::begin(ready, &filter).await {
        Listening::ended(&mut Some(listening)).await;
        // The server ended it; what happens before the next one is not told.
        sleep(pause).await;
        pause = (pause * 2).min(LISTEN_AGAIN_MAX);
        ready.connection.note_tools_changed();
        changes.lists_may_have_changed(ready.about.lists());
    }
    std::future::pending().await
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

/// A `subscriptions/listen` that the server has accepted. Dropping it cancels it.
struct Listening {
    answer: Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send>>,
}

impl Listening {
    /// Listens; also gives the resources that the server agreed to tell of, if it said.
    async fn begin(
        ready: &Ready,
        filter: &Value,
    ) -> Result<(Self, Option<BTreeSet<String>>), ErrorObject> {
        let failed = |_| error(INTERNAL_ERROR, "the server could not be asked");
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        let connection = &ready.connection;
        let ticket = connection
            .register(TenantId::gateway(), CallId::new(), deadline, None)
            .map_err(failed)?;
        let (listener, mut events) = Listener::new(None);
        ticket.listen(listener);
        ticket.send(ready.dialect.listen(ticket.id(), filter)).map_err(failed)?;
        let mut answer: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(ticket.answer());
        let event = tokio::select! {
            // An answer may follow at once: first what came first.
            biased;
            // One that never acknowledges may tell all the same.
            event = timeout(SUBSCRIBE_TIMEOUT, events.recv()) => event.ok(),
            answer = &mut answer => return Err(refusal(answer)),
        };
        let acknowledged = match event {
            // Nobody is left who could acknowledge: there is an answer.
            Some(None) => return Err(refusal(answer.await)),
            Some(event) => event,
            None => None,
        };
        let resources = acknowledged.and_then(|event| match event {
            Event::Acknowledged(params) => acknowledged_resources(&params),
            _ => None,
        });
        Ok((Self { answer }, resources))
    }

    /// Done when the server has ended it.
    async fn ended(listening: &mut Option<Self>) {
        match listening {
            Some(listening) => drop((&mut listening.answer).await),
            None => std::future::pending().await,
        }
    }
}

fn acknowledged_resources(params: &[u8]) -> Option<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Acknowledged {
        notifications: Notifications,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Notifications {
        resource_subscriptions: Option<BTreeSet<String>>,
    }
    let acknowledged: Acknowledged = serde_json::from_slice(params).ok()?;
    acknowledged.notifications.resource_subscriptions
}

/// What was answered instead of being acknowledged.
fn refusal(answer: Result<Answer, Failure>) -> ErrorObject {
    match read(answer) {
        Ok(()) => error(INTERNAL_ERROR, "the server does not tell of changes"),
        Err(refused) => refused,
    }
}

fn read(answer: Result<Answer, Failure>) -> Result<(), ErrorObject> {
    match answer {
        Ok(Answer::Result(_)) => Ok(()),
        Ok(Answer::Error(refused)) => Err(serde_json::from_slice(&refused)
            .unwrap_or_else(|_| error(INTERNAL_ERROR, "the server refused the subscription"))),
        Err(_) => Err(error(INTERNAL_ERROR, "the server did not answer the subscription")),
    }
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
#[path = "subscriptions_tests.rs"]
mod tests;
