//! Batches, which the version 2025-03-26 has and no other: several messages in one request. Each is
//! answered as if it had come alone; the response is a stream of all their events.

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::BytesMut;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream, SelectAll};
use http_body_util::BodyExt;
use serde_json::value::RawValue;

use super::session_of;
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::{HttpRequest, answer_message};
use crate::http::sse;
use crate::http::unsent::take_held;
use crate::protocol::jsonrpc::framing::{DEPTH_MAX, deeper_than};
use crate::protocol::jsonrpc::{Malformed, Message, decode};
use crate::protocol::mcp::{Era, ProtocolVersion, method};

/// The most messages of a batch.
const MESSAGES_MAX: usize = 32;
/// A message of the greatest depth, within the batch.
const BATCH_DEPTH_MAX: usize = DEPTH_MAX + 3;

pub(crate) fn is_batch(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'[')
}

pub(crate) async fn answer(http: HttpRequest) -> Response<Body> {
    let messages = match messages(&http).await {
        Ok(messages) => messages,
        Err(error) => return error.respond(Era::Legacy, None),
    };
    let needs_answer = |message: &HttpRequest| {
        !matches!(
            decode(&message.body),
            Ok(Message::Notification { .. } | Message::Response { .. })
        )
    };
    let has_answers = messages.iter().any(needs_answer);
    let answers =
        messages.into_iter().map(|message| stream::once(answer_one(message)).flatten().boxed());
    if has_answers {
        return sse::respond(BatchStream(answers.collect()));
    }
    answers.collect::<SelectAll<_>>().for_each(|_| async {}).await;
    StatusCode::ACCEPTED.into_response()
}

/// Takes a batch apart, if its session is of the version that has batches.
async fn messages(http: &HttpRequest) -> Result<Vec<HttpRequest>, RpcError> {
    let refused = |message: &str| RpcError::invalid_request(StatusCode::BAD_REQUEST, message);
    let version = match session_of(http).await {
        Ok(in_use) => Some(in_use.session.version),
        Err(_) => None,
    };
    if version != Some(ProtocolVersion::V2025_03_26) {
        return Err(refused(
            "only sessions of the version 2025-03-26 have batches: send each message by itself",
        ));
    }
    if deeper_than(&http.body, BATCH_DEPTH_MAX) {
        return Err(refused("the batch is nested too deep"));
    }
    let messages: Vec<&RawValue> =
        serde_json::from_slice(&http.body).map_err(|_| RpcError::from(&Malformed::NotJson))?;
    if !(1..=MESSAGES_MAX).contains(&messages.len()) {
        return Err(refused(&format!("a batch has 1 to {MESSAGES_MAX} messages")));
    }
    let part = |message: &&RawValue| http.with_body(http.body.slice_ref(message.get().as_bytes()));
    Ok(messages.iter().map(part).collect())
}

impl HttpRequest {
    /// Returns the same request with another body.
    pub(in crate::http::mcp) fn with_body(&self, body: Bytes) -> Self {
        Self {
            app: self.app.clone(),
            caller: self.caller.clone(),
            scope: self.scope.clone(),
            method: self.method.clone(),
            headers: self.headers.clone(),
            body,
            held: self.held.clone(),
            arrived: self.arrived,
            is_forwarded: self.is_forwarded,
        }
    }
}

/// Answers a message of a batch, with the events of its answer.
async fn answer_one(message: HttpRequest) -> BoxStream<'static, Bytes> {
    let refused = match decode(&message.body) {
        Ok(Message::Request { method, id, .. }) if method == method::INITIALIZE => {
            let error = RpcError::invalid_params("`initialize` cannot be a part of a batch");
            Some(error.body(Some(id)))
        }
        Err(malformed) => Some(RpcError::from(&malformed).body(malformed.id())),
        Ok(_) => None,
    };
    match refused {
        Some(error) => stream::iter([sse::event(&error)]).boxed(),
        None => events_of(answer_message(message).await).await,
    }
}

/// Returns the events of a response, each whole.
pub(in crate::http::mcp) async fn events_of(
    mut response: Response<Body>,
) -> BoxStream<'static, Bytes> {
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|content_type| content_type == "text/event-stream");
    // Counted until it is an event, which is counted when it is written.
    let held = take_held(&mut response);
    let body = response.into_body();
    if !is_stream {
        let message = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let event = (!message.is_empty()).then(|| sse::event(&message));
        drop(held);
        return stream::iter(event).boxed();
    }
    let chunks = body.into_data_stream().filter_map(async |chunk| chunk.ok());
    let whole = chunks.scan(BytesMut::new(), |read, chunk| {
        read.extend_from_slice(&chunk);
        let end = memchr::memmem::rfind(read, b"\n\n").map_or(0, |at| at + 2);
        std::future::ready(Some(read.split_to(end).freeze()))
    });
    whole.filter(|events| std::future::ready(!events.is_empty())).boxed()
}

/// The answers of a batch, as they come.
struct BatchStream(SelectAll<BoxStream<'static, Bytes>>);

impl sse::MessageSource for BatchStream {
    async fn next(&mut self) -> Option<Bytes> {
        self.0.next().await
    }

    fn event(message: Bytes) -> Bytes {
        message
    }
}
