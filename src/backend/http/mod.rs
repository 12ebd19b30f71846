//! A server that has a URL (MCP's Streamable HTTP), in the place of a process and its pipes.
//!
//! One task takes what goes out. Every request is posted by a task of its own ([`call`]), and what comes
//! back goes the same way as the lines of a process ([`super::connection::reader`]), with one difference: the response to
//! a request can answer that request only.
//!
//! - [`client`]: where requests go, and with which of the operator's headers
//! - [`head`]: the headers of the protocol
//! - [`call`]: one request until its answer or its [`refusal`]; [`stream`] reads it, [`sse`] takes events apart
//! - [`doubt`]: whether a server that refuses one request refuses everything
//! - [`notices`]: what a legacy server says unasked
//! - [`mod@greet`]: the handshake

mod call;
mod client;
mod doubt;
mod greet;
mod head;
mod notices;
mod refusal;
pub(super) mod sse;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::{Method, Response};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::client::{Client, SendError};
use self::doubt::Doubt;
use self::head::Head;
use super::connection::{Connection, ConnectionOptions, Outgoing, RequestError};
use crate::config::{Secrets, Upstream};
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::{Era, method, requests};

pub(super) use self::client::SetupError;
pub(super) use self::greet::greet;

/// Notifications and answers to the server's own requests that may be on their way at once; besides, each call can be
/// cancelled once.
const MESSAGES_MAX: usize = 64;
/// How long the server may take to hear that its session is no longer needed.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// What all requests to one server share.
struct Link {
    connection: Arc<Connection>,
    client: Client,
    init_timeout: Duration,
    /// The longest message that is kept.
    message_len_max: usize,
    /// Legacy: what the server calls this connection.
    session: OnceLock<HeaderValue>,
    doubt: Doubt,
}

/// Prepares a connection; nothing is sent yet. The task ends when the connection is closed and the server
/// has been told.
pub(super) fn open(
    upstream: &Upstream,
    secrets: &Secrets,
    options: ConnectionOptions,
) -> Result<(Arc<Connection>, JoinHandle<()>), SetupError> {
    let client = Client::new(upstream, secrets, options.max_in_flight)?;
    let message_len_max = options.line_len_max;
    let (connection, outgoing) = Connection::new(options, true);
    let link = Link {
        connection: connection.clone(),
        client,
        init_timeout: upstream.init_timeout,
        message_len_max,
        session: OnceLock::new(),
        doubt: Doubt::default(),
    };
    let driving = tokio::spawn(Driver::new(link).run(outgoing));
    Ok((connection, driving))
}

/// Takes what goes out, and keeps the tasks that bring it there.
struct Driver {
    link: Arc<Link>,
    calls: JoinSet<u64>,
    /// How each of them is told that its call is no longer wanted.
    cancels: HashMap<u64, CancellationToken>,
    messages: JoinSet<()>,
}

impl Driver {
    fn new(link: Link) -> Self {
        let (calls, messages) = (JoinSet::new(), JoinSet::new());
        Self { link: Arc::new(link), calls, cancels: HashMap::new(), messages }
    }

    async fn run(mut self, mut outgoing: mpsc::Receiver<Outgoing>) {
        let connection = self.link.connection.clone();
        self.messages.spawn(doubt::settle(self.link.clone()));
        loop {
            tokio::select! {
                _ = connection.closed() => break,
                Some(call) = self.calls.join_next() => {
                    call.map(|id| self.cancels.remove(&id)).ok();
                }
                Some(_) = self.messages.join_next() => {}
                Some(next) = outgoing.recv() => self.take(next).await,
            }
        }
        self.calls.shutdown().await;
        self.messages.shutdown().await;
        let _ = timeout(GOODBYE_TIMEOUT, self.link.end_session()).await;
    }

    async fn take(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Request { id, frame, headers } => {
                // The last look before it is sent: callers that left, deadlines that passed in the queue.
                if self.link.connection.in_flight.claim_one(id, tokio::time::Instant::now()) {
                    let cancel = CancellationToken::new();
                    self.cancels.insert(id, cancel.clone());
                    self.calls.spawn(call::run(self.link.clone(), id, frame, headers, cancel));
                }
            }
            Outgoing::Cancel { id, reason } => {
                if let Some(cancel) = self.cancels.get(&id) {
                    cancel.cancel();
                    self.tell(requests::cancelled(id, reason)).await;
                }
            }
            // However much the server asks: it is its own answers that are missing then.
            Outgoing::Message { .. } if self.messages.len() >= MESSAGES_MAX => {}
            Outgoing::Message { frame, .. } => self.tell(frame).await,
        }
    }

    /// Sends what expects no answer. A modern server takes nothing of the kind.
    async fn tell(&mut self, frame: Frame) {
        if self.link.is_modern() {
            return;
        }
        let head = Head::of(&frame);
        let link = self.link.clone();
        if head.method == method::INITIALIZED {
            // The handshake: what follows must not overtake it.
            let connection = link.connection.clone();
            tokio::select! {
                () = link.post_message(head, frame) => {}
                _ = connection.closed() => return,
            }
            self.messages.spawn(notices::listen(link));
        } else {
            self.messages.spawn(async move { link.post_message(head, frame).await });
        }
    }
}

impl Link {
    fn is_modern(&self) -> bool {
        self.connection.version().is_some_and(|version| version.era() == Era::Modern)
    }

    async fn post(&self, headers: &HeaderMap, frame: Frame) -> Result<Response, SendError> {
        self.client.send(&Method::POST, headers, &Bytes::from(frame.into_bytes())).await
    }

    /// Nobody waits for it, so that nobody can be told when it fails.
    async fn post_message(&self, head: Head, frame: Frame) {
        // What has no answer repeats nothing of a caller's that could be too long.
        let Ok(headers) = head.headers(self, &[]) else { return };
        match timeout(self.init_timeout, self.post(&headers, frame)).await {
            Ok(Ok(response)) if response.status().is_success() => {}
            Ok(Ok(response)) => {
                tracing::debug!(status = %response.status(), method = %head.method, "a message was refused");
            }
            Ok(Err(error)) => tracing::debug!(%error, method = %head.method, "a message was lost"),
            Err(_) => tracing::debug!(method = %head.method, "a message was not taken in time"),
        }
    }

    /// Where a stream that was broken off goes on, or the one for what nobody asked.
    async fn get(&self, last_event_id: Option<&str>) -> Result<Response, SendError> {
        let headers = head::of_stream(self, last_event_id);
        self.client.send(&Method::GET, &headers, &Bytes::new()).await
    }

    /// The server has forgotten this session. It has not looked at the request.
    fn session_is_gone(&self) -> RequestError {
        let (reason, detail) = ("its session has ended", "the server has ended the session");
        self.connection.retire(reason, detail.to_owned());
        RequestError::Unreached { reason: reason.into(), detail: detail.to_owned() }
    }

    async fn end_session(&self) {
        if self.session.get().is_some() {
            let headers = head::of_stream(self, None);
            let _ = self.client.send(&Method::DELETE, &headers, &Bytes::new()).await;
        }
    }
}

#[cfg(test)]
mod tests;
