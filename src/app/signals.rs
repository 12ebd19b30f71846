//! Signals that stop the process.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::telemetry::logging;

/// The exit code after a second signal.
const EXIT_AT_ONCE: i32 = 130;
/// Signals within this time of the first count as one: shells, `timeout` and process managers send
/// several, and mean the drain.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// Listens for SIGTERM and SIGINT from now on, and returns a future that waits for the first. A
/// second one, later than [`ONE_SIGNAL`], ends the process at once; the servers' guards then end
/// the servers.
pub fn first() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut next = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    Ok(async move {
        next().await;
        let first = Instant::now();
        tokio::spawn(async move {
            next().await;
            while first.elapsed() < ONE_SIGNAL {
                next().await;
            }
            tracing::warn!("second signal: ending at once");
            logging::flush();
            std::process::exit(EXIT_AT_ONCE);
        });
    })
}
