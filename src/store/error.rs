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
    /// The database refused what a row says. Another row may be accepted.
    #[error("the store has refused a value: {0}")]
    InvalidValue(String),
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
                match cause.code() {
                    Some(code) if is_temporary(&code) => Self::Unavailable(text),
                    Some(code) if is_about_value(&code) => Self::InvalidValue(text),
                    _ => Self::Corrupt(text),
                }
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
    // (53), operator intervention (57), system (58), no such database, a standby, no rights.
    let classes = ["08", "28", "40", "53", "57", "58"];
    if code.len() == 5 {
        return classes.iter().any(|class| code.starts_with(class))
            || ["3D000", "25006", "42501"].contains(&code);
    }
    // SQLite has the kind of error in the low byte: permission, busy, locked, read-only, input or
    // output, full, cannot open.
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 3 | 5 | 6 | 8 | 10 | 13 | 14))
}

/// Returns whether a database error is about a value of a row, and about nothing else.
fn is_about_value(code: &str) -> bool {
    if code.len() == 5 {
        // PostgreSQL: data (22), constraints (23), an entry too long for an index.
        return code.starts_with("22") || code.starts_with("23") || code == "54000";
    }
    // SQLite: too big, constraint, mismatch.
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 18..=20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_recognised() {
        for code in
            ["08006", "57P01", "53300", "40P01", "28P01", "42501", "5", "261", "10", "778", "14"]
        {
            assert!(is_temporary(code), "{code}");
        }
        for code in ["42601", "23505", "22001", "1", "11", "19", "2067", "", "HY000"] {
            assert!(!is_temporary(code), "{code}");
        }
    }

    #[test]
    fn errors_of_the_store_are_not_taken_for_errors_of_a_row() {
        for code in ["22003", "22021", "23505", "54000", "18", "19", "2067"] {
            assert!(is_about_value(code), "{code}");
        }
        for code in ["42501", "25006", "53100", "42P01", "54001", "8", "13", "1", "", "HY000"] {
            assert!(!is_about_value(code), "{code}");
        }
    }
}
