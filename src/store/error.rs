//! Errors of the store.

use sqlx::migrate::MigrateError;

use super::KeyOwner;
use super::configured::NoStore;
use crate::common::ids::{InvalidId, ServerId};
use crate::pins::Hash;

/// No message contains a password or a key.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store's URL cannot be used: {0}")]
    InvalidUrl(String),
    /// Temporary: the database cannot be reached, is too slow or overloaded.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    #[error(transparent)]
    NoStore(#[from] NoStore),
    #[error("there is a {0} already")]
    AlreadyExists(String),
    #[error("there is no {0} in the store")]
    NotFound(String),
    #[error("{0} has {max} active keys already; revoke one first", max = .0.active_keys_max())]
    TooManyKeys(KeyOwner),
    /// The definition has changed, is gone, or is approved already.
    #[error(
        "server `{server}` has no definition {hash} that is held back: it may have changed again; \
         `trunkline pin list {server}` shows what it has now"
    )]
    NotHeld { server: ServerId, hash: Hash },
    #[error("more than {0} rows; ask for a shorter time, or for one tenant")]
    TooManyRows(usize),
    /// The database contains data that this version cannot read, or refused a statement.
    #[error("the store has an error: {0}")]
    Corrupt(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
        match &error {
            Io(_) | Tls(_) | Protocol(_) | PoolClosed | WorkerCrashed => {
                Self::Unavailable(error.to_string())
            }
            PoolTimedOut => Self::Unavailable("no connection in time".to_owned()),
            sqlx::Error::Database(cause) => {
                let text = cause.to_string();
                let is_temporary = cause.code().is_some_and(|code| is_temporary(&code));
                if is_temporary { Self::Unavailable(text) } else { Self::Corrupt(text) }
            }
            _ => Self::Corrupt(error.to_string()),
        }
    }
}

/// For ids in the database. Those of requests are parsed before.
impl From<InvalidId> for StoreError {
    fn from(error: InvalidId) -> Self {
        Self::Corrupt(error.to_string())
    }
}

impl From<MigrateError> for StoreError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Execute(error) => error.into(),
            MigrateError::ExecuteMigration(error, version) => match error.into() {
                Self::Corrupt(text) => Self::Corrupt(format!("migration {version}: {text}")),
                other => other,
            },
            MigrateError::VersionMismatch(version) => Self::Corrupt(format!(
                "migration {version} differs from this version's: is it another program's database?"
            )),
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// Returns whether a database error is about its state, not about the statement.
fn is_temporary(code: &str) -> bool {
    // PostgreSQL: connection (08), authorization (28), conflicts of transactions (40), resources
    // (53), operator intervention (57), system (58), no such database, a standby.
    let classes = ["08", "28", "40", "53", "57", "58"];
    if code.len() == 5 {
        return classes.iter().any(|class| code.starts_with(class))
            || ["3D000", "25006"].contains(&code);
    }
    // SQLite has the kind of error in the low byte: permission, busy, locked, read-only, input or
    // output, full, cannot open.
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 3 | 5 | 6 | 8 | 10 | 13 | 14))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_recognised() {
        for code in
            ["08006", "57P01", "57014", "53300", "40P01", "28P01", "5", "261", "10", "778", "14"]
        {
            assert!(is_temporary(code), "{code}");
        }
        for code in ["42601", "23505", "22001", "1", "11", "19", "2067", "", "HY000"] {
            assert!(!is_temporary(code), "{code}");
        }
    }
}
