//! Relays the response of another replica to the client.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use futures_util::stream;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cluster::end_to_end;
use crate::gateway::{CallError, Executed};
use crate::http::mcp::rpc::{self, RpcError};
use crate::http::mcp::session::forward_to_owner::owner_exited;
use crate::http::sse;

/// How long a response may be silent: three keep-alives of a stream.
const SILENCE_MAX: Duration = Duration::from_secs(45);

struct RelayedResponse {
    response: reqwest::Response,
    is_stream: bool,
    /// The time by which every event must have begun. A stream that lasts has none.
    until: Option<Instant>,
    /// The request that waits for the response, if any.
    id: Option<Box<RawValue>>,
    /// Ends streams that last.
    closing: CancellationToken,
    progress: SseProgress,
}

/// Relays a response. All its events must have begun at `until`; without `until` it lasts until the
/// gateway closes. An event that has begun may take as long as more of it keeps coming.
pub(crate) fn relay(
    response: reqwest::Response,
    until: Option<Instant>,
    id: Option<&RawValue>,
    closing: CancellationToken,
) -> Response<Body> {
    let (status, headers) = (response.status(), end_to_end(response.headers()));
    let is_stream =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    let (progress, id) = (SseProgress::new(id), id.map(ToOwned::to_owned));
    let relayed = RelayedResponse { response, is_stream, until, id, closing, progress };
    let body = stream::unfold(Some(relayed), |relayed| async move {
        let mut relayed = relayed?;
        match relayed.next().await? {
            Ok(chunk) => Some((Ok(chunk), Some(relayed))),
            Err(error) => Some((relayed.replace_rest(error)?, None)),
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

impl RelayedResponse {
    async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        let silent = Instant::now() + SILENCE_MAX;
        let is_between_events = self.is_stream && self.progress.is_at_boundary;
        let until = self.until.filter(|_| is_between_events);
        tokio::select! {
            biased;
            () = self.closing.cancelled(), if self.until.is_none() => None,
            chunk = self.response.chunk() => {
                let chunk = chunk.map_err(|_| owner_exited()).transpose()?;
                if self.is_stream && let Ok(chunk) = &chunk {
                    self.progress.push(chunk);
                }
                Some(chunk)
            }
            () = sleep_until(until.map_or(silent, |until| until.min(silent))) => {
                Some(Err(CallError::DeadlineExceeded { executed: Executed::Unknown }))
            }
        }
    }

    /// Returns what the client gets instead of the rest: an error for the request that waits for a
    /// response. Where it could not be read as an event, the response is cut off.
    fn replace_rest(&self, error: CallError) -> Option<Result<Bytes, io::Error>> {
        if !self.is_stream || !self.progress.is_at_boundary {
            return Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        // No second response follows the first.
        let id = self.id.as_deref().filter(|_| !self.progress.has_response)?;
        Some(Ok(sse::event(&RpcError::from(error).body(Some(id)))))
    }
}

/// Follows a stream of events: whether it is between two events, and whether the response that the
/// client waits for has passed. Only the beginning of each event is kept.
struct SseProgress {
    /// The beginnings of an event that is the response: with a result, or with an error.
    response_heads: Vec<Vec<u8>>,
    /// The beginning of the current event.
    head: Vec<u8>,
    ends_line: bool,
    /// The stream is between two events.
    is_at_boundary: bool,
    /// The response has passed.
    has_response: bool,
}

impl SseProgress {
    /// Follows a stream that another replica writes, in response to the request with this id.
    fn new(id: Option<&RawValue>) -> Self {
        let response_heads = id.map_or(vec![], |id| vec![result_head(id), error_head(id)]);
        Self {
            response_heads,
            head: vec![],
            ends_line: false,
            is_at_boundary: true,
            has_response: false,
        }
    }

    /// Takes the next bytes of the stream, which may be cut anywhere.
    fn push(&mut self, chunk: &[u8]) {
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.is_at_boundary = self.ends_line && part == b"\n";
            self.ends_line = part.ends_with(b"\n");
            if self.is_at_boundary {
                self.has_response |= self.response_heads.iter().any(|it| self.head.starts_with(it));
                self.head.clear();
            } else {
                let longest = self.response_heads.iter().map(Vec::len).max().unwrap_or_default();
                let room = longest.saturating_sub(self.head.len());
                self.head.extend_from_slice(&part[..part.len().min(room)]);
            }
        }
    }
}

fn result_head(id: &RawValue) -> Vec<u8> {
    let whole = sse::event(&rpc::result(id, ""));
    whole.strip_suffix(b"}\n\n").unwrap_or(&whole).to_vec()
}

fn error_head(id: &RawValue) -> Vec<u8> {
    let whole = sse::event(&RpcError::new(0, "").body(Some(id)));
    let rest = br#"{"code":0,"message":""}}"#.len() + 2;
    whole[..whole.len() - rest].to_vec()
}

#[cfg(test)]
#[path = "tests/relay_response.rs"]
mod tests;
