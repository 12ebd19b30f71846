//! The reader task: reads lines and gives each answer to its call. It waits for nothing but that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::call_notifications::Event;
use super::in_flight::{Answer, Completion, End, Failure};
use super::{Connection, detach};
use crate::backend::changes::audience::Question;
use crate::backend::changes::mailbox::List;
use crate::backend::stdio::process::exited;
use crate::common::offload::LONG;
use crate::protocol::jsonrpc::id_scan::Whose;
use crate::protocol::jsonrpc::{Frame, Line, LineSplitter, METHOD_NOT_FOUND, Message, decode};
use crate::protocol::mcp::{Era, LogLevel, method};

/// An overlong line is read to its end to fail its own call only; one longer than this never ends, as
/// far as anyone can tell.
const SKIP_LEN_MAX: usize = 256 * 1024 * 1024;

/// An id of the server's own that is echoed. A longer one is no id but an attack on our memory.
const ID_LEN_MAX: usize = 1024;
/// The longest name of a method.
const METHOD_LEN_MAX: usize = 128;
/// The end of the output is nearly always the end of the process; it is worth this moment to tell the
/// callers how it ended.
const EXIT_WAIT: Duration = Duration::from_millis(20);

/// Runs until the connection is closed or the server's output ends.
pub(crate) async fn run(
    connection: Arc<Connection>,
    output: impl AsyncRead + Unpin,
    line_len_max: usize,
    exit: Option<watch::Receiver<Option<String>>>,
) {
    let _closing = Closing(connection.clone());
    let read = async {
        match (read_all(&connection, output, line_len_max).await, exit) {
            (End::Exited(reason), Some(exit)) => {
                let exit = timeout(EXIT_WAIT, exited(exit)).await;
                End::Exited(exit.unwrap_or(reason))
            }
            (end, _) => end,
        }
    };
    tokio::select! {
        end = read => connection.close(&end),
        () = connection.token().cancelled() => {}
    }
}

/// Should reading ever fail of itself, nobody waits for answers in vain. Who closes the connection before this says why.
struct Closing(Arc<Connection>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close(&End::Exited("its output is not read any more".into()));
    }
}

async fn read_all(
    connection: &Arc<Connection>,
    mut output: impl AsyncRead + Unpin,
    line_len_max: usize,
) -> End {
    let mut splitter = LineSplitter::new(line_len_max);
    let mut garbage = Garbage::new();
    loop {
        match output.read_buf(splitter.space()).await {
            Ok(0) => return End::Exited("it closed its output".into()),
            Ok(_) => connection.pulse().note_heard(),
            Err(error) => {
                return End::Exited(format!("its output cannot be read: {}", error.kind()));
            }
        }
        while let Some(line) = splitter.next_line() {
            if let Err(end) = take(connection, line, &mut garbage).await {
                return end;
            }
        }
        if splitter.skipped_len() > SKIP_LEN_MAX {
            return End::Protocol("it wrote a line without end".into());
        }
    }
}

async fn take(connection: &Arc<Connection>, line: Line, garbage: &mut Garbage) -> Result<(), End> {
    match line {
        Line::Whole(line) => {
            let len = line.len();
            match take_message(connection, line, Answers::Any).await {
                Taken::Garbage if garbage.floods(len, Instant::now()) => {
                    Err(End::Protocol("it floods its output with what is no message".into()))
                }
                _ => Ok(()),
            }
        }
        Line::TooLong { whose } => take_overlong(connection, whose),
    }
}

/// Which answers are believed, by where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// All: there is one stream for everything.
    Any,
    /// Those to one call: the stream is that call's own.
    To(u64),
    /// None: the stream is for what nobody asked.
    None,
}

/// What a line turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The answer that its stream is there for.
    Answer,
    /// Any other message.
    Other,
    /// No message.
    Garbage,
}

/// Takes one message, a long one aside.
pub(crate) async fn take_message(
    connection: &Arc<Connection>,
    line: Bytes,
    answers: Answers,
) -> Taken {
    if line.len() <= LONG {
        return take_now(connection, &line, answers);
    }
    let (offload, connection) = (connection.offload.clone(), connection.clone());
    offload.run(move || take_now(&connection, &line, answers)).await
}

fn take_now(connection: &Arc<Connection>, line: &Bytes, answers: Answers) -> Taken {
    match decode(line) {
        Ok(Message::Response { id, outcome }) => {
            let expected = match answers {
                Answers::Any => true,
                Answers::To(expected) => id.get().parse() == Ok(expected),
                Answers::None => false,
            };
            if !expected {
                connection.metrics().unknown_answers.inc();
                tracing::debug!("dropped an answer that came where it does not belong");
                return Taken::Other;
            }
            let answer = match outcome {
                Ok(result) => Answer::Result(detach(line, result.get())),
                Err(error) => Answer::Error(detach(line, error.get())),
            };
            complete(connection, id, Ok(answer));
            return Taken::Answer;
        }
        // Nobody has such methods; written into another message, one could pass for more than a name.
        Ok(Message::Notification { method, .. }) if !is_plain(&method) => {
            connection.metrics().garbage_lines.inc();
            return Taken::Garbage;
        }
        Ok(Message::Request { id, method, params }) => {
            take_request(connection, line, id, &method, params);
        }
        Ok(Message::Notification { method, params }) => {
            take_notification(connection, line, &method, params, answers);
        }
        Err(_) => {
            connection.metrics().garbage_lines.inc();
            tracing::debug!(len = line.len(), "dropped a line that is no message");
            return Taken::Garbage;
        }
    }
    Taken::Other
}

/// Lines that are no messages. A few are common: something prints where it should not. A flood of them is not.
pub(crate) struct Garbage {
    since: Instant,
    lines: usize,
    bytes: usize,
}

/// So much of it in such a time is a flood.
const GARBAGE_LINES_MAX: usize = 10_000;
const GARBAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
const GARBAGE_WITHIN: Duration = Duration::from_secs(10);

impl Garbage {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), lines: 0, bytes: 0 }
    }

    /// Counts one more, and tells whether it is a flood now.
    pub(crate) fn floods(&mut self, len: usize, now: Instant) -> bool {
        if now.duration_since(self.since) >= GARBAGE_WITHIN {
            *self = Self { since: now, lines: 0, bytes: 0 };
        }
        self.lines += 1;
        self.bytes += len;
        self.lines > GARBAGE_LINES_MAX || self.bytes > GARBAGE_BYTES_MAX
    }
}

/// A line too long to keep fails its own call. If it cannot be told whose it was, some call would wait
/// in vain: the connection is given up instead.
fn take_overlong(connection: &Connection, whose: Whose) -> Result<(), End> {
    connection.metrics().too_long_lines.inc();
    match whose {
        Whose::AnswerTo(id) => {
            count(connection, id, connection.pending().complete(id, Err(Failure::TooLarge)));
            Ok(())
        }
        Whose::NotAnAnswer => Ok(()),
        Whose::Unknown => {
            Err(End::Protocol("it wrote an answer that is too large, without a readable id".into()))
        }
    }
}

fn complete(connection: &Connection, id: &RawValue, outcome: Result<Answer, Failure>) {
    match id.get().parse() {
        Ok(id) => count(connection, id, connection.pending().complete(id, outcome)),
        Err(_) => connection.metrics().unknown_answers.inc(),
    }
}

fn count(connection: &Connection, id: u64, completion: Completion) {
    match completion {
        Completion::Delivered => {}
        Completion::Late => connection.metrics().late_answers.inc(),
        Completion::NoSlot if connection.ids().was_issued(id) => {
            connection.metrics().late_answers.inc();
            connection.pending().answered_late();
        }
        Completion::NoSlot => {
            connection.metrics().unknown_answers.inc();
            tracing::debug!("dropped an answer with an id that was never issued");
        }
    }
}

fn is_plain(method: &str) -> bool {
    method.len() <= METHOD_LEN_MAX
        && method.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\')
}

/// A question of the server's. Where the connection is shared it cannot be brought to the caller it is
/// meant for: it is refused at once, since an unanswered one would hold up the call behind it.
fn take_request(
    connection: &Arc<Connection>,
    line: &Bytes,
    id: &RawValue,
    method: &str,
    params: Option<&RawValue>,
) {
    if id.get().len() > ID_LEN_MAX {
        return;
    }
    if method == method::PING {
        return connection.notify(Frame::result(id, &serde_json::Map::new()));
    }
    if let Some(client) = connection.client()
        && is_plain(method)
    {
        return client.ask(Question {
            connection: Arc::downgrade(connection),
            id: id.to_owned(),
            method: method.to_owned(),
            params: params.map(|params| detach(line, params.get())),
        });
    }
    connection.metrics().refused_requests.inc();
    let message = "this request to the client is not supported here";
    connection.notify(Frame::error(Some(id), METHOD_NOT_FOUND, message, None));
}

fn take_notification(
    connection: &Arc<Connection>,
    line: &Bytes,
    method: &str,
    params: Option<&RawValue>,
    answers: Answers,
) {
    let changes = connection.changes();
    match method {
        method::PROGRESS => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Progress {
                progress_token: u64,
            }
            // The token is the id of the request: nobody else's can be guessed.
            if let Some((Progress { progress_token }, params)) = read(params) {
                connection.pending().hear(progress_token, Event::Progress(detach(line, params)));
            }
        }
        method::ACKNOWLEDGED => {
            if let Some((Acknowledged { meta }, params)) = read(params) {
                let event = Event::Acknowledged(detach(line, params));
                connection.pending().hear(meta.subscription_id, event);
            }
        }
        method::LOG_MESSAGE => take_log(connection, line, params, answers),
        // Told to others when the new list is here.
        method::TOOLS_CHANGED => connection.note_tools_changed(),
        method::PROMPTS_CHANGED => changes.list_changed(List::Prompts),
        method::RESOURCES_CHANGED => changes.list_changed(List::Resources),
        method::RESOURCE_UPDATED => {
            #[derive(Deserialize)]
            struct Updated {
                uri: String,
            }
            if let Some((Updated { uri }, _)) = read(params) {
                changes.resource_updated(&uri);
            }
        }
        method::CANCELLED => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Cancelled<'a> {
                #[serde(borrow)]
                request_id: &'a RawValue,
            }
            if let Some(client) = connection.client()
                && let Some((Cancelled { request_id }, _)) = read(params)
            {
                client.withdraw(&Arc::downgrade(connection), request_id);
            }
        }
        _ => match connection.client() {
            Some(client) => client.tell(method, params.map(|params| detach(line, params.get()))),
            None => tracing::debug!(%method, "notification from the server"),
        },
    }
}

/// Which `subscriptions/listen` is acknowledged.
#[derive(Deserialize)]
struct Acknowledged {
    #[serde(rename = "_meta")]
    meta: AcknowledgedMeta,
}

#[derive(Deserialize)]
struct AcknowledgedMeta {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId")]
    subscription_id: u64,
}

/// A log line belongs to whoever has the server to itself, or to the only call it can be about; otherwise
/// it is the operator's alone.
fn take_log(connection: &Connection, line: &Bytes, params: Option<&RawValue>, answers: Answers) {
    #[derive(Deserialize)]
    struct Log {
        level: String,
    }
    let Some((Log { level }, params)) = read(params) else { return };
    let Some(level) = LogLevel::parse(&level) else { return };
    let params = detach(line, params);
    let is_modern = connection.version().is_some_and(|version| version.era() == Era::Modern);
    match (connection.client(), answers) {
        (Some(client), _) => client.log(level, params),
        // Modern servers say nothing there but what the call is about.
        (None, Answers::To(id)) if is_modern => {
            connection.pending().log_of(id, level, params);
        }
        (None, _) if connection.pending().log(level, params) => {}
        (None, _) => tracing::debug!("a log line of the server's that is nobody's"),
    }
}

fn read<'a, T: Deserialize<'a>>(params: Option<&'a RawValue>) -> Option<(T, &'a str)> {
    let params = params?.get();
    Some((serde_json::from_str(params).ok()?, params))
}

#[cfg(test)]
#[path = "tests/reader.rs"]
mod tests;
