//! Reads the body of a response: one message, or a stream of events.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{Instant, timeout};

use super::HttpEndpoint;
use super::sse::{Item, SseDecoder};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind, take_message};
use crate::backend::connection::reader::GarbageCounter;
use crate::common::error_chain::error_chain;

/// Time to read what follows an answer. A drained connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The most memory that is reserved because of a `Content-Length` alone.
const RESERVED_LEN_MAX: usize = 1024 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    Json,
    Events,
    Other,
}

/// Says why the reading of a body stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    Answered,
    EndOfBody,
    ConnectionLost(String),
    TooLarge,
    /// Too much of the body was no message.
    Flood,
}

pub(super) fn kind_of(response: &Response) -> BodyKind {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        BodyKind::Json
    } else if essence.eq_ignore_ascii_case("text/event-stream") {
        BodyKind::Events
    } else {
        BodyKind::Other
    }
}

/// Reads a whole body, up to a limit.
pub(super) async fn read_whole(
    response: &mut Response,
    len_max: usize,
) -> Result<Vec<u8>, BodyEnd> {
    let announced = response.content_length().unwrap_or(0);
    if announced > len_max as u64 {
        return Err(BodyEnd::TooLarge);
    }
    let mut body = Vec::with_capacity((announced as usize).min(RESERVED_LEN_MAX));
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > len_max => return Err(BodyEnd::TooLarge),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => return Err(BodyEnd::ConnectionLost(error_chain(&error.without_url()))),
        }
    }
}

/// Reads events until the answer, if one is expected, or until the end.
pub(super) async fn read_events(
    endpoint: &HttpEndpoint,
    response: &mut Response,
    decoder: &mut SseDecoder,
    answers: ExpectedAnswers,
) -> BodyEnd {
    let mut items = vec![];
    let mut garbage = GarbageCounter::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => decoder.push(&chunk, &mut items),
            Ok(None) => return BodyEnd::EndOfBody,
            Err(error) => return BodyEnd::ConnectionLost(error_chain(&error.without_url())),
        }
        for item in items.drain(..) {
            match item {
                Item::Message(message) => {
                    let len = message.len();
                    match deliver(endpoint, message, answers).await {
                        MessageKind::Answer => return BodyEnd::Answered,
                        MessageKind::Garbage if garbage.is_flood(len, Instant::now()) => {
                            return BodyEnd::Flood;
                        }
                        MessageKind::Garbage | MessageKind::Other => {}
                    }
                }
                Item::TooLarge if answers == ExpectedAnswers::None => {
                    endpoint.connection.metrics.too_long_lines.inc();
                }
                Item::TooLarge => return BodyEnd::TooLarge,
            }
        }
    }
}

/// Delivers one message and returns what it was.
pub(super) async fn deliver(
    endpoint: &HttpEndpoint,
    message: Vec<u8>,
    answers: ExpectedAnswers,
) -> MessageKind {
    endpoint.connection.liveness.note_output();
    take_message(&endpoint.connection, message.into(), answers).await
}

/// Reads the rest of a response, if it arrives soon, so that the connection can be reused.
pub(super) async fn drain(mut response: Response) {
    let _ =
        timeout(DRAIN_TIMEOUT, async { while let Ok(Some(_)) = response.chunk().await {} }).await;
}
