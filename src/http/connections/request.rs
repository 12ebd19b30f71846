//! Counts a request among the open ones of its connection until its response was taken, and lets it
//! begin in its turn.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::yield_now;

use super::activity::Activity;

/// The memory of a request without its body and its answer: its task, its stream, and its routes.
const REQUEST: usize = 4 * 1024;
/// The memory of a field of its head, without the text.
const FIELD: usize = 128;

/// The requests of one connection that begin before others have their turn. A client may send two
/// hundred at once.
const PER_TURN: u32 = 4;

/// One open request. Dropped when its response was taken, or its caller has left.
pub(crate) struct OpenRequest {
    activity: Arc<Activity>,
    bytes: usize,
    /// The turns of others that come first. `None` once the request has begun.
    turns: Option<u32>,
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
        let turns = Some(activity.request_begins(request.version(), bytes) / PER_TURN);
        Self { activity, bytes, turns, handler_runs: true }
    }

    /// Waits for the request's turn. Of many that have come together on its connection, a few begin
    /// at a time, and requests of other connections in between.
    pub(crate) async fn turn(&mut self) {
        for _ in 0..self.turns.unwrap_or_default() {
            yield_now().await;
        }
        self.turn_ends();
    }

    fn turn_ends(&mut self) {
        if self.turns.take().is_some() {
            self.activity.turn_ends();
        }
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
        self.turn_ends();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn requests_that_come_together_let_others_begin_between_them() {
        let activity = || Arc::new(Activity::new(Instant::now(), Duration::from_secs(1)));
        let (many, one) = (activity(), activity());
        let begun = Arc::new(Mutex::new(vec![]));
        let mut tasks = JoinSet::new();
        let mut request = |activity: &Arc<Activity>, name: &'static str| {
            let mut open = OpenRequest::new(activity.clone(), &Request::new(()));
            let begun = begun.clone();
            tasks.spawn(async move {
                open.turn().await;
                begun.lock().push(name);
            });
        };
        (0..200).for_each(|_| request(&many, "many"));
        request(&one, "one");
        // One that leaves before its turn takes nothing with it.
        drop(OpenRequest::new(many.clone(), &Request::new(())));
        tasks.join_all().await;
        let before_it = begun.lock().iter().take_while(|name| **name == "many").count();
        assert!(before_it <= 8, "{before_it} of 200 requests began before another connection's");
        let turns =
            |activity: &Arc<Activity>| OpenRequest::new(activity.clone(), &Request::new(())).turns;
        assert_eq!([turns(&many), turns(&one)], [Some(0); 2]);
    }
}
