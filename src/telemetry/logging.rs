//! Structured logs on standard error: text for a person at a terminal, JSON for a machine.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// Starts logging for this process: what `RUST_LOG` says, by default `info` and above.
pub fn init() {
    let filter =
        EnvFilter::builder().with_default_directive(tracing::Level::INFO.into()).from_env_lossy();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    if stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
}
