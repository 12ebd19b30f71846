//! Servers that have a `url` (MCP's Streamable HTTP) instead of a process and its pipes.
//!
//! One task takes the outgoing frames. Each request is posted by a task of its own ([`call`]).
//! Incoming messages are taken by `connection::incoming`, like the lines of a process. There is one
//! difference: the response to a request can answer that request only.
//!
//! - [`client`]: sends requests, with the operator's headers
//! - [`headers`]: the headers of the protocol
//! - [`call`]: one request until its answer or its [`refusal`]; [`stream`] reads the response, or a
//!   legacy server's notifications; [`sse`] decodes events
//! - [`refusal_probe`]: finds out whether a server that refuses one request refuses everything
//! - [`oauth`]: access tokens, for servers that want them
//! - [`mod@handshake`]: the handshake
//! - [`older`]: the transport before Streamable HTTP

mod call;
mod client;
mod handshake;
mod headers;
pub(super) mod oauth;
mod older;
mod refusal;
mod refusal_probe;
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

use self::call::RequestParts;
use self::client::{Client, SendError};
use self::headers::MessageInfo;
use self::oauth::{ConnectionTokens, TokenSource};
use self::refusal_probe::RefusalProbe;
use super::connection::{
    CloseOnDrop, CloseReason, Connection, ConnectionOptions, Outgoing, RequestError,
};
use crate::config::{Secrets, Upstream};
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::{Era, method, requests};

pub(super) use self::client::SetupError;
pub(super) use self::handshake::{greet_over_sse, handshake};
pub(super) use self::older::open as open_over_sse;

/// Notifications, and answers to the server's own requests, that may be posted at once. Cancels do
/// not count: each call has one at most.
const MESSAGES_MAX: usize = 64;
/// Time to tell the server that its session has ended.
const END_SESSION_TIMEOUT: Duration = Duration::from_secs(1);

const PANICKED: &str = "the gateway failed while it talked to it";

/// The state that all requests to one server share.
struct HttpEndpoint {
    connection: Arc<Connection>,
    client: Client,
    init_timeout: Duration,
    message_len_max: usize,
    /// The session id that a legacy server has issued.
    session: OnceLock<HeaderValue>,
    refusal_probe: RefusalProbe,
}

/// Prepares a connection without sending anything. The returned task ends when the connection is
/// closed and the server has been told.
pub(super) fn open(
    upstream: &Upstream,
    secrets: &Secrets,
    tokens: Option<ConnectionTokens>,
    options: ConnectionOptions,
) -> Result<(Arc<Connection>, JoinHandle<()>), SetupError> {
    let client = Client::new(upstream, secrets, tokens, options.max_in_flight)?;
    let message_len_max = options.line_len_max;
    let (connection, outgoing) = Connection::new(options, true);
    let endpoint = HttpEndpoint {
        connection: connection.clone(),
        client,
        init_timeout: upstream.init_timeout,
        message_len_max,
        session: OnceLock::new(),
        refusal_probe: RefusalProbe::default(),
    };
    let driving = tokio::spawn(Driver::new(endpoint).run(outgoing));
    Ok((connection, driving))
}

/// Takes the outgoing frames and owns the tasks that post them.
struct Driver {
    endpoint: Arc<HttpEndpoint>,
    calls: JoinSet<u64>,
    /// Cancels a running call, by its id.
    cancels: HashMap<u64, CancellationToken>,
    messages: JoinSet<()>,
}

impl Driver {
    fn new(endpoint: HttpEndpoint) -> Self {
        let (calls, messages) = (JoinSet::new(), JoinSet::new());
        Self { endpoint: Arc::new(endpoint), calls, cancels: HashMap::new(), messages }
    }

    async fn run(mut self, mut outgoing: mpsc::Receiver<Outgoing>) {
        let connection = self.endpoint.connection.clone();
        let _close = CloseOnDrop::new(&connection, "its calls are not sent any more");
        self.messages.spawn(refusal_probe::run(self.endpoint.clone()));
        loop {
            tokio::select! {
                _ = connection.closed() => break,
                Some(call) = self.calls.join_next() => match call {
                    Ok(id) => drop(self.cancels.remove(&id)),
                    // Its call would wait in vain.
                    Err(_) => connection.close(&CloseReason::Lost(PANICKED.into())),
                },
                Some(message) = self.messages.join_next() => {
                    if message.is_err() {
                        connection.close(&CloseReason::Lost(PANICKED.into()));
                    }
                }
                Some(next) = outgoing.recv() => self.dispatch(next).await,
            }
        }
        self.calls.shutdown().await;
        self.messages.shutdown().await;
        let _ = timeout(END_SESSION_TIMEOUT, self.endpoint.end_session()).await;
    }

    async fn dispatch(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Request { id, frame, headers, caller, .. } => {
                // The last check before the request is sent drops cancelled and expired calls.
                if self.endpoint.connection.in_flight.claim_one(id, tokio::time::Instant::now()) {
                    let cancel = CancellationToken::new();
                    self.cancels.insert(id, cancel.clone());
                    let request = RequestParts { frame, params: headers, caller };
                    self.calls.spawn(call::run(self.endpoint.clone(), id, request, cancel));
                }
            }
            Outgoing::Cancel { id, reason } => {
                if let Some(cancel) = self.cancels.get(&id) {
                    cancel.cancel();
                    self.send_message(requests::cancelled(id, reason)).await;
                }
            }
            // A server that floods the gateway with requests loses only its own answers.
            Outgoing::Message { .. } if self.messages.len() >= MESSAGES_MAX => {}
            Outgoing::Message { frame, .. } => self.send_message(frame).await,
        }
    }

    /// Sends a message that has no answer. A modern server accepts no such messages.
    async fn send_message(&mut self, frame: Frame) {
        if self.endpoint.is_modern() {
            return;
        }
        let info = MessageInfo::of(&frame);
        let endpoint = self.endpoint.clone();
        if info.method == method::INITIALIZED {
            // Part of the handshake: later messages must not overtake it.
            let connection = endpoint.connection.clone();
            tokio::select! {
                () = endpoint.post_message(info, frame) => {}
                _ = connection.closed() => return,
            }
            self.messages.spawn(stream::listen(endpoint));
        } else {
            self.messages.spawn(async move { endpoint.post_message(info, frame).await });
        }
    }
}

impl HttpEndpoint {
    fn is_modern(&self) -> bool {
        self.connection.version().is_some_and(|version| version.era() == Era::Modern)
    }

    async fn post(
        &self,
        headers: &HeaderMap,
        frame: Frame,
        caller: Option<&Arc<TokenSource>>,
    ) -> Result<Response, SendError> {
        let body = Bytes::from(frame.into_bytes());
        self.client.send(&Method::POST, headers, &body, caller).await
    }

    /// Posts a message without an answer. Failures are only logged, because nobody waits for it.
    async fn post_message(&self, info: MessageInfo, frame: Frame) {
        // Such a message repeats no value of a caller, so no header can be too long.
        let Ok(headers) = info.headers(self, &[]) else { return };
        let method = &info.method;
        match timeout(self.init_timeout, self.post(&headers, frame, None)).await {
            Ok(Ok(response)) if response.status().is_success() => {}
            Ok(Ok(response)) => {
                tracing::debug!(status = %response.status(), %method, "a message was refused");
            }
            Ok(Err(error)) => tracing::debug!(%error, %method, "a message could not be sent"),
            Err(_) => tracing::debug!(%method, "a message was not accepted in time"),
        }
    }

    /// Resumes a broken stream, or opens the stream of notifications.
    async fn get(
        &self,
        last_event_id: Option<&str>,
        caller: Option<&Arc<TokenSource>>,
    ) -> Result<Response, SendError> {
        let headers = headers::of_stream(self, last_event_id);
        self.client.send(&Method::GET, &headers, &Bytes::new(), caller).await
    }

    /// Retires the connection, because the server has forgotten the session. Returns the failure of
    /// the request, which was not executed.
    fn retire_session(&self) -> RequestError {
        let (reason, detail) = ("its session has ended", "the server has ended the session");
        self.connection.retire(reason, detail.to_owned());
        RequestError::Unreached { reason: reason.into(), detail: detail.to_owned() }
    }

    async fn end_session(&self) {
        if self.session.get().is_some() {
            let headers = headers::of_stream(self, None);
            let _ = self.client.send(&Method::DELETE, &headers, &Bytes::new(), None).await;
        }
    }
}

#[cfg(test)]
mod tests;
