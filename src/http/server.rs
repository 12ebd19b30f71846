//! Accepts connections and serves them.
//!
//! `axum::serve` would be shorter, but has no limit for the time that a client takes to send its
//! request line and headers ([`ConnectionTimeouts`]): half-sent requests would stay open for ever.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::cors::Routes;
use super::connection_timeouts::{ConnectionTimeouts, TimedStream};

/// The most connections at once; more wait in the system's backlog.
const CONNECTIONS_MAX: usize = 16_384;
/// The interval of HTTP/2 pings; a peer that does not answer is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `routes` on `listener`. `drain` stops accepting and closes each connection after its
/// current request; `abort` drops the rest. Returns when all connections are closed.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `ConnectionTimeouts` keeps the time of a head.
    builder.http1().header_read_timeout(None);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
    let builder = Arc::new(builder);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = drain.cancelled() => break,
        };
        let Ok((stream, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
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

async fn serve_connection(
    stream: TcpStream,
    builder: Arc<auto::Builder<TokioExecutor>>,
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    // A response is one small write: it must not wait for more.
    let _ = stream.set_nodelay(true);
    let timeouts = Arc::new(ConnectionTimeouts::new(header_timeout));
    let service = service_fn(|request: Request<Incoming>| {
        timeouts.request_begins(request.version());
        let answer = routes.call(request);
        let timeouts = timeouts.clone();
        async move {
            let answer = answer.await;
            timeouts.request_ends();
            answer
        }
    });
    let stream = TokioIo::new(TimedStream::new(stream, timeouts.clone()));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = timeouts.expired() => return,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = timeouts.expired() => return,
                () = abort.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection failed");
    }
}
