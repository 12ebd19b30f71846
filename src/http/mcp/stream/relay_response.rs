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

use super::sse;
use super::sse_progress::SseProgress;
use crate::cluster::end_to_end;
use crate::gateway::{CallError, Executed};
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::forward_to_owner::owner_exited;

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

#[cfg(test)]
#[path = "tests/relay_response.rs"]
mod tests;
