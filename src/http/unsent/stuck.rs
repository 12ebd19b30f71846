//! Ends streams of HTTP/2 whose response is stuck, and those of a connection that is gone.
//!
//! A connection may end with two hundred requests open. Each of them is dropped where the runtime
//! would have polled it: nobody takes its answer. A few at a time, with others' work in between.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use hyper::rt::Executor;
use prometheus::IntCounter;
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::yield_now;
use tokio::task_local;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::progress::ResponseProgress;

/// The streams of one connection that end before others have their turn.
const PER_TURN: u32 = 4;
/// The longest time that a connection counts because of streams that have not ended.
const ENDING_MAX: Duration = Duration::from_secs(5);

task_local! {
    /// The response of the stream that the task serves.
    static RESPONSE: Arc<OnceLock<Arc<ResponseProgress>>>;
}

/// The streams of one HTTP/2 connection.
struct Streams {
    /// Counts streams that were ended because their response was stuck.
    ended: IntCounter,
    is_gone: AtomicBool,
    /// Streams that end now, or wait for their turn to.
    ending: AtomicU32,
    /// Dropped with the last stream.
    _any: Sender<()>,
}

/// Tells the streams of a connection that it is gone, when dropped.
pub(crate) struct EndStreams(Arc<Streams>);

/// Resolves when no stream of a connection is left, and nobody can begin one.
pub(crate) struct StreamsEnded(Receiver<()>);

/// Runs the streams of an HTTP/2 connection, each in a task, and ends those that are stuck. hyper
/// does not ask a body for more while the client's window is closed, so a body cannot end itself.
/// Dropping the task resets its stream, and no other.
#[derive(Clone)]
pub(crate) struct StreamExecutor(Arc<Streams>);

/// The end of a stream's task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Finished,
    Stuck,
    ConnectionGone,
}

impl StreamExecutor {
    pub(crate) fn new(ended: IntCounter) -> (Self, StreamsEnded) {
        let (is_gone, ending) = (AtomicBool::new(false), AtomicU32::new(0));
        let (any, none) = channel();
        let streams = Streams { ended, is_gone, ending, _any: any };
        (Self(Arc::new(streams)), StreamsEnded(none))
    }

    /// Returns a guard that has to be dropped before the connection: h2 wakes all streams then.
    pub(crate) fn end_with_connection(&self) -> EndStreams {
        EndStreams(self.0.clone())
    }
}

impl StreamsEnded {
    /// Waits until then, for a while at most: a stream may be in the middle of long work.
    pub(crate) async fn wait(self) {
        let _ = timeout(ENDING_MAX, self.0).await;
    }
}

impl Drop for EndStreams {
    fn drop(&mut self) {
        self.0.is_gone.store(true, Ordering::Release);
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let streams = self.0.clone();
        tokio::spawn(async move { streams.run(stream).await });
    }
}

impl Streams {
    async fn run(&self, stream: impl Future) {
        if self.run_and_drop(stream).await == StreamEnd::ConnectionGone {
            // The next few are let on after others' tasks.
            yield_now().await;
            self.ending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn run_and_drop(&self, stream: impl Future) -> StreamEnd {
        let mut stream = pin!(stream);
        let end = run_to_end(stream.as_mut(), &self.is_gone).await;
        match end {
            StreamEnd::Finished => {}
            StreamEnd::Stuck => self.ended.inc(),
            StreamEnd::ConnectionGone => {
                let before = self.ending.fetch_add(1, Ordering::Relaxed);
                for _ in 0..before / PER_TURN {
                    yield_now().await;
                }
            }
        }
        end
    }
}

/// Lets the task of this stream watch its response.
pub(super) fn watch(response: &Arc<ResponseProgress>) {
    let _ = RESPONSE.try_with(|watched| watched.set(response.clone()));
}

/// Runs a stream until it is finished, or has to be dropped.
async fn run_to_end(stream: Pin<&mut impl Future>, is_gone: &AtomicBool) -> StreamEnd {
    let watched = Arc::<OnceLock<_>>::default();
    let mut stream = pin!(RESPONSE.scope(watched.clone(), stream));
    // Made only for a response that cannot be written at once.
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|cx| {
        if is_gone.load(Ordering::Acquire) {
            return Poll::Ready(StreamEnd::ConnectionGone);
        }
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(StreamEnd::Finished);
        }
        let stuck_at = || watched.get().and_then(|it: &Arc<ResponseProgress>| it.stuck_at());
        while let Some(at) = stuck_at() {
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if at <= Instant::now() {
                return Poll::Ready(StreamEnd::Stuck);
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    /// Notes its name when it is dropped.
    struct Note(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Drop for Note {
        fn drop(&mut self) {
            self.1.lock().push(self.0);
        }
    }

    #[tokio::test]
    async fn streams_that_end_with_their_connection_are_dropped_and_let_others_run_between_them() {
        let (executor, all_ended) = StreamExecutor::new(IntCounter::new("ended", "ended").unwrap());
        let guard = executor.end_with_connection();
        let (woken, ended) = (Arc::new(Notify::new()), Arc::<Mutex<Vec<_>>>::default());
        for _ in 0..200 {
            let (woken, note) = (woken.clone(), Note("stream", ended.clone()));
            executor.execute(async move {
                woken.notified().await;
                note.1.lock().push("polled");
            });
        }
        yield_now().await;
        drop((guard, executor));
        woken.notify_waiters();
        let other = Note("other", ended.clone());
        tokio::spawn(async move { drop(other) });
        all_ended.0.await.unwrap_err();
        assert_eq!(ended.lock().len(), 201, "a connection counts until its last stream has ended");
        assert!(!ended.lock().contains(&"polled"), "nobody takes its answer");
        let before_it = ended.lock().iter().take_while(|name| **name == "stream").count();
        assert!(before_it <= 8, "{before_it} of 200 streams ended before another task ran");
    }
}
