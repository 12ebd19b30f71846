//! Faults of the gateway's surroundings: its log, its databases, its disks and its limits.

mod databases;
mod descriptors;
mod ended_sessions;
mod logs;
mod sqlite_full;
mod temp_dir;
mod tmpfs;
mod valkey;

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::rows::Shown;

use logs::Log;
use temp_dir::Obstacle;

/// When to give up.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
pub enum Fault {
    Log(Log),
    SqliteFull,
    PostgresRefuses,
    Valkey,
    Descriptors,
    TempDir(Obstacle),
    EndedSessions,
}

impl Fault {
    pub const ALL: [Self; 10] = [
        Self::Log(Log::Unread),
        Self::Log(Log::Closed),
        Self::Log(Log::Full),
        Self::SqliteFull,
        Self::PostgresRefuses,
        Self::Valkey,
        Self::Descriptors,
        Self::TempDir(Obstacle::Full),
        Self::TempDir(Obstacle::ReadOnly),
        Self::EndedSessions,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Log(Log::Unread) => "a log that nobody reads: standard error is a full pipe",
            Self::Log(Log::Closed) => "a log whose reader is gone: standard error is a closed pipe",
            Self::Log(Log::Full) => "a log that cannot be written: standard error is /dev/full",
            Self::SqliteFull => "SQLite on a disk that is full for a while",
            Self::PostgresRefuses => "PostgreSQL that refuses every statement for a while",
            Self::Valkey => "Valkey that stands still for a moment each second",
            Self::Descriptors => "256 descriptors, and as many idle connections as are accepted",
            Self::TempDir(Obstacle::Full) => "a full directory for temporary files",
            Self::TempDir(Obstacle::ReadOnly) => "a read-only directory for temporary files",
            Self::EndedSessions => "a start with millions of ended sessions in the store",
        }
    }

    /// Tells whether one round is enough, for it takes minutes and varies little.
    pub fn is_costly(self) -> bool {
        matches!(self, Self::EndedSessions)
    }

    pub async fn show(self, quick: bool) -> Result<Shown> {
        match self {
            Self::Log(log) => logs::show(log, quick).await,
            Self::SqliteFull => sqlite_full::show(quick).await,
            Self::PostgresRefuses => databases::show(quick).await,
            Self::Valkey => valkey::show(quick).await,
            Self::Descriptors => descriptors::show().await,
            Self::TempDir(obstacle) => temp_dir::show(obstacle).await,
            Self::EndedSessions => ended_sessions::show(quick).await,
        }
    }
}

/// Tries until it is done. Returns how long that took, in seconds.
async fn seconds_until(mut is_done: impl AsyncFnMut() -> bool) -> f64 {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if is_done().await {
            return began.elapsed().as_secs_f64();
        }
        sleep(POLL).await;
    }
    f64::INFINITY
}
