//! How long a connection may keep the gateway waiting.
//!
//! hyper has a limit for the head of a request, but counts the time between two requests as well: it would
//! cut the idle connections that load balancers like to keep, and it does not begin to count before the
//! first bytes have come. So the time is kept here: a head must be complete within the limit from its first
//! byte (the first one from the start of the connection), and between requests there is more patience.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// How long a connection may be open without a request. Longer than load balancers keep theirs, so that
/// they are the ones to close.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// What one connection is waited for.
pub(super) struct Patience {
    began: Instant,
    head_max: Duration,
    /// A [`Phase`] in the lowest bits, and above them when it began, in milliseconds since `began`.
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
    /// HTTP/2: requests come and go on their own streams, and pings find out who is gone.
    Streams = 3,
}

impl Patience {
    pub(super) fn new(head_max: Duration) -> Self {
        Self { began: Instant::now(), head_max, state: AtomicU64::new(0) }
    }

    /// A request's head is complete.
    pub(super) fn request_begins(&self, version: Version) {
        self.enter(if version == Version::HTTP_2 { Phase::Streams } else { Phase::Busy });
    }

    /// Its answer is ready to be written.
    pub(super) fn request_ends(&self) {
        if self.phase().0 == Phase::Busy {
            self.enter(Phase::Idle);
        }
    }

    /// Done when the connection has used up its time.
    pub(super) async fn runs_out(&self) {
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
            // A head may begin at any moment: it is looked at before its time can be over.
            sleep_until(limit.min(now + self.head_max)).await;
        }
    }

    fn bytes_read(&self) {
        if self.phase().0 == Phase::Idle {
            self.enter(Phase::Head);
        }
    }

    /// A long answer that still flows is not idleness, and the next head has to wait for it.
    fn bytes_written(&self) {
        if let (phase @ (Phase::Idle | Phase::Head), _) = self.phase() {
            self.enter(phase);
        }
    }

    fn enter(&self, phase: Phase) {
        let since = match phase {
            Phase::Head | Phase::Idle => self.began.elapsed().as_millis() as u64,
            // These last as long as they last.
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

/// A stream that tells its connection's [`Patience`] what moves.
pub(super) struct Watched<T> {
    stream: T,
    patience: Arc<Patience>,
}

impl<T> Watched<T> {
    pub(super) fn new(stream: T, patience: Arc<Patience>) -> Self {
        Self { stream, patience }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > filled {
            self.patience.bytes_read();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> Watched<T> {
    fn written(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(1..)) = polled {
            self.patience.bytes_written();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(polled)
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

    fn connection() -> (Arc<Patience>, Watched<DuplexStream>, DuplexStream) {
        let patience = Arc::new(Patience::new(HEAD_MAX));
        let (ours, theirs) = duplex(1024);
        (patience.clone(), Watched::new(ours, patience), theirs)
    }

    async fn runs_out_after(patience: &Patience) -> Duration {
        let began = Instant::now();
        timeout(Duration::from_secs(3600), patience.runs_out()).await.expect("endless patience");
        began.elapsed()
    }

    fn about(duration: Duration, expected: Duration) -> bool {
        duration.abs_diff(expected) < Duration::from_millis(100)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_is_waited_for_from_the_start() {
        let (patience, mut stream, mut client) = connection();
        sleep(Duration::from_secs(4)).await;
        client.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        assert!(about(runs_out_after(&patience).await, Duration::from_secs(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_may_take_its_time_and_so_may_the_next_one_to_come() {
        let (patience, mut stream, mut client) = connection();
        patience.request_begins(Version::HTTP_11);
        assert!(timeout(10 * IDLE_MAX, patience.runs_out()).await.is_err());
        patience.request_ends();
        assert!(timeout(IDLE_MAX / 2, patience.runs_out()).await.is_err());

        client.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        assert!(about(runs_out_after(&patience).await, HEAD_MAX), "the next head has no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_ends_and_a_flowing_answer_is_not_idle() {
        let (patience, mut stream, _client) = connection();
        patience.request_begins(Version::HTTP_11);
        patience.request_ends();
        sleep(IDLE_MAX / 2).await;
        stream.write_all(b"more of the answer").await.unwrap();
        assert!(about(runs_out_after(&patience).await, IDLE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_left_to_its_pings() {
        let (patience, ..) = connection();
        patience.request_begins(Version::HTTP_2);
        patience.request_ends();
        assert!(timeout(10 * IDLE_MAX, patience.runs_out()).await.is_err());
    }
}
