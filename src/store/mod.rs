//! Tenants, keys, secrets, usage, approved tools, the audit log and the cluster's state, in SQLite
//! or PostgreSQL. The only place with SQL.
//!
//! One statement serves both databases: `$1` parameters, TEXT and BIGINT. `open` has the
//! differences.
//!
//! - `configured`: the store that the configuration names
//! - `open`: connections and migrations
//! - `check`: whether a SQLite file is a store, and whole
//! - `tenants`, `file_tenants`, `keys`, `secrets`, `callback_secrets`, `usage`, `pins`, `audit`,
//!   `replicas`, `ended_sessions`: one file per kind of row
//! - `calls`: records of calls that are kept
//! - `connections`: tokens of tenants that have connected themselves to servers
//! - `changes`: notices what others have changed, and keeps copies in memory up to date
//! - `file`: compares the file of a SQLite store with the one at its path, and keeps its log apart
//! - `watch`: follows a file that is deleted or replaced
//! - `health`: which uses of the store fail now
//! - `error`: errors
//!
//! Every method ends within [`QUERY_TIMEOUT`], whatever the database does; on SQLite, methods that
//! read all rows of a kind within [`READ_ALL_TIMEOUT_SQLITE`].

mod audit;
mod callback_secrets;
mod calls;
mod changes;
mod check;
mod configured;
mod connections;
mod ended_sessions;
mod error;
mod file;
mod file_tenants;
mod health;
mod keys;
mod open;
mod pins;
mod replicas;
mod secrets;
mod tenants;
mod usage;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use sqlx::{Any, AnyPool, Transaction};
use tokio::time::timeout;

use self::health::Health;
use self::open::{DatabaseKind, Opened};
use self::tenants::present_generation;
use crate::common::keys::{ApiKey, KeyHash};
use crate::config::Secret;

pub use self::audit::{Actor, AuditEntry};
pub use self::callback_secrets::CallbackSecrets;
pub use self::calls::{
    BegunCall, CallBatch, CallConnection, CallQuery, CallState, CallTotal, CallbackState,
    CallbackStatus, ClaimedCall, EndedCall, Evicted, NewCall, NewCallback, StoredCall,
    TakenCallback, Written,
};
pub(crate) use self::changes::RETRY_EVERY;
pub use self::changes::{Follower, StoreChanges, Subject};
pub use self::configured::{Missing, NoStore};
pub use self::connections::{NewConnection, NewState, Revocation, StoredConnection};
pub use self::ended_sessions::{EndedCursor, EndedSession};
pub use self::error::StoreError;
pub use self::file_tenants::{EndedTenant, FileTenant};
pub use self::health::Outage;
pub use self::keys::{KeyOwner, KeyRecord, KeyState, NewKey};
pub use self::pins::{HELD_MAX, Pinned, Sighting};
pub use self::secrets::{
    CONNECTION, ChangedSecrets, Label, Rotated, SealedSecret, SecretRecord, SecretsCursor,
};
pub use self::tenants::{Contents, StoredTenant};
pub use self::usage::{USAGE_ROWS_MAX, UsageKey, UsageOf, UsageQuery, UsageTotal};

/// Callers wait for some of the queries.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// Nobody waits for reads of all rows but a start and the component that follows the store. A busy
/// machine takes seconds to read 10,000 tenants from SQLite.
const READ_ALL_TIMEOUT_SQLITE: Duration = Duration::from_secs(20);

type Result<T, E = StoreError> = std::result::Result<T, E>;
type Tx = Transaction<'static, Any>;

/// A cheap handle.
#[derive(Clone)]
pub struct Store(Arc<StoreInner>);

struct StoreInner {
    kind: DatabaseKind,
    url: Secret,
    hash_key: Option<Secret>,
    /// Replaced with the file of a SQLite store.
    opened: ArcSwap<Opened>,
    /// Why the file of a SQLite store cannot be used now, as `watch` last saw.
    away: ArcSwapOption<String>,
    health: Health,
}

impl Store {
    /// Opens the store at `sqlite://path` or `postgres://…`, creates it if it is missing, and
    /// migrates it. Without `hash_key`, the store uses a key of its own.
    pub async fn open(url: &Secret, hash_key: Option<&Secret>) -> Result<Self> {
        Self::open_or(Missing::Create, url, hash_key).await
    }

    async fn open_or(missing: Missing, url: &Secret, hash_key: Option<&Secret>) -> Result<Self> {
        let opened = Opened::open(url, hash_key, missing).await?;
        let inner = Arc::new(StoreInner {
            kind: DatabaseKind::of(url),
            url: url.clone(),
            hash_key: hash_key.cloned(),
            opened: ArcSwap::from_pointee(opened),
            away: ArcSwapOption::empty(),
            health: Health::default(),
        });
        if inner.kind == DatabaseKind::Sqlite {
            tokio::spawn(watch::watch(Arc::downgrade(&inner)));
        }
        Ok(Self(inner))
    }

    /// Returns the file, or the host and the database, to be shown.
    pub fn place(&self) -> String {
        self.0.opened.load().place.clone()
    }

    /// Returns the hash of a key, as the store has it.
    pub fn hash(&self, key: &ApiKey) -> KeyHash {
        self.0.opened.load().hasher.hash(key)
    }

    /// Closes all connections. SQLite then removes its temporary files.
    pub async fn close(&self) {
        let _ = timeout(QUERY_TIMEOUT, self.0.opened.load().pool.close()).await;
    }

    /// Returns the connections to the database. Looks at no file: a file system that hangs must not
    /// block the runtime's threads.
    fn pool(&self) -> Result<AnyPool> {
        match &*self.0.away.load() {
            Some(why) => Err(StoreError::Unavailable(why.to_string())),
            None => Ok(self.0.opened.load().pool.clone()),
        }
    }

    /// Returns a number that changes when another file is opened: its revisions are not those of
    /// the file before.
    fn epoch(&self) -> u64 {
        self.0.opened.load().epoch
    }

    /// Begins a transaction that reads one consistent state, and ends when it is dropped.
    async fn snapshot(&self) -> Result<Tx> {
        Ok(self.pool()?.begin_with(self.0.kind.begin_snapshot()).await?)
    }

    async fn write(&self) -> Result<Tx> {
        Ok(self.pool()?.begin_with(self.0.kind.begin_write()).await?)
    }

    /// Begins a change of tenants, keys or pins. Changes are serialised, and all replicas are
    /// notified.
    async fn change(&self) -> Result<Tx> {
        Ok(self.change_of(Subject::Policy).await?.0)
    }

    /// Bounds the time of a read of all rows of a kind. PostgreSQL may be out of reach, which must
    /// be noticed as early as for any query.
    async fn read_all<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = match self.0.kind {
            DatabaseKind::Sqlite => READ_ALL_TIMEOUT_SQLITE,
            DatabaseKind::Postgres => QUERY_TIMEOUT,
        };
        ends_within(limit, work).await
    }

    /// Begins a change of one kind of data. Returns its revision as well.
    async fn change_of(&self, subject: Subject) -> Result<(Tx, i64)> {
        let mut transaction = self.write().await?;
        let revision = changes::bump_revision(self.0.kind, &mut transaction, subject).await?;
        Ok((transaction, revision))
    }
}

/// Gives up after [`QUERY_TIMEOUT`]: a database that hangs returns not even an error.
async fn with_timeout<T, E: Into<StoreError>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    ends_within(QUERY_TIMEOUT, work).await
}

async fn ends_within<T, E: Into<StoreError>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    match timeout(limit, work).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(StoreError::Unavailable(format!("no answer in {limit:?}"))),
    }
}

/// Returns whether a text from outside can be stored. PostgreSQL has no NUL in texts and refuses
/// even to compare with one, so such a text names nothing, and is never sent there. Ids of other
/// kinds are parsed before they come here, and have no NUL.
fn can_be_stored(text: &str) -> bool {
    !text.contains('\0')
}

/// Returns `($1, $2), ($3, $4)` for two rows of two columns.
fn placeholders(rows: usize, columns: usize) -> String {
    let row = |row: usize| {
        let placeholders: Vec<String> =
            (1..=columns).map(|at| format!("${}", row * columns + at)).collect();
        format!("({})", placeholders.join(", "))
    };
    (0..rows).map(row).collect::<Vec<_>>().join(", ")
}

/// Milliseconds since 1970.
fn now() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_placeholder() {
        assert_eq!(placeholders(1, 1), "($1)");
        assert_eq!(placeholders(2, 3), "($1, $2, $3), ($4, $5, $6)");
    }
}
