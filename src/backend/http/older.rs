//! HTTP+SSE, the transport of 2024-11-05, for servers that speak no other.
//!
//! One stream of events has everything that the server says. Its first event names the address that
//! takes the messages of the client, each posted by itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response, Url};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::client::{Client, SendError, SetupError};
use super::headers::MessageInfo;
use super::oauth::{ConnectionTokens, TokenSource};
use super::sse::{Item, SseDecoder};
use super::stream::{BodyKind, kind_of};
use super::{MESSAGES_MAX, PANICKED};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind, take_message};
use crate::backend::connection::reader::GarbageCounter;
use crate::backend::connection::{
    CloseOnDrop, CloseReason, Connection, ConnectionOptions, Outgoing, RequestError,
};
use crate::common::error_chain::error_chain;
use crate::config::{Secrets, Upstream};
use crate::protocol::jsonrpc::Frame;
use crate::protocol::mcp::{method, requests};

const STREAM_ENDED: &str = "its stream of events has ended";

/// A server, reached over the older transport.
struct OlderServer {
    connection: Arc<Connection>,
    client: Client,
    init_timeout: Duration,
    message_len_max: usize,
}

/// The stream of events, and the address for messages.
struct Stream {
    response: Response,
    decoder: SseDecoder,
    /// Events that came together with the address.
    first: Vec<Item>,
    address: Url,
}

/// Prepares a connection without waiting for it. The returned task ends when it is closed.
pub(crate) fn open(
    upstream: &Upstream,
    secrets: &Secrets,
    tokens: Option<ConnectionTokens>,
    options: ConnectionOptions,
) -> Result<(Arc<Connection>, JoinHandle<()>), SetupError> {
    let client = Client::new(upstream, secrets, tokens, options.max_in_flight)?;
    let message_len_max = options.line_len_max;
    let (connection, outgoing) = Connection::new(options, false);
    let init_timeout = upstream.init_timeout;
    let server =
        OlderServer { connection: connection.clone(), client, init_timeout, message_len_max };
    Ok((connection, tokio::spawn(Arc::new(server).run(outgoing))))
}

impl OlderServer {
    async fn run(self: Arc<Self>, mut outgoing: mpsc::Receiver<Outgoing>) {
        let connection = self.connection.clone();
        let _close = CloseOnDrop::new(&connection, "its calls are not sent any more");
        let talk = async {
            match self.connect().await {
                Ok(Stream { response, decoder, first, address }) => {
                    let address = Arc::new(address);
                    let reason = tokio::select! {
                        reason = self.read(response, decoder, first) => reason,
                        reason = self.dispatch(outgoing, address) => reason,
                    };
                    connection.close(&reason);
                }
                Err(failure) => self.refuse_all(&mut outgoing, &failure).await,
            }
        };
        tokio::select! {
            () = talk => {}
            _ = connection.closed() => {}
        }
    }

    /// Opens the stream and waits for the address.
    async fn connect(&self) -> Result<Stream, RequestError> {
        let connected = timeout(self.init_timeout, self.open_stream()).await;
        connected.unwrap_or(Err(RequestError::Expired { written: false }))
    }

    async fn open_stream(&self) -> Result<Stream, RequestError> {
        let accept = HeaderValue::from_static("text/event-stream");
        let headers = HeaderMap::from_iter([(ACCEPT, accept)]);
        let response = self.client.send(&Method::GET, &headers, &Bytes::new(), None).await;
        let mut response = response.map_err(failure_of)?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            return Err(RequestError::Http { status, retry_after: None });
        }
        if kind_of(&response) != BodyKind::Events {
            return Err(closed("it answers GET with something else than a stream of events"));
        }
        let (mut decoder, mut items) = (SseDecoder::new(self.message_len_max), vec![]);
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => decoder.push(&chunk, &mut items),
                Ok(None) | Err(_) => return Err(closed(STREAM_ENDED)),
            }
            let Some(item) = items.first() else { continue };
            let Item::Endpoint(address) = item else {
                return Err(closed("its stream does not begin with the event `endpoint`"));
            };
            let address = std::str::from_utf8(address).ok();
            let address = address.and_then(|text| self.client.own_address(text.trim()));
            let address = address.ok_or_else(|| closed("its stream names an address elsewhere"))?;
            let first = items.split_off(1);
            return Ok(Stream { response, decoder, first, address });
        }
    }

    /// Fails all requests, until the owner of the connection closes it.
    async fn refuse_all(&self, outgoing: &mut mpsc::Receiver<Outgoing>, failure: &RequestError) {
        while let Some(next) = outgoing.recv().await {
            if let Outgoing::Request { id, .. } = next {
                self.connection.in_flight.complete(id, Err(failure.clone()));
            }
        }
    }

    /// Reads what the server says, until its stream ends.
    async fn read(
        &self,
        mut response: Response,
        mut decoder: SseDecoder,
        mut items: Vec<Item>,
    ) -> CloseReason {
        let mut garbage = GarbageCounter::new();
        loop {
            for item in items.drain(..) {
                match item {
                    Item::Message(message) => {
                        let (connection, len) = (&self.connection, message.len());
                        let kind =
                            take_message(connection, message.into(), ExpectedAnswers::Any).await;
                        if kind == MessageKind::Garbage && garbage.is_flood(len, Instant::now()) {
                            let reason = "it floods its stream with data that is no message";
                            return CloseReason::Protocol(reason.to_owned());
                        }
                    }
                    // Some call would wait in vain.
                    Item::TooLarge => {
                        self.connection.metrics.too_long_lines.inc();
                        let reason = "it sent a message over the limit (`max_response`)";
                        return CloseReason::Protocol(reason.to_owned());
                    }
                    Item::Endpoint(_) => {}
                }
            }
            match response.chunk().await {
                Ok(Some(chunk)) => decoder.push(&chunk, &mut items),
                Ok(None) => return CloseReason::Lost(STREAM_ENDED.to_owned()),
                Err(error) => {
                    let error = error_chain(&error.without_url());
                    tracing::debug!(%error, "a stream of events was lost");
                    return CloseReason::Lost("the connection to it was lost".to_owned());
                }
            }
            self.connection.liveness.note_output();
        }
    }

    /// Posts the outgoing frames.
    async fn dispatch(
        self: &Arc<Self>,
        mut outgoing: mpsc::Receiver<Outgoing>,
        address: Arc<Url>,
    ) -> CloseReason {
        let (mut calls, mut messages) = (JoinSet::new(), JoinSet::new());
        loop {
            let frame = tokio::select! {
                Some(ended) = calls.join_next() => match ended {
                    Ok(()) => continue,
                    // Its call would wait in vain.
                    Err(_) => return CloseReason::Lost(PANICKED.into()),
                },
                Some(_) = messages.join_next() => continue,
                next = outgoing.recv() => match next {
                    None => return CloseReason::Stopped,
                    Some(Outgoing::Request { id, frame, caller, .. }) => {
                        // The last check before the request is sent drops cancelled and expired
                        // calls.
                        if self.connection.in_flight.claim_one(id, Instant::now()) {
                            let (server, address) = (self.clone(), address.clone());
                            calls.spawn(async move {
                                server.post_call(&address, id, frame, caller.as_ref()).await;
                            });
                        }
                        continue;
                    }
                    Some(Outgoing::Cancel { id, reason }) => requests::cancelled(id, reason),
                    // A server that floods the gateway with requests loses only its own answers.
                    Some(Outgoing::Message { .. }) if messages.len() >= MESSAGES_MAX => continue,
                    Some(Outgoing::Message { frame, .. }) => frame,
                },
            };
            let is_initialized = MessageInfo::of(&frame).method == method::INITIALIZED;
            let (server, at) = (self.clone(), address.clone());
            let post = async move {
                if let Err(error) = server.post(&at, frame, None).await {
                    tracing::debug!(%error, "a message could not be sent");
                }
            };
            // Part of the handshake: later messages must not overtake it.
            if is_initialized {
                post.await;
            } else {
                messages.spawn(post);
            }
        }
    }

    async fn post_call(
        &self,
        address: &Url,
        id: u64,
        frame: Frame,
        caller: Option<&Arc<TokenSource>>,
    ) {
        if let Err(failure) = self.post(address, frame, caller).await {
            if matches!(failure, RequestError::Http { status: 404 | 410, .. }) {
                let detail = "the server does not know its stream of events any more";
                self.connection.retire("its session has ended", detail.to_owned());
            }
            self.connection.in_flight.complete(id, Err(failure));
        }
    }

    /// Posts one frame. Its answer comes with the stream.
    async fn post(
        &self,
        address: &Url,
        frame: Frame,
        caller: Option<&Arc<TokenSource>>,
    ) -> Result<(), RequestError> {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        let body = Bytes::from(frame.into_bytes());
        let posted = self.client.send_to(address.clone(), &Method::POST, &headers, &body, caller);
        let response = match timeout(self.init_timeout, posted).await {
            Ok(response) => response.map_err(failure_of)?,
            Err(_) => {
                let reason = "it did not accept a message in time".to_owned();
                return Err(RequestError::Closed {
                    reason: CloseReason::Lost(reason),
                    written: true,
                });
            }
        };
        match response.status() {
            status if status.is_success() => Ok(()),
            status => {
                let (status, retry_after) = (status.as_u16(), None);
                Err(RequestError::Http { status, retry_after })
            }
        }
    }
}

fn closed(reason: &str) -> RequestError {
    RequestError::Closed { reason: CloseReason::Protocol(reason.to_owned()), written: false }
}

fn failure_of(error: SendError) -> RequestError {
    let detail = error.to_string();
    match error {
        SendError::Broken(_) => {
            let reason = "the connection to it was lost".to_owned();
            RequestError::Closed { reason: CloseReason::Lost(reason), written: true }
        }
        _ => RequestError::Unreached { reason: "it cannot be reached".into(), detail },
    }
}
