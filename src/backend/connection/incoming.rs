//! One message from a server: an answer to a call, a request to the client, or a notification.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Connection;
use super::call::{Answer, CloseReason, Completion, RequestError};
use super::call_notifications::{CallNotification, Passed};
use crate::backend::changes::mailbox::{List, Notice};
use crate::backend::changes::recipients::ServerRequest;
use crate::backend::changes::update::Update;
use crate::common::offload::LONG;
use crate::protocol::jsonrpc::ID_LEN_MAX;
use crate::protocol::jsonrpc::members::{MemberChange, Members};
use crate::protocol::jsonrpc::{Frame, METHOD_NOT_FOUND, Message, decode};
use crate::protocol::mcp::{Era, LogLevel, extensions, meta, method};

const METHOD_LEN_MAX: usize = 128;

/// The reason to close the connection to a program such as `cat`.
pub(crate) const ECHOES: &str = "it repeats what it is sent, so it is no MCP server";

/// Parts up to this size are copied out of the read buffer; larger ones share it. So a slow caller
/// with a small answer does not keep a large buffer alive.
const COPY_LEN_MAX: usize = 8 * 1024;

/// The answers that a stream may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedAnswers {
    /// Answers to all calls: the server has a single stream.
    Any,
    /// The answer to one call, whose stream this is.
    To(u64),
    /// No answer: the stream is for notifications.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// An answer that was expected on its stream.
    Answer,
    Other,
    /// Not a message.
    Garbage,
}

/// Takes one message; a long one is offloaded.
pub(crate) async fn take_message(
    connection: &Arc<Connection>,
    line: Bytes,
    expected: ExpectedAnswers,
) -> MessageKind {
    if line.len() <= LONG {
        return take_now(connection, &line, expected);
    }
    let (offload, connection) = (connection.offload.clone(), connection.clone());
    offload.run(move || take_now(&connection, &line, expected)).await
}

fn take_now(connection: &Arc<Connection>, line: &Bytes, expected: ExpectedAnswers) -> MessageKind {
    match decode(line) {
        Ok(Message::Response { id, outcome }) => {
            let id = id.get().parse().ok().filter(|id| match expected {
                ExpectedAnswers::Any => true,
                ExpectedAnswers::To(expected) => *id == expected,
                ExpectedAnswers::None => false,
            });
            let Some(id) = id else {
                connection.metrics.unknown_answers.inc();
                tracing::debug!("dropped an answer with an id that is not expected on its stream");
                return MessageKind::Other;
            };
            let answer = match outcome {
                Ok(result) => Answer::Result(detach(line, result.get())),
                Err(error) => Answer::Error(detach(line, error.get())),
            };
            complete(connection, id, Ok(answer));
            MessageKind::Answer
        }
        Ok(Message::Request { id, method, params }) => {
            take_request(connection, line, id, &method, params, expected);
            MessageKind::Other
        }
        // No real method is called so. Copied into another message, the name might add members to
        // it.
        Ok(Message::Notification { method, .. }) if !is_plain(&method) => {
            connection.metrics.garbage_lines.inc();
            MessageKind::Garbage
        }
        Ok(Message::Notification { method, params }) => {
            take_notification(connection, line, &method, params, expected);
            MessageKind::Other
        }
        Err(_) => {
            connection.metrics.garbage_lines.inc();
            tracing::debug!(len = line.len(), "dropped a line that is not a message");
            MessageKind::Garbage
        }
    }
}

/// Completes a call, and counts outcomes that no caller waits for.
pub(super) fn complete(connection: &Connection, id: u64, outcome: Result<Answer, RequestError>) {
    match connection.in_flight.complete(id, outcome) {
        Completion::Delivered => {}
        Completion::Late => connection.metrics.late_answers.inc(),
        Completion::NotInFlight if connection.ids.was_issued(id) => {
            connection.metrics.late_answers.inc();
            connection.in_flight.note_late_answer();
        }
        Completion::NotInFlight => {
            connection.metrics.unknown_answers.inc();
            tracing::debug!("dropped an answer with an id that was never issued");
        }
    }
}

fn is_plain(method: &str) -> bool {
    method.len() <= METHOD_LEN_MAX
        && method.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// Takes a request of the server to its client. On a shared connection it is refused at once, since
/// it does not say which caller it is meant for. Unanswered it would block that caller's call.
fn take_request(
    connection: &Arc<Connection>,
    line: &Bytes,
    id: &RawValue,
    method: &str,
    params: Option<&RawValue>,
    expected: ExpectedAnswers,
) {
    if id.get().len() > ID_LEN_MAX {
        return;
    }
    let is_greeting = [method::DISCOVER, method::INITIALIZE].contains(&method);
    if is_greeting && connection.version().is_none() {
        // No server asks its client so: these are the gateway's own requests.
        return connection.close(&CloseReason::Protocol(ECHOES.into()));
    }
    if method == method::PING {
        return connection.notify(Frame::result(id, &serde_json::Map::new()));
    }
    let request = || ServerRequest {
        connection: Arc::downgrade(connection),
        id: id.to_owned(),
        method: method.to_owned(),
        params: params.map(|params| detach(line, params.get())),
    };
    match connection.client().filter(|_| is_plain(method)) {
        Some(client) => return client.forward_request(request()),
        None if connection.recipients.asks_callers && method != method::ROOTS_LIST => {
            return connection.in_flight.ask(request(), expected);
        }
        None => {}
    }
    connection.metrics.refused_requests.inc();
    let message = "this request to the client is not supported here";
    connection.notify(Frame::error(Some(id), METHOD_NOT_FOUND, message, None));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProgressParams {
    progress_token: u64,
}

/// The params of the acknowledgement of a `subscriptions/listen`.
#[derive(Deserialize)]
struct AcknowledgedParams {
    #[serde(rename = "_meta")]
    meta: AcknowledgedMeta,
}

#[derive(Deserialize)]
struct AcknowledgedMeta {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription_id: u64,
}

#[derive(Deserialize)]
struct UpdatedParams {
    uri: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CancelledParams<'a> {
    #[serde(borrow)]
    request_id: &'a RawValue,
}

#[derive(Deserialize)]
struct LogParams {
    level: String,
}

fn take_notification(
    connection: &Arc<Connection>,
    line: &Bytes,
    method: &str,
    params: Option<&RawValue>,
    expected: ExpectedAnswers,
) {
    let changes = &connection.recipients.changes;
    match method {
        method::PROGRESS => {
            // The token is the id of the request, which callers cannot guess.
            if let Some((ProgressParams { progress_token }, params)) = read(params) {
                let progress = CallNotification::Progress(detach(line, params));
                note(connection, connection.in_flight.notify(progress_token, progress));
            }
        }
        method::ACKNOWLEDGED => {
            if let Some((AcknowledgedParams { meta }, params)) = read(params) {
                let acknowledged = CallNotification::Acknowledged(detach(line, params));
                note(connection, connection.in_flight.notify(meta.subscription_id, acknowledged));
            }
        }
        method::LOG_MESSAGE => take_log(connection, line, params, expected),
        // Others are told when the new list has been fetched.
        method::TOOLS_CHANGED => connection.note_tools_changed(),
        method::PROMPTS_CHANGED => connection.note_list_changed(List::Prompts),
        method::RESOURCES_CHANGED => connection.note_list_changed(List::Resources),
        method::RESOURCE_UPDATED => {
            if let Some((UpdatedParams { uri }, params)) = read(params) {
                let update = Update::read(&uri, params);
                if connection.client().is_none() {
                    changes.resource_updated(&update);
                } else if !changes.own_resource_updated(&update) {
                    note(connection, Passed::Dropped(1));
                }
            }
        }
        method::CANCELLED => {
            if let Some(client) = connection.client()
                && let Some((CancelledParams { request_id }, _)) = read(params)
            {
                client.cancel_request(&Arc::downgrade(connection), request_id);
            }
        }
        _ => match connection.client() {
            Some(client) => {
                let params = params.map(|params| detach(line, params.get()));
                note(connection, client.notify(method, params));
            }
            None => take_notice(connection, method, params),
        },
    }
}

/// Tells listeners of a notification of an extension that the server declares. A shared server does
/// not say whom it is for, so listeners hear only that a list has changed.
fn take_notice(connection: &Connection, method: &str, params: Option<&RawValue>) {
    let Some(declared) = connection.declared.get() else { return };
    let is_declared = extensions::notified(method).is_some_and(|own| declared.notifies(own));
    if is_declared && method == extensions::SKILLS_CHANGED {
        // Only a pinned server's skills are listed with its tools.
        connection.note_tools_changed();
    }
    let is_of_tenant = connection.recipients.is_of_tenant;
    if !is_declared || !is_of_tenant && !extensions::is_of_list(method) {
        return tracing::debug!(%method, "notification from the server");
    }
    let params = params.filter(|_| is_of_tenant).map_or("{}", RawValue::get);
    let (method, params) = (method.to_owned(), without_subscription(params));
    let notice = Notice { method, params, declared: declared.names().clone() };
    connection
        .metrics
        .dropped_notifications
        .inc_by(connection.recipients.changes.notified(&notice));
}

/// Removes the id of the gateway's own subscription.
fn without_subscription(params: &str) -> String {
    let Ok(members) = Members::parse(params) else { return "{}".to_owned() };
    let Some(meta) = members.get("_meta").and_then(|meta| Members::parse(meta.get()).ok()) else {
        return params.to_owned();
    };
    let drop = |name: &str, _| match name {
        meta::SUBSCRIPTION_ID => MemberChange::Drop,
        _ => MemberChange::Keep,
    };
    let meta = meta.rewrite(drop, &[]);
    let change = |name: &str, _| match name {
        "_meta" if meta == "{}" => MemberChange::Drop,
        "_meta" => MemberChange::Replace(meta.as_str().into()),
        _ => MemberChange::Keep,
    };
    members.rewrite(change, &[])
}

/// Counts notifications that were dropped.
fn note(connection: &Connection, passed: Passed) {
    if let Passed::Dropped(count) = passed {
        connection.metrics.dropped_notifications.inc_by(count);
    }
}

/// Passes a log message to the client that has the server to itself, or to the only call that the
/// message can be about. Otherwise only the operator sees it.
fn take_log(
    connection: &Connection,
    line: &Bytes,
    params: Option<&RawValue>,
    expected: ExpectedAnswers,
) {
    let Some((LogParams { level }, params)) = read(params) else { return };
    let Some(level) = LogLevel::parse(&level) else { return };
    let params = detach(line, params);
    let is_modern = connection.version().is_some_and(|version| version.era() == Era::Modern);
    match (connection.client(), expected) {
        (Some(client), _) => note(connection, client.log(level, params)),
        // A modern server sends on the stream of a call only what is about that call.
        (None, ExpectedAnswers::To(id)) if is_modern => {
            note(connection, connection.in_flight.log_of(id, level, params));
        }
        (None, _) => match connection.in_flight.log(level, params) {
            Passed::Unwanted => {
                tracing::debug!("log message of the server that belongs to no caller");
            }
            passed => note(connection, passed),
        },
    }
}

fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Option<(T, &'a str)> {
    let params = params?.get();
    Some((serde_json::from_str(params).ok()?, params))
}

/// Returns a part of a line as bytes that may outlive the read buffer.
fn detach(line: &Bytes, part: &str) -> Bytes {
    if part.len() <= COPY_LEN_MAX {
        Bytes::copy_from_slice(part.as_bytes())
    } else {
        line.slice_ref(part.as_bytes())
    }
}
