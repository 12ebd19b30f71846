//! Looks whether a SQLite file is a store, before it is opened as one.

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::open::{OPEN_BUSY_TIMEOUT, file, in_file};
use super::{NoStore, Result, StoreError};
use crate::config::Secret;

/// Fails unless the file is a store. Does not change a file that is none.
pub(super) async fn must_be_store(options: &SqliteConnectOptions) -> Result<()> {
    let path = options.get_filename();
    let missing = || NoStore::Missing(path.display().to_string());
    if path.try_exists().is_ok_and(|exists| !exists) {
        return Err(missing().into());
    }
    let options = options.clone().busy_timeout(OPEN_BUSY_TIMEOUT);
    match is_store(&options, None).await.map_err(|error| in_file(path, error.into()))? {
        false => Err(missing().into()),
        true => Ok(()),
    }
}

/// Fails unless the file is a store from its first page to its last. Looks at the file alone,
/// unless a log came with it.
pub(super) async fn must_be_whole(url: &Secret, has_log: bool) -> Result<()> {
    let options = file(url.expose())?.busy_timeout(OPEN_BUSY_TIMEOUT).immutable(!has_log);
    let path = options.get_filename();
    let cause = match is_store(&options, Some("PRAGMA quick_check(1)")).await {
        Ok(true) => return Ok(()),
        Ok(false) => "it is empty, or no store".to_owned(),
        Err(error) => error.to_string(),
    };
    let text =
        format!("the file {} was replaced by one that is not whole: {cause}", path.display());
    Err(StoreError::Unavailable(format!("{text}; wait for its end, or restore a backup")))
}

/// Returns whether a file has the tables of a store, and passes the check. Changes nothing.
async fn is_store(
    options: &SqliteConnectOptions,
    check: Option<&'static str>,
) -> Result<bool, sqlx::Error> {
    let mut connection = options.connect().await?;
    let tables = "SELECT COUNT(*) FROM sqlite_master WHERE name = '_sqlx_migrations'";
    let tables: i64 = sqlx::query_scalar(tables).fetch_one(&mut connection).await?;
    if let Some(check) = check {
        let found: String = sqlx::query_scalar(check).fetch_one(&mut connection).await?;
        if found != "ok" {
            return Err(sqlx::Error::Protocol(found));
        }
    }
    connection.close().await?;
    Ok(tables > 0)
}
