//! Connects to the database and migrates it. The differences between the databases are here and in
//! `changes`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::distr::{Alphanumeric, SampleString};
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{AnyConnection, AnyPool, ConnectOptions, Connection, Executor, SqlStr};
use tokio::time::{sleep, timeout};

use super::file::DatabaseFile;
use super::{Missing, NoStore, Result, StoreError, check, with_timeout};
use crate::common::keys::{Hasher, SECRET_LEN};
use crate::config::Secret;

/// PostgreSQL allows 100 by default, for all replicas together.
const POSTGRES_CONNECTIONS_MAX: u32 = 8;
/// One writes at a time; the others read.
const SQLITE_CONNECTIONS_MAX: u32 = 5;
/// Less than [`super::QUERY_TIMEOUT`], so that the error names the reason.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// Another process may be migrating, or writing much.
pub(super) const OPEN_BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long SQLite waits for another writer: less than [`super::QUERY_TIMEOUT`].
const SQLITE_SETTINGS: &str = "PRAGMA busy_timeout = 2000";
/// Shows that a file can be read.
const FIRST_READ: &str = "SELECT 1 FROM revisions LIMIT 1";
const SQLITE_BUSY: u32 = 5;
pub(super) const URL_HINT: &str = "`[store] url` says where else";
/// A connection that does not answer a ping within this time after use is closed.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Long enough for the migrations of another replica.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// PostgreSQL must not continue statements that nobody waits for, nor let a gateway that hangs in a
/// transaction block the others.
const POSTGRES_SETTINGS: &str =
    "SET statement_timeout = '3s'; SET idle_in_transaction_session_timeout = '5s'";

/// Every file in `migrations/`: version, description as sqlx reads it from the file name, SQL.
///
/// `sqlx::migrate!` would find the files by itself, but its crate compiles sqlx, SQLite and tokio
/// once more for the compiler. A test compares this list with the folder instead.
const MIGRATIONS: [(i64, &str, &str); 9] = [
    (
        1,
        "tenants keys usage audit",
        include_str!("../../migrations/0001_tenants_keys_usage_audit.sql"),
    ),
    (2, "secrets", include_str!("../../migrations/0002_secrets.sql")),
    (3, "pins", include_str!("../../migrations/0003_pins.sql")),
    (4, "replicas", include_str!("../../migrations/0004_replicas.sql")),
    (5, "generations", include_str!("../../migrations/0005_generations.sql")),
    (6, "calls", include_str!("../../migrations/0006_calls.sql")),
    (7, "changes of tenants", include_str!("../../migrations/0007_changes_of_tenants.sql")),
    (8, "callbacks", include_str!("../../migrations/0008_callbacks.sql")),
    (9, "connections", include_str!("../../migrations/0009_connections.sql")),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DatabaseKind {
    Sqlite,
    Postgres,
}

impl DatabaseKind {
    pub(super) fn of(url: &Secret) -> Self {
        if url.expose().starts_with("sqlite:") { Self::Sqlite } else { Self::Postgres }
    }

    /// Returns the statement that begins a writing transaction. SQLite takes the lock at once,
    /// since it refuses a lock after a read.
    pub(super) fn begin_write(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// Returns the query for the database's time, in milliseconds since 1970: the clocks of
    /// replicas may differ.
    pub(super) fn clock(self) -> &'static str {
        match self {
            Self::Sqlite => "SELECT CAST(unixepoch('subsec') * 1000 AS BIGINT)",
            Self::Postgres => "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        }
    }

    /// Returns the statement that begins a transaction which reads one consistent state.
    pub(super) fn begin_snapshot(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN",
            Self::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        }
    }
}

/// A database that was opened and migrated.
pub(super) struct Opened {
    pub(super) pool: AnyPool,
    /// Hashes keys as they are stored there.
    pub(super) hasher: Hasher,
    /// The file, or host and database, to be shown. Contains no password.
    pub(super) place: String,
    /// With SQLite.
    pub(super) file: Option<Arc<DatabaseFile>>,
    /// How often the file was replaced.
    pub(super) epoch: u64,
}

impl Opened {
    pub(super) async fn open(
        url: &Secret,
        hash_key: Option<&Secret>,
        missing: Missing,
    ) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let (pool, file, place) = match DatabaseKind::of(url) {
            DatabaseKind::Sqlite => {
                let options = file(url.expose())?;
                match missing {
                    Missing::Create => create_private(options.get_filename())?,
                    Missing::Refuse => check::must_be_store(&options).await?,
                }
                let (pool, file) = open_sqlite(url).await?;
                (pool, Some(file), options.get_filename().display().to_string())
            }
            DatabaseKind::Postgres => {
                let options = PgConnectOptions::from_str(url.expose()).map_err(invalid_url)?;
                let place = postgres_place(&options);
                (open_postgres(url, &options, missing, &place).await?, None, place)
            }
        };
        let hasher = hasher(&pool, hash_key).await?;
        Ok(Self { pool, hasher, place, file, epoch: 0 })
    }

    /// Opens the SQLite file that has replaced this one.
    pub(super) async fn open_again(&self, url: &Secret, hash_key: Option<&Secret>) -> Result<Self> {
        let (pool, file) = open_sqlite(url).await?;
        let hasher = hasher(&pool, hash_key).await?;
        let (place, epoch) = (self.place.clone(), self.epoch + 1);
        Ok(Self { pool, hasher, place, file: Some(file), epoch })
    }
}

async fn hasher(pool: &AnyPool, hash_key: Option<&Secret>) -> Result<Hasher> {
    Ok(match hash_key {
        Some(key) => Hasher::new(key),
        None => Hasher::new(&with_timeout(own_hash_key(pool)).await?),
    })
}

/// Opens a file that exists.
async fn open_sqlite(url: &Secret) -> Result<(AnyPool, Arc<DatabaseFile>)> {
    let options = file(url.expose())?;
    let url = options.to_url_lossy();
    let path = options.get_filename().to_owned();
    // First: if it is replaced meanwhile, the next look notices.
    let file = DatabaseFile::find(path.clone()).await.map_err(|error| {
        StoreError::Unavailable(format!("cannot use the file {}: {error}", path.display()))
    })?;
    let file = Arc::new(file);
    let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(OPEN_BUSY_TIMEOUT);
    let migrated = timeout(MIGRATION_TIMEOUT, migrate_sqlite(&options)).await;
    migrated
        .unwrap_or_else(|_| Err(sqlx::Error::PoolTimedOut.into()))
        .map_err(|error| in_file(&path, error))?;
    let connected = file.clone();
    let pool = pool(SQLITE_CONNECTIONS_MAX)
        .after_connect(move |connection, _| Box::pin(begin_sqlite(connection, connected.clone())))
        .after_release(|connection, _| Box::pin(async move { Ok(is_sound(connection).await) }));
    Ok((pool.connect_lazy_with(AnyConnectOptions::from_url(&url)?), file))
}

/// Makes a new connection ready for use. SQLite opens the file by its path, and its log at the
/// first read. A connection to another file than this one must not even read: SQLite would take
/// the log of the old file for the new one's.
async fn begin_sqlite(
    connection: &mut AnyConnection,
    file: Arc<DatabaseFile>,
) -> Result<(), sqlx::Error> {
    file.must_be_same().await?;
    connection.execute(SQLITE_SETTINGS).await?;
    connection.execute(FIRST_READ).await?;
    Ok(file.note_companions().await?)
}

/// Returns whether a connection may be used again. When a disk is full or fails, SQLite ends the
/// transaction by itself, and sqlx's own rollback then fails. Such a connection would count as in a
/// transaction for ever, and refuse every other. One that cannot read is of no use either.
async fn is_sound(connection: &mut AnyConnection) -> bool {
    // After a rollback that is under way.
    let can_read = connection.execute(FIRST_READ).await.is_ok();
    can_read && !connection.is_in_transaction()
}

/// Returns the path of the file that a `sqlite:` URL names.
pub(super) fn path(url: &str) -> Result<PathBuf> {
    Ok(file(url)?.get_filename().to_owned())
}

/// Returns the file of a URL by its full path. Relative paths start at the working directory.
pub(super) fn file(url: &str) -> Result<SqliteConnectOptions> {
    let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
    if path.is_empty() || path == ":memory:" || path.contains('?') {
        return Err(StoreError::InvalidUrl(
            "write `sqlite://` and the path of a file, such as `sqlite://trunkline.db`".to_owned(),
        ));
    }
    let options = SqliteConnectOptions::from_str(url).map_err(invalid_url)?;
    let path = std::path::absolute(options.get_filename());
    let path = path.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    // Through its URL, since the pool gets it so.
    let url = SqliteConnectOptions::new().filename(path).to_url_lossy();
    SqliteConnectOptions::from_url(&url).map_err(invalid_url)
}

/// Creates the file, if it is missing, readable by its owner only.
fn create_private(path: &Path) -> Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let cause = format!("cannot create the file {}: {error}", path.display());
            Err(StoreError::Unavailable(format!("{cause}; {URL_HINT}")))
        }
        _ => Ok(()),
    }
}

/// sqlx has no migration lock for SQLite, so this transaction serialises migrations.
async fn migrate_sqlite(options: &SqliteConnectOptions) -> Result<()> {
    // Switching to the write-ahead log does not wait for others that open the file.
    let mut connection = loop {
        match options.connect().await {
            Err(error) if is_busy(&error) => sleep(RETRY_DELAY).await,
            outcome => break outcome?,
        }
    };
    let mut transaction = connection.begin_with(DatabaseKind::Sqlite.begin_write()).await?;
    // Not `run`: its future is not `Send`.
    migrator().run_direct(None, &mut *transaction, false).await?;
    transaction.commit().await?;
    Ok(connection.close().await?)
}

/// Names the file in an error about it, and what to do if it cannot be written.
pub(super) fn in_file(path: &Path, error: StoreError) -> StoreError {
    with_place(&format!("cannot use the file {}", path.display()), with_hint(error))
}

fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.and_then(|code| code.parse::<u32>().ok()).is_some_and(|code| code & 0xff == SQLITE_BUSY)
}

/// Returns host and database, such as `PostgreSQL at db.example:5432, database trunkline`.
fn postgres_place(options: &PgConnectOptions) -> String {
    let place = match options.get_socket() {
        Some(socket) => format!("PostgreSQL at {}", socket.display()),
        None => format!("PostgreSQL at {}:{}", options.get_host(), options.get_port()),
    };
    match options.get_database() {
        Some(database) => format!("{place}, database {database}"),
        None => place,
    }
}

async fn open_postgres(
    url: &Secret,
    options: &PgConnectOptions,
    missing: Missing,
    place: &str,
) -> Result<AnyPool> {
    migrate_postgres(options, missing, place)
        .await
        .map_err(|error| with_place(&format!("cannot use {place}"), error))?;
    let pool = pool(POSTGRES_CONNECTIONS_MAX)
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(POSTGRES_SETTINGS).await.map(drop) })
        })
        .after_release(|connection, _| {
            // sqlx pings without a timeout: a silent database would hold all connections.
            Box::pin(async move {
                let alive = timeout(ALIVE_TIMEOUT, connection.ping()).await;
                alive.map_err(|_| sqlx::Error::PoolTimedOut)??;
                Ok(!connection.is_in_transaction())
            })
        });
    Ok(pool.connect_lazy_with(AnyConnectOptions::from_str(url.expose()).map_err(invalid_url)?))
}

async fn migrate_postgres(options: &PgConnectOptions, missing: Missing, place: &str) -> Result<()> {
    let mut connection = with_timeout(options.connect()).await?;
    let tables = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";
    if missing == Missing::Refuse
        && !with_timeout(sqlx::query_scalar::<_, bool>(tables).fetch_one(&mut connection)).await?
    {
        with_timeout(connection.close()).await?;
        return Err(NoStore::Missing(place.to_owned()).into());
    }
    // A connection of its own, which releases the migration lock when it closes.
    match timeout(MIGRATION_TIMEOUT, migrator().run_direct(None, &mut connection, false)).await {
        Ok(outcome) => outcome?,
        Err(_) => {
            let text = format!("its migrations did not end in {MIGRATION_TIMEOUT:?}");
            return Err(StoreError::Unavailable(text));
        }
    }
    with_timeout(connection.close()).await
}

fn migrator() -> Migrator {
    let migrations = MIGRATIONS.map(|(version, description, sql)| {
        let sql = SqlStr::from_static(sql);
        Migration::new(version, description.into(), MigrationType::Simple, sql, false)
    });
    let mut migrator = Migrator::with_migrations(migrations.into());
    // A newer version of the gateway may have used this database before.
    migrator.set_ignore_missing(true);
    migrator
}

fn pool(connections_max: u32) -> AnyPoolOptions {
    AnyPoolOptions::new().max_connections(connections_max).acquire_timeout(ACQUIRE_TIMEOUT)
}

/// Returns the store's own hash key, which is created once.
async fn own_hash_key(pool: &AnyPool) -> Result<Secret> {
    let made = Alphanumeric.sample_string(&mut rand::rng(), SECRET_LEN);
    sqlx::query(
        "INSERT INTO secrets (name, value) VALUES ('hash_key', $1) ON CONFLICT (name) DO NOTHING",
    )
    .bind(made)
    .execute(pool)
    .await?;
    let key = sqlx::query_scalar("SELECT value FROM secrets WHERE name = 'hash_key'");
    Ok(Secret::new(key.fetch_one(pool).await?))
}

fn with_place(place: &str, error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(cause) => StoreError::Unavailable(format!("{place}: {cause}")),
        StoreError::Corrupt(cause) => StoreError::Corrupt(format!("{place}: {cause}")),
        other => other,
    }
}

/// Adds what to do about a file that cannot be written.
fn with_hint(error: StoreError) -> StoreError {
    match error {
        StoreError::Unavailable(cause)
            if cause.contains("readonly") || cause.contains("unable to open") =>
        {
            StoreError::Unavailable(format!("{cause}; {URL_HINT}"))
        }
        other => other,
    }
}

/// The parsers' messages repeat nothing of the URL.
fn invalid_url(error: sqlx::Error) -> StoreError {
    let hint = "in a password, write `%40` for `@`, `%3A` for `:`, `%2F` for `/`, `%23` for `#`";
    StoreError::InvalidUrl(format!("{error}; {hint}"))
}

#[cfg(test)]
#[path = "tests/open.rs"]
mod tests;
