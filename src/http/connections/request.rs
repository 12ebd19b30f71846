//! Counts a request among the open ones of its connection until its response was taken.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::activity::Activity;

/// The memory of a request without its body and its answer: its task, its stream, and its routes.
const REQUEST: usize = 4 * 1024;
/// The memory of a field of its head, without the text.
const FIELD: usize = 128;

/// One open request. Dropped when its response was taken, or its caller has left.
pub(crate) struct OpenRequest {
    activity: Arc<Activity>,
    bytes: usize,
    handler_runs: bool,
}

/// The body of a response; its request is open until it is dropped.
pub(crate) struct OpenBody<B> {
    body: B,
    request: OpenRequest,
}

impl OpenRequest {
    pub(crate) fn new<B>(activity: Arc<Activity>, request: &Request<B>) -> Self {
        let bytes = REQUEST + request.headers().len() * FIELD;
        activity.request_begins(request.version(), bytes);
        Self { activity, bytes, handler_runs: true }
    }

    /// Notes that the handler has answered with this body.
    pub(crate) fn answered<B>(mut self, body: B) -> OpenBody<B> {
        self.handler_ends();
        OpenBody { body, request: self }
    }

    fn handler_ends(&mut self) {
        if std::mem::take(&mut self.handler_runs) {
            self.activity.handler_ends();
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.handler_ends();
        self.activity.response_ends(self.bytes);
    }
}

impl<B: HttpBody + Unpin> HttpBody for OpenBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.request.activity.progress();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
