//! Closes connections that keep the gateway waiting.
//!
//! hyper has a limit for the head of a request, but it also counts the time between two requests:
//! it would cut the idle connections that load balancers keep, and it does not start before the
//! first bytes arrive. So the time is kept here. A head must be complete within the limit from its
//! first byte; the first head, from the start of the connection. Between requests the limit is
//! longer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// The longest time without a request. Longer than load balancers keep their connections, so that
/// they close first.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// The timeouts of one connection.
pub(super) struct ConnectionTimeouts {
    began: Instant,
    head_max: Duration,
    /// The [`Phase`] in the lowest two bits; above them its start, in milliseconds since `began`.
    state: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A request's head is arriving.
    Head = 0,
    /// A request is being answered.
    Busy = 1,
    /// Between requests.
    Idle = 2,
    /// HTTP/2: requests have streams of their own, and pings find peers that are gone.
    Streams = 3,
}

impl ConnectionTimeouts {
    pub(super) fn new(head_max: Duration) -> Self {
        Self { began: Instant::now(), head_max, state: AtomicU64::new(0) }
    }

    /// Notes that a request's head is complete.
    pub(super) fn request_begins(&self, version: Version) {
        self.enter(if version == Version::HTTP_2 { Phase::Streams } else { Phase::Busy });
    }

    /// Notes that the response is ready to be written.
    pub(super) fn request_ends(&self) {
        if self.phase().0 == Phase::Busy {
            self.enter(Phase::Idle);
        }
    }

    /// Waits until the connection has used up its time.
    pub(super) async fn expired(&self) {
        loop {
            let (phase, since) = self.phase();
            let now = Instant::now();
            let limit = match phase {
                Phase::Head => since + self.head_max,
                Phase::Idle => since + IDLE_MAX,
                Phase::Busy | Phase::Streams => now + IDLE_MAX,
            };
            if limit <= now {
                return;
            }
            // A head may begin at any moment; wake before its time can be over.
            sleep_until(limit.min(now + self.head_max)).await;
        }
    }

    fn bytes_read(&self) {
        if self.phase().0 == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    /// Restarts the time: a connection that still sends a long response is not idle.
    fn bytes_written(&self) {
        if let (phase @ (Phase::Idle | Phase::Head), _) = self.phase() {
            self.enter(phase);
        }
    }

    fn enter(&self, phase: Phase) {
        let since = match phase {
            Phase::Head | Phase::Idle => self.began.elapsed().as_millis() as u64,
            // These phases have no limit.
            Phase::Busy | Phase::Streams => 0,
        };
        self.state.store(since << 2 | phase as u64, Ordering::Relaxed);
    }

    fn phase(&self) -> (Phase, Instant) {
        let state = self.state.load(Ordering::Relaxed);
        let phase = match state & 3 {
            0 => Phase::Head,
            1 => Phase::Busy,
            2 => Phase::Idle,
            _ => Phase::Streams,
        };
        (phase, self.began + Duration::from_millis(state >> 2))
    }
}

/// A stream that reports its traffic to [`ConnectionTimeouts`].
pub(super) struct TimedStream<T> {
    stream: T,
    timeouts: Arc<ConnectionTimeouts>,
}

impl<T> TimedStream<T> {
    pub(super) fn new(stream: T, timeouts: Arc<ConnectionTimeouts>) -> Self {
        Self { stream, timeouts }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TimedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > filled {
            self.timeouts.bytes_read();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> TimedStream<T> {
    fn note_written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = polled {
            self.timeouts.bytes_written();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for TimedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.note_written(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    const HEAD_MAX: Duration = Duration::from_secs(10);

    fn connection() -> (Arc<ConnectionTimeouts>, TimedStream<DuplexStream>, DuplexStream) {
        let timeouts = Arc::new(ConnectionTimeouts::new(HEAD_MAX));
        let (ours, theirs) = duplex(1024);
        (timeouts.clone(), TimedStream::new(ours, timeouts), theirs)
    }

    async fn runs_out_after(timeouts: &ConnectionTimeouts) -> Duration {
        let began = Instant::now();
        timeout(Duration::from_secs(3600), timeouts.expired()).await.expect("no timeout");
        began.elapsed()
    }

    fn about(duration: Duration, expected: Duration) -> bool {
        duration.abs_diff(expected) < Duration::from_millis(100)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_is_waited_for_from_the_start() {
        let (timeouts, mut stream, mut client) = connection();
        sleep(Duration::from_secs(4)).await;
        client.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        assert!(about(runs_out_after(&timeouts).await, Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_take_its_time_and_so_may_the_next_one_to_come() {
        let (timeouts, mut stream, mut client) = connection();
        timeouts.request_begins(Version::HTTP_11);
        assert!(timeout(10 * IDLE_MAX, timeouts.expired()).await.is_err());
        timeouts.request_ends();
        assert!(timeout(IDLE_MAX / 2, timeouts.expired()).await.is_err());

        client.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        assert!(about(runs_out_after(&timeouts).await, HEAD_MAX), "the next head has no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_ends_and_a_flowing_answer_is_not_idle() {
        let (timeouts, mut stream, _client) = connection();
        timeouts.request_begins(Version::HTTP_11);
        timeouts.request_ends();
        sleep(IDLE_MAX / 2).await;
        stream.write_all(b"more of the answer").await.unwrap();
        assert!(about(runs_out_after(&timeouts).await, IDLE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_left_to_its_pings() {
        let (timeouts, ..) = connection();
        timeouts.request_begins(Version::HTTP_2);
        timeouts.request_ends();
        assert!(timeout(10 * IDLE_MAX, timeouts.expired()).await.is_err());
    }
}
