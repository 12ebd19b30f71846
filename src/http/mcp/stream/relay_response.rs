//! The answer of another replica, passed back as it comes.

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
use super::sse_progress::Heard;
use crate::cluster::end_to_end;
use crate::gateway::{CallError, Executed};
use crate::http::mcp::rpc::RpcError;
use crate::http::mcp::session::forward_to_owner::broken_off;

/// How long an answer may be silent: three times as long as a stream that lives is.
const SILENCE_MAX: Duration = Duration::from_secs(45);

/// An answer that has begun.
struct Relayed {
    response: reqwest::Response,
    is_stream: bool,
    /// When its last event must have begun, if it is one that has a last.
    until: Option<Instant>,
    /// The request that it answers, if it does.
    id: Option<Box<RawValue>>,
    /// Cancelled when streams that last must end.
    closing: CancellationToken,
    heard: Heard,
}

/// What comes next of an answer.
enum Next {
    Chunk(Bytes),
    End,
    Broken(CallError),
}

/// Answers with what another replica has answered. `until` is when all of a stream's events must have begun; without it, it
/// lasts until the gateway ends. What has begun may go on for as long as more of it comes.
pub(crate) fn pass_back(
    response: reqwest::Response,
    until: Option<Instant>,
    id: Option<&RawValue>,
    closing: CancellationToken,
) -> Response<Body> {
    let (status, headers) = (response.status(), end_to_end(response.headers()));
    let is_stream =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    let (heard, id) = (Heard::new(id), id.map(ToOwned::to_owned));
    let relayed = Relayed { response, is_stream, until, id, closing, heard };
    let body = stream::unfold(Some(relayed), |relayed| async move {
        let mut relayed = relayed?;
        match relayed.next().await {
            Next::Chunk(chunk) => Some((Ok(chunk), Some(relayed))),
            Next::End => None,
            Next::Broken(error) => Some((relayed.last_word(error)?, None)),
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

impl Relayed {
    async fn next(&mut self) -> Next {
        let silent = Instant::now() + SILENCE_MAX;
        let waits = self.is_stream && self.heard.is_whole;
        let late = self.until.filter(|_| waits).map_or(silent, |until| until.min(silent));
        tokio::select! {
            biased;
            () = self.closing.cancelled(), if self.until.is_none() => Next::End,
            chunk = self.response.chunk() => match chunk {
                Ok(Some(chunk)) => {
                    if self.is_stream {
                        self.heard.hear(&chunk);
                    }
                    Next::Chunk(chunk)
                }
                Ok(None) => Next::End,
                Err(_) => Next::Broken(broken_off()),
            },
            () = sleep_until(late) => {
                Next::Broken(CallError::DeadlineExceeded { executed: Executed::Unknown })
            }
        }
    }

    /// What is said instead of the rest. A client that waits for an answer is told that there will be none, as long as it can
    /// still be told; else it finds its response cut off.
    fn last_word(&self, error: CallError) -> Option<Result<Bytes, io::Error>> {
        if !self.is_stream || !self.heard.is_whole {
            return Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        // One that has its answer gets no second one.
        let id = self.id.as_deref().filter(|_| !self.heard.is_answered)?;
        Some(Ok(sse::event(&RpcError::from(error).body(Some(id)))))
    }
}

#[cfg(test)]
#[path = "tests/relay_response.rs"]
mod tests;
