//! Notices changes, whoever makes them. Each kind of data has a revision that every change
//! increases, and readers compare it with the last one they saw. PostgreSQL notifies them; with
//! SQLite, and from time to time in any case, they poll.
//!
//! [`Follower`] keeps what a component holds in memory up to date:
//!
//! ```text
//! loop {
//!     follower.changed(wake).await;
//!     while follower.retry(read().await).await.is_none() {}
//! }
//! ```

use std::mem;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::{sleep, timeout};

use super::open::DatabaseKind;
use super::{Outage, QUERY_TIMEOUT, Result, Store, Tx, with_timeout};

const CHANNEL: &str = "trunkline_changes";
/// Reading one row of a file is cheap.
const SQLITE_INTERVAL: Duration = Duration::from_millis(500);
/// For a connection that is dead without showing it, or a pooler that passes on no notifications.
const POSTGRES_INTERVAL: Duration = Duration::from_secs(1);
/// The pause between attempts while the database is away.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(500);

/// Everything is read again at least this often, even if no change is announced.
const CONFIRM_EVERY: Duration = Duration::from_secs(60);

/// The kinds of data that have a revision.
#[derive(Clone, Copy)]
pub enum Subject {
    /// Tenants, keys and pins.
    Policy,
    /// Tenants' secrets.
    Secrets,
    /// Ended sessions.
    Sessions,
}

impl Subject {
    /// Returns the name in the table `revisions`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Secrets => "secrets",
            Self::Sessions => "sessions",
        }
    }
}

/// Waits for changes of one kind of data.
pub struct StoreChanges {
    store: Store,
    subject: Subject,
    /// The epoch and the revision.
    seen: Option<(u64, i64)>,
    listener: Option<PgListener>,
}

impl Store {
    pub fn changes(&self, subject: Subject) -> StoreChanges {
        StoreChanges { store: self.clone(), subject, seen: None, listener: None }
    }

    pub(super) async fn revision(&self, subject: Subject) -> Result<i64> {
        let revision = sqlx::query_scalar("SELECT value FROM revisions WHERE name = $1");
        with_timeout(revision.bind(subject.name()).fetch_one(&self.pool()?)).await
    }
}

impl StoreChanges {
    /// Waits for a change since the last call; the first call does not wait. A caller that reads
    /// the store after each return misses nothing. Fails, after a pause, if the store does not
    /// tell: anything may have changed then. May be dropped and called again.
    pub async fn next(&mut self) -> Result<()> {
        let mut is_notified = true;
        loop {
            let has_changed = self.has_changed().await;
            if has_changed.is_err() {
                sleep(RETRY_EVERY).await;
            }
            if has_changed? {
                if !is_notified {
                    // A change without a notification: the listener is no longer connected to this
                    // database.
                    self.listener = None;
                }
                return Ok(());
            }
            is_notified = self.wait_for_hint().await;
        }
    }

    async fn has_changed(&mut self) -> Result<bool> {
        // Before the revision is read: later changes are notified.
        if self.store.0.kind == DatabaseKind::Postgres && self.listener.is_none() {
            self.listener = with_timeout(listen(self.store.0.url.expose())).await.ok();
        }
        let revision = self.store.revision(self.subject).await?;
        let seen = Some((self.store.epoch(), revision));
        Ok(mem::replace(&mut self.seen, seen) != seen)
    }

    /// Waits for a notification or the next poll. Returns whether the database sent one.
    async fn wait_for_hint(&mut self) -> bool {
        let Some(listener) = &mut self.listener else {
            sleep(self.interval()).await;
            return false;
        };
        match timeout(POSTGRES_INTERVAL, listener.try_recv()).await {
            Ok(Ok(Some(_))) => true,
            Err(_) => false,
            // The connection is lost, and notifications with it: reading the revision finds the
            // change.
            Ok(Ok(None) | Err(_)) => {
                self.listener = None;
                true
            }
        }
    }

    fn interval(&self) -> Duration {
        match self.store.0.kind {
            DatabaseKind::Sqlite => SQLITE_INTERVAL,
            DatabaseKind::Postgres => RETRY_EVERY,
        }
    }
}

/// Waits for changes of the store, and retries reads while it is away.
pub struct Follower {
    changes: StoreChanges,
    outage: Outage,
}

impl Follower {
    /// `what` is read from the store; while it cannot be, `meanwhile` holds. Both are for the log.
    pub fn new(changes: StoreChanges, what: &'static str, meanwhile: &'static str) -> Self {
        let outage = Outage::new(&changes.store, what, meanwhile);
        Self { changes, outage }
    }

    /// Waits for a change of the store, for `wake`, or until it is time to confirm. Does not wait
    /// the first time. May be dropped and called again.
    pub async fn changed(&mut self, wake: impl Future<Output = ()>) {
        tokio::select! {
            // If it fails, reading shows whether the store is away.
            _ = self.changes.next() => {}
            () = wake => {}
            () = sleep(CONFIRM_EVERY) => {}
        }
    }

    /// Returns what was read; or `None` after a pause, if the store could not be read.
    pub async fn retry<T>(&mut self, outcome: Result<T>) -> Option<T> {
        let value = self.outage.note(outcome);
        if value.is_none() {
            sleep(RETRY_EVERY).await;
        }
        value
    }
}

async fn listen(url: &str) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(QUERY_TIMEOUT)
        .connect_lazy_with(PgConnectOptions::from_str(url)?);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Increases the revision, which serialises changes of this kind. Listeners are notified when the
/// transaction commits. Returns the revision.
pub(super) async fn bump_revision(
    kind: DatabaseKind,
    transaction: &mut Tx,
    subject: Subject,
) -> Result<i64> {
    let revision = sqlx::query_scalar(
        "UPDATE revisions SET value = value + 1 WHERE name = $1 RETURNING value",
    )
    .bind(subject.name())
    .fetch_one(&mut **transaction)
    .await?;
    if kind == DatabaseKind::Postgres {
        sqlx::query("SELECT pg_notify($1, '')").bind(CHANNEL).execute(&mut **transaction).await?;
    }
    Ok(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promised delay until all replicas have read a change.
    const PROMISED: Duration = Duration::from_secs(2);

    /// A change comes just after a poll, is not notified, and the next poll or read fails once.
    #[test]
    fn polls_are_frequent_enough_for_the_promised_delay() {
        for interval in [SQLITE_INTERVAL, POSTGRES_INTERVAL] {
            assert!(interval + RETRY_EVERY < PROMISED, "{interval:?}");
        }
    }
}
