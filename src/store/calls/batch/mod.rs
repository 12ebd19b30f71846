//! Writes many transitions of calls in one transaction.

mod counts;
mod postgres;
mod rare;
mod sqlite;

use std::collections::HashSet;
use std::sync::Arc;

use sqlx::{AnyConnection, AssertSqlSafe, Executor};

use super::super::open::DatabaseKind;
use super::super::{Result, Store, with_timeout};
use super::{CallState, EndedCall, NewCall};
use crate::common::ids::CallId;

pub(super) use self::counts::{count_deleted, count_evicted};
pub(super) use self::rare::delete_labels;

/// Keys are random, so a transaction changes pages all over the index of scopes. They must be in
/// memory (32 MiB, by the negative number), and be copied from the log seldom (every 64 MiB of it):
/// a page that has changed often meanwhile is copied once.
const SQLITE_SETTINGS: &str = "PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 16384";

/// Transitions that are written together.
#[derive(Clone, Debug, Default)]
pub struct CallBatch<'a> {
    pub new: Vec<&'a NewCall>,
    pub begun: Vec<BegunCall>,
    pub ended: Vec<&'a EndedCall>,
    /// Calls that leave nothing behind: no server has seen them.
    pub forgotten: Vec<CallId>,
    /// Accepted calls that another gateway shall begin.
    pub handed_over: Vec<CallId>,
}

/// An accepted call that begins.
#[derive(Clone, Copy, Debug)]
pub struct BegunCall {
    pub id: CallId,
    pub at: i64,
    /// From then on: a batch stays accepted.
    pub state: CallState,
}

/// The calls whose transitions took place. All others were refused by the state of their record.
#[derive(Debug, Default)]
pub struct Written {
    pub new: HashSet<CallId>,
    pub begun: HashSet<CallId>,
    pub ended: HashSet<CallId>,
}

/// The writer's own connection. Opened anew after an error.
pub struct CallConnection {
    store: Store,
    owner: Arc<str>,
    /// With SQLite: each commit waits for the disk.
    is_full: bool,
    /// With the epoch of the store that it belongs to.
    open: Option<(u64, AnyConnection)>,
}

impl Store {
    /// Returns a connection for the transitions of one gateway's calls. `is_full`: with SQLite, a
    /// commit is safe even if the machine loses power.
    pub fn call_connection(&self, owner: Arc<str>, is_full: bool) -> CallConnection {
        CallConnection { store: self.clone(), owner, is_full, open: None }
    }
}

impl CallConnection {
    /// Writes all transitions, or none. After an error nobody knows which.
    pub async fn write(&mut self, batch: &CallBatch<'_>) -> Result<Written> {
        let kind = self.store.0.kind;
        let (epoch, mut connection) = match self.open.take() {
            // Also fails if the file is away.
            Some(open) if open.0 == self.store.epoch() => self.store.pool().map(|_| open)?,
            _ => (self.store.epoch(), with_timeout(connect(&self.store, self.is_full)).await?),
        };
        let owner = self.owner.clone();
        let written = match kind {
            DatabaseKind::Sqlite => {
                with_timeout(sqlite::write(&mut connection, &owner, batch)).await?
            }
            DatabaseKind::Postgres => {
                with_timeout(postgres::write(&mut connection, &owner, batch)).await?
            }
        };
        self.open = Some((epoch, connection));
        Ok(written)
    }
}

async fn connect(store: &Store, is_full: bool) -> Result<AnyConnection> {
    let mut connection = store.pool()?.acquire().await?.detach();
    match store.0.kind {
        DatabaseKind::Sqlite => {
            let level = if is_full { "FULL" } else { "NORMAL" };
            let text = format!("PRAGMA synchronous = {level}; {SQLITE_SETTINGS}");
            connection.execute(AssertSqlSafe(text)).await?;
        }
        DatabaseKind::Postgres => {
            connection.execute(postgres::SETTINGS).await?;
        }
    }
    Ok(connection)
}
