//! Accepts connections and serves them.
//!
//! `axum::serve` would be shorter, but it has no limit on how long a client may take to send its request
//! line and headers ([`Patience`]): half-sent requests would stay open for ever.

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
use super::connection_timeouts::{Patience, Watched};

/// Connections open at once; more wait in the system's queue.
const CONNECTIONS_MAX: usize = 16_384;
/// How often an HTTP/2 peer is asked whether it is still there; one that does not answer is let go.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The pause when the system has no more descriptors to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `routes` on `listener`. On `drain` no more connections are accepted, and those that are open
/// are closed as their last request ends. On `abort` they are dropped. Done when all are closed.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // The time a head may take is kept by `Patience`.
    builder.http1().header_read_timeout(None);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL);
    let builder = Arc::new(builder);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            () = drain.cancelled() => break,
        };
        let Ok((stream, _)) = accepted else {
            // Most likely out of descriptors; some are given back all the time.
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let serve = serve_connection(
            stream,
            builder.clone(),
            routes.clone(),
            header_timeout,
            // One of its own for each: looking at a token takes its lock.
            drain.child_token(),
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
    routes: Routes,
    header_timeout: Duration,
    drain: CancellationToken,
    abort: CancellationToken,
) {
    // An answer is one small write: it must not wait for more.
    let _ = stream.set_nodelay(true);
    let patience = Arc::new(Patience::new(header_timeout));
    let service = service_fn(|request: Request<Incoming>| {
        patience.request_begins(request.version());
        let answer = routes.call(request);
        let patience = patience.clone();
        async move {
            let answer = answer.await;
            patience.request_ends();
            answer
        }
    });
    let stream = TokioIo::new(Watched::new(stream, patience.clone()));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = patience.runs_out() => return,
        () = drain.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                ended = connection.as_mut() => ended,
                () = patience.runs_out() => return,
                () = abort.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
