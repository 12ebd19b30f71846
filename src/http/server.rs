//! Accepts connections and serves them.
//!
//! `axum::serve` would be shorter, but it has no limit on how long a client may take to send its request
//! line and headers: half-sent requests would stay open for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections open at once; more wait in the system's queue.
const CONNECTIONS_MAX: usize = 16_384;
/// The pause when the system has no more descriptors to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` on `listener`. On `drain` no more connections are accepted, and those that are open
/// are closed as their last request ends. On `abort` they are dropped. Done when all are closed.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout);
    builder.http2().timer(TokioTimer::new());
    let builder = Arc::new(builder);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            (Ok((stream, _)), place) = accepted => (stream, place),
            () = drain.cancelled() => break,
            else => {
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let serve = serve_connection(
            stream,
            builder.clone(),
            router.clone(),
            header_timeout,
            drain.clone(),
            abort.clone(),
        );
        tasks.spawn(async move {
            serve.await;
            drop(place);
        });
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

async fn serve_connection(
    stream: TcpStream,
    builder: Arc<auto::Builder<TokioExecutor>>,
    router: Router,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    // An answer is one small write: it must not wait for more.
    let _ = stream.set_nodelay(true);
    let router = TowerToHyperService::new(router);
    let asked = AtomicBool::new(false);
    let service = service_fn(|request| {
        asked.store(true, Ordering::Relaxed);
        router.call(request)
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // The builder's own limit starts when it knows the version of HTTP, for which it waits without limit.
    let nothing_asked = async {
        sleep(header_timeout).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = nothing_asked => return,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = abort.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
