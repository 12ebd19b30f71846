//! Reads the body of a response: one message, or a stream of events. Also listens to the stream of
//! a legacy server's notifications.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, StatusCode};
use tokio::time::{Instant, sleep, timeout};

use super::HttpEndpoint;
use super::sse::{Item, SseDecoder};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind, take_message};
use crate::backend::connection::reader::GarbageCounter;
use crate::common::error_chain::error_chain;

/// Time to read what follows an answer. A drained connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The most memory that is reserved because of a `Content-Length` alone.
const RESERVED_LEN_MAX: usize = 1024 * 1024;

/// The pause before the stream is opened again. It doubles after each stream that ended early.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// A stream that lasted this long resets the pause.
const USEFUL_AFTER: Duration = Duration::from_secs(5);

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
                Item::Endpoint(_) => {}
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

/// Listens to the notifications of a legacy server that belong to no request, until the server says
/// that it has no such stream.
pub(super) async fn listen(endpoint: Arc<HttpEndpoint>) {
    let mut decoder = SseDecoder::new(endpoint.message_len_max);
    let mut pause = RETRY_PAUSE;
    let mut is_first = true;
    loop {
        let began = Instant::now();
        match endpoint.get(decoder.last_id(), None).await {
            Ok(mut response) if response.status().is_success() => {
                if kind_of(&response) != BodyKind::Events {
                    return;
                }
                if !is_first {
                    // The server may have dropped notifications meanwhile, whatever it replays now.
                    endpoint.connection.note_missed_changes();
                }
                read_events(&endpoint, &mut response, &mut decoder, ExpectedAnswers::None).await;
                decoder.restart();
            }
            // Most often 405: no such stream. If the session has ended, the next call finds out.
            Ok(response) if is_final(response.status()) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "the stream of notifications could not be opened")
            }
        }
        is_first = false;
        pause = if began.elapsed() >= USEFUL_AFTER { RETRY_PAUSE } else { pause };
        sleep(pause.max(decoder.retry().unwrap_or_default())).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// Returns whether retrying is of no use. A busy server may accept later, and so may one that
/// allows one stream and has not noticed yet that the previous one was cut (409).
fn is_final(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status.as_u16(), 408 | 409 | 425 | 429)
}
