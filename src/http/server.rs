//! Accepts connections, serves them, and closes those that keep the gateway waiting.
//!
//! `axum::serve` would be shorter, but has no limit for the time that a client takes to send its
//! request line and headers: half-sent requests would stay open for ever.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::io::InspectWriter;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::origin::Routes;
pub use super::connections::ConnectionBounds;
use super::connections::activity::watched;
use super::connections::unread_body::UnreadBody;
use super::connections::{Admitted, Connections};
use super::unsent::{ConnectionProgress, ExpectedResponse, StreamExecutor};
use crate::telemetry::metrics::ConnectionMetrics;

/// The most connections of one listener, where there are descriptors enough.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The interval of HTTP/2 pings; a peer that does not answer is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The longest head of a request, and the most that HTTP/1 reads at once. HTTP/2 keeps up to six
/// frames of 16 KiB of a head that has no end. `connections` counts both.
const HEAD_MAX: usize = 16 * 1024;

/// Serves `routes` on `listener`, within the bounds of its connections. `drain` stops accepting and
/// closes each connection after its current requests; `abort` drops the rest. Returns when all
/// connections are closed.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    bounds: ConnectionBounds,
    metrics: ConnectionMetrics,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let connections = Connections::new(bounds, metrics);
    let tasks = TaskTracker::new();
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.cancelled() => break,
        };
        let was_failing = std::mem::replace(&mut is_failing, accepted.is_err());
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !was_failing {
                    tracing::warn!(%error, "a connection cannot be accepted; others wait");
                }
                if is_out_of_descriptors(&error) {
                    connections.make_room();
                }
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let admitted = tokio::select! {
            admitted = connections.admit(peer.ip(), &drain) => admitted,
            () = drain.cancelled() => break,
        };
        let Some(admitted) = admitted else { continue };
        // A response is one small write: it must not wait for more.
        let _ = stream.set_nodelay(true);
        let (routes, abort) = (routes.clone(), abort.clone());
        tasks.spawn(async move {
            serve_connection(stream, &admitted, routes, abort).await;
            // After the stream: whoever waits for room needs its descriptor.
            drop(admitted);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

fn builder(streams: StreamExecutor) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(streams);
    // `Activity` keeps the time of a head.
    builder.http1().header_read_timeout(None).max_buf_size(HEAD_MAX);
    builder.http2().max_header_list_size(HEAD_MAX as u32);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
    builder
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Serves one connection until its end, and that of its streams. Tells a client to leave when its
/// time is over, or for another reason (by GOAWAY over HTTP/2), and serves its open requests to
/// their end.
pub(super) async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    admitted: &Admitted,
    routes: Routes,
    abort: CancellationToken,
) {
    let (streams, ended) = StreamExecutor::new(routes.unsent.ended.clone());
    serve_streams(stream, admitted, routes, streams, abort).await;
    // Streams hold memory, so the connection counts until then.
    ended.wait().await;
}

async fn serve_streams(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    admitted: &Admitted,
    routes: Routes,
    streams: StreamExecutor,
    abort: CancellationToken,
) {
    let connection = &admitted.connection;
    let activity = &connection.activity;
    let progress = ConnectionProgress::begin();
    let unread = Arc::new(UnreadBody::default());
    let service = service_fn(|mut request: Request<Incoming>| {
        let response = ExpectedResponse::to(&mut request, &routes.unsent, &progress);
        let mut open = admitted.begin(&request);
        request.extensions_mut().insert(admitted.handle());
        let version = request.version();
        let answer = routes.call(request.map(|body| unread.watch(version, body)));
        let unread = unread.clone();
        async move {
            open.turn().await;
            let mut answer = answer.await?;
            if !unread.read_rest().await {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.count(answer).map(|body| open.answered(body)))
        }
    });
    let written = progress.clone();
    let stream = InspectWriter::new(stream, move |_: &[u8]| written.bytes_written());
    let stream = watched(admitted.measured(stream), activity.clone());
    let stream = TokioIo::new(stream);
    let mut stuck = std::pin::pin!(async {
        progress.stuck().await;
        routes.unsent.ended.inc();
    });
    let builder = builder(streams.clone());
    let mut served = std::pin::pin!(builder.serve_connection(stream, service));
    // After `served`, so that it is dropped first.
    let _end_streams = streams.end_with_connection();
    tokio::select! {
        biased;
        // First, so that nothing more is read: a request would be ended at once.
        () = connection.evicted.cancelled() => return,
        // Next, so that a request that has arrived is served, however late this task runs.
        ended = served.as_mut() => return note(ended),
        () = stuck.as_mut() => return,
        () = activity.expired() => {}
        () = connection.leave.cancelled() => {}
    }
    activity.set_leaving();
    served.as_mut().graceful_shutdown();
    tokio::select! {
        biased;
        () = connection.evicted.cancelled() => {}
        // Next, so that GOAWAY is written also where no time is left, as after a half-sent head.
        ended = served.as_mut() => note(ended),
        () = stuck.as_mut() => {}
        () = activity.expired() => {}
        () = abort.cancelled() => {}
    }
}

fn note<E: Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection failed");
    }
}

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;
