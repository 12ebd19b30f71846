//! The transport of 2024-11-05, HTTP with server-sent events, for clients that have no other. It is
//! a bridge to the sessions of Streamable HTTP.
//!
//! ```text
//!   GET /sse       ──▶ a stream whose first event names the address for messages
//!   POST /messages ──▶ 202; the message is answered as one of a legacy session, and every event
//!                      of its answer goes to the stream
//! ```
//!
//! The session ends with the stream. Both belong to this replica.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

use super::legacy::batch::events_of;
use super::stream::stream_quota::StreamPermit;
use super::{HttpRequest, JSON, Scope, answer_message, legacy};
use crate::common::ids::TenantId;
use crate::common::limit_use::LimitUse;
use crate::gateway::CallError;
use crate::http::AppState;
use crate::http::body;
use crate::http::error::HttpError;
use crate::http::headers::{PROTOCOL_VERSION, SESSION_ID};
use crate::http::sse;

/// Messages of one client that are being answered.
const MESSAGES_MAX: usize = 256;
/// Events that wait for a client. Whoever has another one waits.
const EVENTS_MAX: usize = 16;

/// The open streams, by the ids that their clients post messages with.
#[derive(Default)]
pub(crate) struct SseClients(Mutex<HashMap<String, Arc<SseClient>>>);

struct SseClient {
    tenant: TenantId,
    scope: Scope,
    events: mpsc::Sender<Bytes>,
    answering: Arc<Semaphore>,
    /// The id of its session, as `initialize` gave it.
    session: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
pub(crate) struct ClientId {
    id: String,
}

/// Answers `GET /sse`: opens the stream of a client.
pub(crate) async fn open(http: HttpRequest) -> Result<Response<Body>, HttpError> {
    let clients = enabled(&http.app)?;
    let permit = http.app.stream_quota.take(&http.caller.tenant.id)?;
    let (events, waiting) = mpsc::channel(EVENTS_MAX);
    let id = uuid::Uuid::new_v4().simple().to_string();
    let client = Arc::new(SseClient {
        tenant: http.caller.tenant.id.clone(),
        scope: http.scope.clone(),
        events,
        answering: Arc::new(Semaphore::new(MESSAGES_MAX)),
        session: Mutex::default(),
    });
    clients.0.lock().insert(id.clone(), client.clone());
    let address = Some(sse::named_event("endpoint", &[format!("/messages?id={id}").as_bytes()]));
    Ok(sse::respond(ClientStream { http, id, client, address, waiting, _permit: permit }))
}

/// Answers `POST /messages`: takes a message of a client.
pub(crate) async fn post(
    State(app): State<Arc<AppState>>,
    query: Result<Query<ClientId>, QueryRejection>,
    mut http: HttpRequest,
    body: Body,
) -> Result<Response<Body>, HttpError> {
    let clients = enabled(&app)?;
    let Query(ClientId { id }) = query?;
    let client = clients.0.lock().get(&id).cloned();
    let client = client.filter(|client| client.tenant == http.caller.tenant.id);
    let client = client.ok_or_else(|| {
        HttpError::NotFound("stream with this id, or it has ended: open `/sse` again".to_owned())
    })?;
    let permit = client.answering.clone().try_acquire_owned().map_err(|_| {
        let limit = LimitUse::reached("messages_of_stream", MESSAGES_MAX);
        CallError::busy(limit, "too many messages of this stream wait for their answers")
    })?;
    let (limit, deadline) = (app.max_body, http.arrived + body::TIMEOUT);
    let (body, held) = body::read_for(&http.caller, &http.headers, body, limit, deadline).await?;
    http.held = Some(held);
    client.prepare(&mut http, body);
    let mut answering = Box::pin(async move {
        let is_opening = client.session.lock().is_none();
        let request = is_opening.then(|| http.with_body(Bytes::new()));
        let response = answer_message(http).await;
        let session = response.headers().get(&SESSION_ID).cloned();
        if let (Some(request), Some(session)) = (request, session) {
            client.follow_session(request, session);
        }
        client.pass_on(response).await;
        drop(permit);
    });
    // Begun in the order of the messages: a cancel must find its request.
    if poll_immediate(&mut answering).await.is_none() {
        tokio::spawn(answering);
    }
    Ok((StatusCode::ACCEPTED, "Accepted").into_response())
}

fn enabled(app: &AppState) -> Result<&SseClients, HttpError> {
    app.sse_clients.as_ref().ok_or_else(|| {
        HttpError::NotFound(
            "path `/sse` here: the transport of 2024-11-05 is off (`legacy_sse`), use `/mcp`"
                .to_owned(),
        )
    })
}

impl SseClient {
    /// Makes a client's message one of Streamable HTTP, in the client's session.
    fn prepare(&self, http: &mut HttpRequest, body: Bytes) {
        http.scope = self.scope.clone();
        http.method = Method::POST;
        http.body = body;
        let headers = &mut http.headers;
        headers.remove(&PROTOCOL_VERSION);
        headers.remove(&SESSION_ID);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        let both = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, both);
        let session = self.session.lock().clone();
        headers.extend(session.map(|session| (SESSION_ID.clone(), session)));
    }

    /// Passes on what the session's servers say between requests, until the stream has ended.
    fn follow_session(self: &Arc<Self>, mut request: HttpRequest, session: HeaderValue) {
        *self.session.lock() = Some(session);
        self.prepare(&mut request, Bytes::new());
        (request.method, request.held) = (Method::GET, None);
        let client = self.clone();
        tokio::spawn(async move {
            if let Ok(response) = legacy::open_session_stream(request).await {
                client.pass_on(response).await;
            }
        });
    }

    /// Sends the events of a response to the client, as the client reads them.
    async fn pass_on(&self, response: Response<Body>) {
        let mut events = events_of(response).await;
        loop {
            let event = tokio::select! {
                biased;
                () = self.events.closed() => return,
                event = events.next() => event,
            };
            let Some(event) = event else { return };
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }
}

struct ClientStream {
    http: HttpRequest,
    id: String,
    client: Arc<SseClient>,
    /// Sent first: the address for messages.
    address: Option<Bytes>,
    waiting: mpsc::Receiver<Bytes>,
    _permit: StreamPermit,
}

impl sse::MessageSource for ClientStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(address) = self.address.take() {
            return Some(address);
        }
        tokio::select! {
            biased;
            () = self.http.app.closing.cancelled() => None,
            () = self.http.caller.credential.ended() => None,
            event = self.waiting.recv() => event,
        }
    }

    fn event(message: Bytes) -> Bytes {
        message
    }
}

impl Drop for ClientStream {
    /// Ends the session: its client can do nothing more with it.
    fn drop(&mut self) {
        if let Some(clients) = &self.http.app.sse_clients {
            clients.0.lock().remove(&self.id);
        }
        let has_session = self.client.session.lock().is_some();
        if let (true, Ok(runtime)) = (has_session, Handle::try_current()) {
            let mut request = self.http.with_body(Bytes::new());
            self.client.prepare(&mut request, Bytes::new());
            request.method = Method::DELETE;
            runtime.spawn(legacy::delete_session(request));
        }
    }
}
