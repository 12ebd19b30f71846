//! Reads to its end what a handler has left of a request's body.
//!
//! A handler may refuse a request before its body is there. hyper then closes an HTTP/1 connection
//! after the response without a word, and the client's next request on the connection fails. So the
//! rest of a short body is awaited before the response goes out. Where the rest is long or does not
//! come, the response says `Connection: close`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::time::timeout;

/// The longest rest that is read.
const REST_MAX: u64 = 64 * 1024;
/// The longest time that the rest may take.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Takes the unread body of a connection's current request. HTTP/1 has one request at a time.
#[derive(Default)]
pub(crate) struct UnreadBody(Mutex<Option<Incoming>>);

impl UnreadBody {
    /// Returns the body for a handler. An HTTP/2 stream ends without its connection, so nothing of
    /// its body is kept.
    pub(crate) fn watch(self: &Arc<Self>, version: Version, body: Incoming) -> RequestBody {
        let keeps_rest = version != Version::HTTP_2 && !body.is_end_stream();
        RequestBody { body: Some(body), rest: keeps_rest.then(|| self.clone()) }
    }

    /// Reads the rest of the body, if a handler has left any. Returns whether the connection can be
    /// used again.
    pub(crate) async fn read_rest(&self) -> bool {
        let Some(body) = self.0.lock().take() else { return true };
        Box::pin(timeout(WAIT_MAX, read_short(body))).await.unwrap_or(false)
    }
}

/// Reads a body to its end; fails if it is long or is cut off.
async fn read_short(mut body: Incoming) -> bool {
    let mut left = REST_MAX;
    while body.size_hint().lower() <= left {
        let Some(frame) = body.frame().await else { return true };
        let Ok(frame) = frame else { return false };
        left = left.saturating_sub(frame.data_ref().map_or(0, |part| part.len() as u64));
    }
    false
}

/// The body of a request. Leaves itself to its connection if it is dropped before its end.
pub(crate) struct RequestBody {
    /// Always there until the drop.
    body: Option<Incoming>,
    rest: Option<Arc<UnreadBody>>,
}

impl RequestBody {
    fn body(&self) -> &Incoming {
        self.body.as_ref().expect("there until the drop")
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(rest) = &self.rest
            && !self.body().is_end_stream()
        {
            *rest.0.lock() = self.body.take();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = self.body.as_mut().expect("there until the drop");
        Pin::new(body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}
