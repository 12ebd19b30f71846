//! Hearing of changes: every change of tenants, keys or pins increases a number, every change of secrets another, every
//! end of sessions a third, and everybody compares it with the one they have seen. PostgreSQL says when to look; with SQLite, and now and then in
//! any case, one looks unasked.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Any, Transaction};
use tokio::time::{sleep, timeout};

use super::open::Kind;
use super::{QUERY_TIMEOUT, Store, StoreError, with_timeout};

const CHANNEL: &str = "trunkline_changes";
/// How often to look when nobody says when. Reading one row of a file is cheap.
const SQLITE_INTERVAL: Duration = Duration::from_millis(500);
/// How often to look at PostgreSQL while it is silent: a connection may be dead without showing it, or lead to a pooler
/// that is_temporary on no notifications.
const POSTGRES_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait before looking again for a database that is away.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(500);

/// What is counted.
#[derive(Clone, Copy)]
pub(super) enum Subject {
    /// Tenants, keys and pins.
    Policy,
    /// Tenants' secrets.
    Secrets,
    /// Sessions that have ended.
    Sessions,
}

impl Subject {
    /// As its number is called in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Secrets => "secrets",
            Self::Sessions => "sessions",
        }
    }
}

/// Tells of changes of tenants, keys and pins, of secrets, or of ended sessions, whoever made them.
pub struct Changes {
    store: Store,
    subject: Subject,
    seen: Option<i64>,
    listener: Option<PgListener>,
}

impl Store {
    /// Changes of tenants and keys from now on.
    pub fn changes(&self) -> Changes {
        self.changes_of(Subject::Policy)
    }

    /// Changes of secrets from now on.
    pub fn secret_changes(&self) -> Changes {
        self.changes_of(Subject::Secrets)
    }

    /// Ends of sessions from now on.
    pub fn session_changes(&self) -> Changes {
        self.changes_of(Subject::Sessions)
    }

    fn changes_of(&self, subject: Subject) -> Changes {
        Changes { store: self.clone(), subject, seen: None, listener: None }
    }

    async fn revision(&self, subject: Subject) -> Result<i64, StoreError> {
        let revision = sqlx::query_scalar("SELECT value FROM revisions WHERE name = $1");
        with_timeout(revision.bind(subject.name()).fetch_one(self.pool())).await
    }
}

impl Changes {
    /// Waits until something has changed since it was last asked; the first time it does not wait. Whoever loads what is
    /// in the store after each answer misses nothing. Goes on waiting while the database is away.
    /// May be dropped and asked again.
    pub async fn next(&mut self) {
        let mut told = true;
        loop {
            if self.has_changed().await {
                if !told {
                    // A change without a word: whatever the listener listens to, it is not the database any more.
                    self.listener = None;
                }
                return;
            }
            told = self.wait_for_hint().await;
        }
    }

    async fn has_changed(&mut self) -> bool {
        // Before the number is read: what changes after it is read is announced.
        if self.store.0.kind == Kind::Postgres && self.listener.is_none() {
            self.listener = with_timeout(listen(self.store.0.url.expose())).await.ok();
        }
        match self.store.revision(self.subject).await {
            Ok(revision) => self.seen.replace(revision) != Some(revision),
            Err(_) => false,
        }
    }

    /// Waits until it is worth while to look. Says whether the database has said so.
    async fn wait_for_hint(&mut self) -> bool {
        let Some(listener) = &mut self.listener else {
            sleep(self.interval()).await;
            return false;
        };
        match timeout(POSTGRES_INTERVAL, listener.try_recv()).await {
            Ok(Ok(Some(_))) => true,
            Err(_) => false,
            // The connection is lost, and with it what was announced meanwhile: the next look finds it.
            Ok(Ok(None) | Err(_)) => {
                self.listener = None;
                true
            }
        }
    }

    fn interval(&self) -> Duration {
        match self.store.0.kind {
            Kind::Sqlite => SQLITE_INTERVAL,
            Kind::Postgres => RETRY_EVERY,
        }
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

/// Increases the number, and so waits for whoever else does; tells those who listen when the transaction is done. Gives
/// the number.
pub(super) async fn bump_revision(
    kind: Kind,
    transaction: &mut Transaction<'static, Any>,
    subject: Subject,
) -> Result<i64, StoreError> {
    let revision = sqlx::query_scalar(
        "UPDATE revisions SET value = value + 1 WHERE name = $1 RETURNING value",
    )
    .bind(subject.name())
    .fetch_one(&mut **transaction)
    .await?;
    if kind == Kind::Postgres {
        sqlx::query("SELECT pg_notify($1, '')").bind(CHANNEL).execute(&mut **transaction).await?;
    }
    Ok(revision)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is promised to whoever makes a change, the loading of what has changed included.
    const PROMISED: Duration = Duration::from_secs(2);

    /// A change comes just after a look, nobody says so, and the next look, or the reading, fails once.
    #[test]
    fn looks_are_close_enough_to_keep_what_is_promised() {
        for interval in [SQLITE_INTERVAL, POSTGRES_INTERVAL] {
            assert!(interval + RETRY_EVERY < PROMISED, "{interval:?}");
        }
    }
}
