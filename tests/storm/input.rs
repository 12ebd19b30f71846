//! Reads the input of the storm's server.

use std::borrow::Cow;
use std::io::BufRead;
use std::sync::mpsc::SyncSender;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use trunkline::protocol::mcp::{meta, method};

use crate::misbehaviour;

pub enum Event {
    /// `tools/call`.
    Call { id: u64, mark: String, wants_progress: bool },
    /// `subscriptions/listen` of a modern gateway, or `resources/subscribe` of a legacy one, with
    /// the line that accepts it.
    Subscribed { id: u64, uris: Vec<String>, accepted: String },
    /// `notifications/cancelled`.
    Cancelled { id: u64 },
    /// Something simple, and the answer to it.
    Answered(String),
    /// No message.
    Broken,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    request_id: Option<u64>,
    #[serde(borrow)]
    arguments: Option<Arguments<'a>>,
    #[serde(rename = "_meta")]
    meta: Option<Meta>,
    uri: Option<String>,
    notifications: Option<Filter>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Filter {
    #[serde(default)]
    resource_subscriptions: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    progress_token: Option<u64>,
}

#[derive(Deserialize)]
struct Arguments<'a> {
    mark: Option<&'a str>,
}

/// Reads until the gateway closes the pipe.
pub fn read(modern: bool, seed: u64, events: &SyncSender<Event>) {
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    // Half a line is what a gateway leaves that has given this server up.
    while input.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if let Some(event) = take(modern, &line) {
            if let Event::Call { mark, .. } = &event
                && let Some(pause) = misbehaviour::pause(seed, mark)
            {
                // Whoever does not read must not keep the gateway from reading. There is no runtime
                // here to sleep in, and a pause cut short does no harm.
                std::thread::park_timeout(pause);
            }
            if events.send(event).is_err() {
                return;
            }
        }
        line.clear();
    }
}

fn take(modern: bool, line: &[u8]) -> Option<Event> {
    let Ok(message) = serde_json::from_slice::<Message<'_>>(line) else {
        return Some(Event::Broken);
    };
    // What has no method is an answer to a question nobody meant.
    let method = message.method?;
    let params: Option<Params<'_>> =
        message.params.and_then(|params| serde_json::from_str(params.get()).ok());
    let Some(id) = message.id else {
        let id = params.and_then(|params| params.request_id);
        return id
            .filter(|_| method == "notifications/cancelled")
            .map(|id| Event::Cancelled { id });
    };
    if method == "tools/call" {
        return Some(take_call(id, params).unwrap_or(Event::Broken));
    }
    if method == method::LISTEN || method == method::RESOURCES_SUBSCRIBE {
        return Some(take_subscription(modern, id, params).unwrap_or(Event::Broken));
    }
    let outcome = match (&*method, modern) {
        ("server/discover", true) => {
            concat!(
                r#""result":{"supportedVersions":["2026-07-28"],"#,
                r#""capabilities":{"tools":{},"logging":{},"resources":{"subscribe":true}}"#,
                r#","resultType":"complete"}"#
            )
        }
        ("initialize", false) => {
            concat!(
                r#""result":{"protocolVersion":"2025-11-25","#,
                r#""capabilities":{"tools":{"listChanged":true},"logging":{},"#,
                r#""resources":{"subscribe":true}}"#,
                r#","serverInfo":{"name":"storm","version":"1"}}"#
            )
        }
        ("tools/list", _) => {
            concat!(
                r#""result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}"#,
                r#"],"resultType":"complete"}"#
            )
        }
        (method::RESOURCES_UNSUBSCRIBE | method::SET_LOG_LEVEL, false) => r#""result":{}"#,
        _ => r#""error":{"code":-32601,"message":"no such method"}"#,
    };
    Some(Event::Answered(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},{outcome}}}")))
}

fn take_subscription(modern: bool, id: &RawValue, params: Option<Params<'_>>) -> Option<Event> {
    let (id, params) = (id.get().parse::<u64>().ok()?, params?);
    if !modern {
        let accepted = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}");
        return Some(Event::Subscribed { id, uris: vec![params.uri?], accepted });
    }
    let uris = params.notifications?.resource_subscriptions;
    let accepted = json!({"jsonrpc": "2.0", "method": method::ACKNOWLEDGED, "params": {
        "notifications": {"resourceSubscriptions": uris},
        "_meta": {meta::SUBSCRIPTION_ID: id},
    }});
    Some(Event::Subscribed { id, uris, accepted: accepted.to_string() })
}

fn take_call(id: &RawValue, params: Option<Params<'_>>) -> Option<Event> {
    let id = id.get().parse().ok()?;
    let Params { arguments, meta, .. } = params?;
    let mark = arguments?.mark?.to_owned();
    // A caller's token must not get near a server, no more than its id.
    let token = meta.and_then(|meta| meta.progress_token);
    if token.is_some_and(|token| token != id) {
        return None;
    }
    Some(Event::Call { id, mark, wants_progress: token.is_some() })
}
