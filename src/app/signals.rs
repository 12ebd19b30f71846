//! Signals that stop the process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// The exit code after a second signal.
const EXIT_AT_ONCE: i32 = 130;

/// Listens for SIGTERM and SIGINT from now on, and returns a future that waits for the first. A
/// second one ends the process at once; the servers' guards then end the servers.
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
        tokio::spawn(async move {
            next().await;
            tracing::warn!("second signal: ending at once");
            std::process::exit(EXIT_AT_ONCE);
        });
    })
}
