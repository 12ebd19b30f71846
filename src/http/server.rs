//! Accepts connections, serves them, and closes those that keep the gateway waiting.
//!
//! `axum::serve` would be shorter, but has no limit for the time that a client takes to send its
//! request line and headers: half-sent requests would stay open for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Version;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::origin::Routes;
use super::unsent::{ConnectionProgress, ExpectedResponse, StreamExecutor};

/// The most connections of one listener, where there are descriptors enough.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The interval of HTTP/2 pings; a peer that does not answer is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest time without a request. Longer than load balancers keep their connections, so that
/// they close first.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// The longest head of a request, and the most that HTTP/1 reads at once. So a half-sent head holds
/// at most 16 KiB, and those of [`CONNECTIONS_MAX`] connections 256 MiB. HTTP/2 keeps up to six
/// frames of 16 KiB of a head that has no end.
const HEAD_MAX: usize = 16 * 1024;

/// Serves `routes` on `listener`. Accepts up to `connections_max` connections; more wait in the
/// system's backlog. `drain` stops accepting and closes each connection after its current request;
/// `abort` drops the rest. Returns when all connections are closed.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    connections_max: usize,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let builder = Arc::new(builder(&routes));
    let permits = Arc::new(Semaphore::new(connections_max));
    let tasks = TaskTracker::new();
    let mut is_failing = false;
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = drain.cancelled() => break,
        };
        let was_failing = std::mem::replace(&mut is_failing, accepted.is_err());
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !was_failing {
                    tracing::warn!(%error, "a connection cannot be accepted; others wait");
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let serve = serve_connection(
            stream,
            builder.clone(),
            routes.clone(),
            header_timeout,
            // A child token each: checking a token takes its lock.
            drain.child_token(),
            abort.clone(),
        );
        tasks.spawn(async move {
            serve.await;
            drop(permit);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

/// Returns what all connections of a listener have in common.
pub(super) fn builder(routes: &Routes) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor { ended: routes.unsent.ended.clone() });
    // `ConnectionTimeouts` keeps the time of a head.
    builder.http1().header_read_timeout(None).max_buf_size(HEAD_MAX);
    builder.http2().max_header_list_size(HEAD_MAX as u32);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
    builder
}

async fn serve_connection(
    stream: TcpStream,
    builder: Arc<auto::Builder<StreamExecutor>>,
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    // A response is one small write: it must not wait for more.
    let _ = stream.set_nodelay(true);
    serve_stream(stream, builder, routes, header_timeout, drain, abort).await;
}

/// Serves one connection until it ends.
pub(super) async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    builder: Arc<auto::Builder<StreamExecutor>>,
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let timeouts = Arc::new(ConnectionTimeouts::new(header_timeout));
    let progress = ConnectionProgress::begin();
    let service = service_fn(|mut request: Request<Incoming>| {
        timeouts.request_begins(request.version());
        let response = ExpectedResponse::to(&mut request, &routes.unsent, &progress);
        let answer = routes.call(request);
        let timeouts = timeouts.clone();
        async move {
            let answer = answer.await;
            timeouts.request_ends();
            answer.map(|answer| response.count(answer))
        }
    });
    let written = progress.clone();
    let stream = InspectWriter::new(stream, move |_: &[u8]| written.bytes_written());
    let stream = TokioIo::new(timed(stream, timeouts.clone()));
    let mut ended_here = std::pin::pin!(async {
        tokio::select! {
            () = timeouts.expired() => {}
            () = progress.stuck() => routes.unsent.ended.inc(),
        }
    });
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = ended_here.as_mut() => return,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = ended_here.as_mut() => return,
                () = abort.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection failed");
    }
}

/// The timeouts of one connection.
///
/// hyper has a limit for the head of a request, but it also counts the time between two requests:
/// it would cut the idle connections that load balancers keep, and it does not start before the
/// first bytes arrive. So the time is kept here. A head must be complete within the limit from its
/// first byte; the first head, from the start of the connection. Between requests the limit is
/// longer.
struct ConnectionTimeouts {
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
    fn new(head_max: Duration) -> Self {
        Self { began: Instant::now(), head_max, state: AtomicU64::new(0) }
    }

    /// Notes that a request's head is complete.
    fn request_begins(&self, version: Version) {
        self.enter(if version == Version::HTTP_2 { Phase::Streams } else { Phase::Busy });
    }

    /// Notes that the response is ready to be written.
    fn request_ends(&self) {
        if self.phase().0 == Phase::Busy {
            self.enter(Phase::Idle);
        }
    }

    /// Waits until the connection has used up its time.
    async fn expired(&self) {
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

/// Reports the traffic of a stream to its timeouts.
fn timed<T: AsyncRead + AsyncWrite + Unpin>(
    stream: T,
    timeouts: Arc<ConnectionTimeouts>,
) -> impl AsyncRead + AsyncWrite + Unpin {
    let reading = timeouts.clone();
    let stream = InspectReader::new(stream, move |bytes: &[u8]| {
        if !bytes.is_empty() {
            reading.bytes_read();
        }
    });
    InspectWriter::new(stream, move |_: &[u8]| timeouts.bytes_written())
}

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;
