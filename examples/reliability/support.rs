//! The PostgreSQL server of the integration tests.

// The tests use more of these files, and end with a panic.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../../tests/it/support/postgres.rs"]
pub mod postgres;
#[path = "../../tests/it/support/processes.rs"]
mod processes;

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Does nothing: the row says that it was not run.
fn missing(_: &str) {}
