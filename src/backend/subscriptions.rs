//! Keeps one run of a server subscribed to what is watched here, and to its lists.
//!
//! A legacy server tells its only client unasked when a list changes, and is told of each resource. A modern
//! one tells those who listen, and one request says all that is listened to: when that changes, a new
//! request takes the place of the old one.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::Ready;
use super::changes::Changes;
use super::connection::Failure;
use super::pending::Answer;
use crate::ids::{CallId, TenantId};
use crate::jsonrpc::METHOD_NOT_FOUND;
use crate::jsonrpc::envelope::ErrorObject;
use crate::mcp::{Era, method};

/// How long a server may take to agree to a subscription.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before listening again, when a server ended the subscription.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// A subscription has no deadline of its own; this one is further off than any server lives.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The pause before a change of what is watched is passed on; changes often come together.
const CHANGE_PAUSE: Duration = Duration::from_millis(20);

/// Runs as long as the server does.
pub(super) async fn keep_subscribed(changes: &Changes, ready: &Ready) {
    changes.unsettle();
    let can_subscribe = ready.about.capabilities.resources.as_ref().is_some_and(|it| it.subscribe);
    match (ready.dialect.version().era(), can_subscribe) {
        (Era::Legacy, false) => refuse_all(changes).await,
        (Era::Legacy, true) => keep_legacy(changes, ready).await,
        (Era::Modern, _) => keep_listening(changes, ready, can_subscribe).await,
    }
}

/// The server cannot tell, and whoever asks is told so.
async fn refuse_all(changes: &Changes) {
    let mut moved = changes.moved();
    loop {
        moved.borrow_and_update();
        for uri in changes.unsettled() {
            changes.settle(&uri, Err(unsupported()));
        }
        wait_for_change(&mut moved).await;
    }
}

async fn keep_legacy(changes: &Changes, ready: &Ready) {
    let ask = |method, uri: String| async move {
        let request = |id| ready.dialect.about_resource(id, method, &uri);
        ready.connection.request(Instant::now() + SUBSCRIBE_TIMEOUT, request).await
    };
    let mut moved = changes.moved();
    let mut subscribed = BTreeSet::new();
    loop {
        moved.borrow_and_update();
        let watched = changes.watched();
        for uri in subscribed.difference(&watched).cloned().collect::<Vec<String>>() {
            subscribed.remove(&uri);
            let _ = ask(method::RESOURCES_UNSUBSCRIBE, uri).await;
        }
        for uri in changes.unsettled() {
            let answer = match subscribed.contains(&uri) {
                true => Ok(()),
                false => read(ask(method::RESOURCES_SUBSCRIBE, uri.clone()).await),
            };
            if answer.is_ok() {
                subscribed.insert(uri.clone());
            }
            changes.settle(&uri, answer);
        }
        wait_for_change(&mut moved).await;
    }
}

async fn keep_listening(changes: &Changes, ready: &Ready, can_subscribe: bool) {
    let mut moved = changes.moved();
    let mut listening = None;
    let mut listened_to = None;
    loop {
        moved.borrow_and_update();
        let watched = if can_subscribe { changes.watched() } else { BTreeSet::new() };
        let filter = filter(ready, &watched);
        if listened_to.as_ref() != Some(&filter) {
            // The old request goes when the new one is on its way: nothing is missed between them.
            listening = if filter == json!({}) { None } else { listen(ready, &filter).ok() };
            listened_to = Some(filter);
        }
        for uri in changes.unsettled() {
            changes.settle(&uri, if can_subscribe { Ok(()) } else { Err(unsupported()) });
        }
        let ended = async {
            match &mut listening {
                Some(listening) => listening.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait_for_change(&mut moved) => {}
            answer = ended => {
                listening = None;
                // The server ended it; what happens before the next one is not told. An error means that it
                // will not tell anything: the lists stay as they are.
                if let Ok(Answer::Result(_)) = answer {
                    sleep(LISTEN_AGAIN_AFTER).await;
                    listened_to = None;
                    ready.connection.note_tools_changed();
                    changes.anything_may_have_changed();
                }
            }
        }
    }
}

/// Sends the request; the future is its answer, and cancels it when dropped.
fn listen(
    ready: &Ready,
    filter: &Value,
) -> Result<std::pin::Pin<Box<impl Future<Output = Result<Answer, Failure>> + use<>>>, Failure> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    let connection = &ready.connection;
    let ticket = connection.register(TenantId::gateway(), CallId::new(), deadline, None)?;
    ticket.send(ready.dialect.listen(ticket.id(), filter))?;
    Ok(Box::pin(ticket.answer()))
}

fn filter(ready: &Ready, watched: &BTreeSet<String>) -> Value {
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
    if !watched.is_empty() {
        filter["resourceSubscriptions"] = json!(watched);
    }
    filter
}

fn read(answer: Result<Answer, Failure>) -> Result<(), ErrorObject> {
    let failed = |message: &str| ErrorObject {
        code: crate::jsonrpc::INTERNAL_ERROR,
        message: message.to_owned(),
        data: None,
    };
    match answer {
        Ok(Answer::Result(_)) => Ok(()),
        Ok(Answer::Error(error)) => Err(serde_json::from_slice(&error)
            .unwrap_or_else(|_| failed("the server refused the subscription"))),
        Err(_) => Err(failed("the server did not answer the subscription")),
    }
}

fn unsupported() -> ErrorObject {
    let message = "this server does not tell when a resource changes".to_owned();
    ErrorObject { code: METHOD_NOT_FOUND, message, data: None }
}

async fn wait_for_change(moved: &mut watch::Receiver<u64>) {
    // The other end lives as long as the backend.
    let _ = moved.changed().await;
    sleep(CHANGE_PAUSE).await;
}
