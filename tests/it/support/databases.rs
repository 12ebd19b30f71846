//! New databases of both kinds.

use std::path::Path;

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use tempfile::TempDir;
use trunkline::config::Secret;
use trunkline::store::Store;

use super::Postgres;

/// An empty database.
pub struct Database {
    pub url: Secret,
    /// With SQLite, where its file is.
    dir: Option<TempDir>,
}

impl Database {
    pub fn sqlite() -> Self {
        let dir = TempDir::new().unwrap();
        let url = Secret::new(format!("sqlite://{}", dir.path().join("test.db").display()));
        Self { url, dir: Some(dir) }
    }

    pub async fn postgres(server: &Postgres) -> Self {
        Self { url: server.database().await, dir: None }
    }

    /// With SQLite, where its file is, alone.
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_ref().map(TempDir::path)
    }

    /// Changes it behind the store's back.
    pub async fn run(&self, statement: &str) {
        let mut connection = AnyConnection::connect(self.url.expose()).await.unwrap();
        connection.execute(AssertSqlSafe(statement)).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Opens it, as one replica of several.
    pub async fn open(&self) -> Store {
        Store::open(&self.url, None).await.unwrap()
    }
}

/// Runs a test on a new database of each kind; on PostgreSQL only where it is installed.
pub async fn on_both(test: impl AsyncFn(&Database)) {
    eprintln!("on SQLite");
    test(&Database::sqlite()).await;
    if let Some(server) = Postgres::shared() {
        eprintln!("on PostgreSQL");
        test(&Database::postgres(server).await).await;
    }
}
