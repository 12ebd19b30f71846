//! Signals that stop the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code after a second signal.
const EXIT_AT_ONCE: i32 = 130;

/// Listens for SIGTERM and SIGINT from its creation on.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal. A second one ends the process at once; the servers' guards then
    /// end the servers.
    pub async fn first(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("second signal: ending at once");
            std::process::exit(EXIT_AT_ONCE);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
