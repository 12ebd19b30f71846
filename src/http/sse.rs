//! Server-sent events: a response that is a stream of messages, one per event.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, Response, header};
use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::time::sleep;

use crate::protocol::jsonrpc::framing::blank_line_breaks;

/// A comment is sent after this much silence, so that proxies do not take the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Yields the messages of a stream.
pub(crate) trait MessageSource: Send + 'static {
    /// Returns the next message, or `None` at the end. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;

    /// Writes a message as an event. Sources may return events already.
    fn event(message: Bytes) -> Bytes {
        event(&message)
    }
}

/// Responds with a stream of the source's messages. When the client disconnects, the source is
/// dropped.
///
/// Messages are taken from the source only as the client reads them. The source bounds what waits
/// for a slow client. The stream of a client that reads nothing is ended (`http/unsent`).
pub(crate) fn respond<S: MessageSource>(source: S) -> Response<Body> {
    let events = stream::unfold(source, |mut source| async {
        let event = tokio::select! {
            biased;
            message = source.next() => S::event(message?),
            () = sleep(KEEP_ALIVE) => Bytes::from_static(b":\n\n"),
        };
        Some((Ok::<_, std::convert::Infallible>(event), source))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

/// Responds with a stream that has no events.
pub(crate) fn respond_empty() -> Response<Body> {
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::empty()).into_response()
}

/// Writes a JSON-RPC message as one event.
pub(crate) fn event(message: &[u8]) -> Bytes {
    named_event("message", &[message])
}

/// Writes the parts of one JSON text as an event. A raw line break would end the event, so each
/// becomes a space: in JSON line breaks stand only between tokens.
pub(crate) fn named_event(name: &str, parts: &[&[u8]]) -> Bytes {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    let mut event = BytesMut::with_capacity(len + name.len() + 24);
    event.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    let start = event.len();
    parts.iter().for_each(|part| event.extend_from_slice(part));
    blank_line_breaks(&mut event[start..]);
    event.extend_from_slice(b"\n\n");
    event.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_event_whatever_is_in_it() {
        assert_eq!(
            event(b"{\"a\":\r1,\n\"b\":\"\\n\"}"),
            "event: message\ndata: {\"a\": 1, \"b\":\"\\n\"}\n\n"
        );
    }
}
