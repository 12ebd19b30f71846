//! Server-sent events: a response that goes on, one JSON-RPC message per event.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use tokio::time::sleep;

/// A comment is sent after so much silence, so that nobody between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Where the messages of a stream come from.
pub(crate) trait Source: Send + 'static {
    /// The next message, or the end. Giving up the future loses nothing.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// A response that lasts as long as its source. Dropping it (the client has gone) drops the source.
///
/// Messages are taken from the source only as the client reads: what a slow client does not read waits at the source,
/// within the source's bounds. One that does not read at all is cut off with its connection (`http/patience.rs`).
pub(crate) fn respond(source: impl Source) -> Response<Body> {
    let events = stream::unfold(source, |mut source| async {
        let event = tokio::select! {
            biased;
            message = source.next() => event(&message?),
            () = sleep(KEEP_ALIVE) => Bytes::from_static(b":\n\n"),
        };
        Some((Ok::<_, std::convert::Infallible>(event), source))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A stream that has already ended.
pub(crate) fn ended() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let event_stream = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, event_stream);
    response
}

/// One message as one event. Raw line breaks would end it: in JSON they stand between tokens only, where a
/// space means the same.
pub(crate) fn event(message: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(message.len() + 24);
    event.extend_from_slice(b"event: message\ndata: ");
    let start = event.len();
    event.extend_from_slice(message);
    crate::protocol::jsonrpc::raw::blank_line_breaks(&mut event[start..]);
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
