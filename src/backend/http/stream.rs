//! Reads what a server answers: one message, or a stream of events.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{Instant, timeout};

use super::Link;
use super::client::causes;
use super::sse::{Item, SseDecoder};
use crate::backend::connection::incoming::{ExpectedAnswers, MessageKind, take_message};
use crate::backend::connection::reader::GarbageCounter;

/// What may follow an answer is read for this long: a connection on which nothing is left can be used again.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// No more memory is set aside on the mere word of a server.
const RESERVED_LEN_MAX: usize = 1024 * 1024;

/// What a body is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Events,
    Other,
}

/// Why reading has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The answer has come.
    Answered,
    /// The body is over.
    Over,
    /// The connection was lost.
    Broken(String),
    /// Something was over the limit.
    TooLarge,
    /// There was no end of what is no message.
    Flood,
}

pub(super) fn kind_of(response: &Response) -> Kind {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Kind::Json
    } else if essence.eq_ignore_ascii_case("text/event-stream") {
        Kind::Events
    } else {
        Kind::Other
    }
}

/// A body that is kept whole, up to a limit.
pub(super) async fn read_whole(response: &mut Response, len_max: usize) -> Result<Vec<u8>, Ended> {
    let announced = response.content_length().unwrap_or(0);
    if announced > len_max as u64 {
        return Err(Ended::TooLarge);
    }
    let mut body = Vec::with_capacity((announced as usize).min(RESERVED_LEN_MAX));
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > len_max => return Err(Ended::TooLarge),
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            Err(error) => return Err(Ended::Broken(causes(&error.without_url()))),
        }
    }
}

/// Takes events until the answer, if one is expected, or the end.
pub(super) async fn read_events(
    link: &Link,
    response: &mut Response,
    decoder: &mut SseDecoder,
    answers: ExpectedAnswers,
) -> Ended {
    let mut items = vec![];
    let mut garbage = GarbageCounter::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => decoder.push(&chunk, &mut items),
            Ok(None) => return Ended::Over,
            Err(error) => return Ended::Broken(causes(&error.without_url())),
        }
        for item in items.drain(..) {
            match item {
                Item::Message(message) => {
                    let len = message.len();
                    match take(link, message, answers).await {
                        MessageKind::Answer => return Ended::Answered,
                        MessageKind::Garbage if garbage.is_flood(len, Instant::now()) => {
                            return Ended::Flood;
                        }
                        MessageKind::Garbage | MessageKind::Other => {}
                    }
                }
                Item::TooLarge if answers == ExpectedAnswers::None => {
                    link.connection.metrics.too_long_lines.inc();
                }
                Item::TooLarge => return Ended::TooLarge,
            }
        }
    }
}

/// Takes one message. Tells what it was.
pub(super) async fn take(link: &Link, message: Vec<u8>, answers: ExpectedAnswers) -> MessageKind {
    link.connection.liveness.note_output();
    take_message(&link.connection, message.into(), answers).await
}

/// Leaves the connection as the next request needs it, if that is a matter of moments.
pub(super) async fn drain(mut response: Response) {
    let _ =
        timeout(DRAIN_TIMEOUT, async { while let Ok(Some(_)) = response.chunk().await {} }).await;
}
