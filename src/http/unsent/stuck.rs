//! Ends streams of HTTP/2 whose response is stuck.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use hyper::rt::Executor;
use prometheus::IntCounter;
use tokio::task_local;
use tokio::time::{Instant, Sleep, sleep_until};

use super::progress::ResponseProgress;

task_local! {
    /// The response of the stream that the task serves.
    static RESPONSE: Arc<OnceLock<Arc<ResponseProgress>>>;
}

/// Runs the streams of HTTP/2 connections, each in a task, and ends those that are stuck. hyper
/// does not ask a body for more while the client's window is closed, so a body cannot end itself.
/// Dropping the task resets its stream, and no other.
#[derive(Clone)]
pub(crate) struct StreamExecutor {
    /// Counts streams that were ended.
    pub(crate) ended: IntCounter,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let ended = self.ended.clone();
        tokio::spawn(async move {
            if !is_finished(stream).await {
                ended.inc();
            }
        });
    }
}

/// Lets the task of this stream watch its response.
pub(super) fn watch(response: &Arc<ResponseProgress>) {
    let _ = RESPONSE.try_with(|watched| watched.set(response.clone()));
}

/// Runs a stream; returns false if its response was stuck.
async fn is_finished(stream: impl Future) -> bool {
    let watched = Arc::<OnceLock<_>>::default();
    let mut stream = pin!(RESPONSE.scope(watched.clone(), stream));
    // Made only for a response that cannot be written at once.
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        let stuck_at = || watched.get().and_then(|it: &Arc<ResponseProgress>| it.stuck_at());
        while let Some(at) = stuck_at() {
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if at <= Instant::now() {
                return Poll::Ready(false);
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    })
    .await
}
