//! Accepts connections within their bounds.
//!
//! `axum::serve` would be shorter, but has no limit for the time that a client takes to send its
//! request line and headers: half-sent requests would stay open for ever.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::origin::Routes;
use super::connection::serve_connection;
pub use super::connections::ConnectionBounds;
use super::connections::Connections;
use crate::telemetry::metrics::ConnectionMetrics;

/// The most connections of one listener, where there are descriptors enough.
pub const CONNECTIONS_MAX: usize = 16_384;
/// The pause after a failed accept, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

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

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}
