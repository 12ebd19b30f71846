//! Being told to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a process exits with when it is told twice.
const EXIT_AT_ONCE: i32 = 130;

/// Listens for SIGTERM and SIGINT from the moment it is made.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Starts listening.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Done at the first signal. A second one ends the process at once; the servers' guards then end the
    /// servers.
    pub async fn first(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("told to stop twice: ending at once");
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
