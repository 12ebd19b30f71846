//! The file of a SQLite store, deleted or replaced while it is open: by one that is not whole, by
//! another program's, or by itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use trunkline::common::policy::Policy;
use trunkline::config::Secret;
use trunkline::store::{QUERY_TIMEOUT, Store};

use crate::store::{root, tenant};
use crate::support::within;

const SOON: Duration = Duration::from_secs(10);

/// An open store with the tenant `old`, a copy of its file, and then the tenant `new`.
struct Files {
    dir: TempDir,
    store: Store,
}

impl Files {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        Self::at(dir, "db").await
    }

    async fn at(dir: TempDir, name: &str) -> Self {
        let url = url(&dir.path().join(name));
        let store = Store::open(&url, None).await.unwrap();
        store.add_tenant(&root(), &tenant("old"), &Policy::new()).await.unwrap();
        let mut connection = AnyConnection::connect(url.expose()).await.unwrap();
        let copy = format!("VACUUM INTO '{}'", dir.path().join("backup").display());
        connection.execute(AssertSqlSafe(copy)).await.unwrap();
        connection.close().await.unwrap();
        store.add_tenant(&root(), &tenant("new"), &Policy::new()).await.unwrap();
        Self { dir, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Waits until the store says this of its file.
    async fn says(&self, text: &str) {
        let is_said = async || {
            let outcome = self.store.tenants().await;
            let tenants = outcome.as_ref().map(|tenants| tenants.len());
            assert!(!matches!(tenants, Ok(0)), "an empty store was opened");
            outcome.err().filter(|error| error.to_string().contains(text)).map(drop)
        };
        within(SOON, text, is_said).await;
    }

    async fn has_tenants(&self, count: usize) {
        let has = async || {
            let tenants = self.store.tenants().await;
            tenants.is_ok_and(|tenants| tenants.len() == count).then_some(())
        };
        within(SOON, "tenants", has).await;
    }

    /// Returns the log that was renamed.
    fn log_aside(&self) -> Option<PathBuf> {
        let files = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_log = |path: &PathBuf| path.to_string_lossy().contains("db-wal.replaced-");
        files.into_iter().find(is_log)
    }
}

fn url(path: &Path) -> Secret {
    Secret::new(format!("sqlite://{}", path.display()))
}

/// Opens a file anew, as another program does, and returns the number of its tenants.
async fn tenants_of(path: &Path) -> usize {
    let mut connection = AnyConnection::connect(url(path).expose()).await.unwrap();
    let check = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut connection);
    let check: String = check.await.unwrap();
    assert_eq!(check, "ok");
    let count = sqlx::query_scalar("SELECT COUNT(*) FROM tenants").fetch_one(&mut connection);
    let count: i64 = count.await.unwrap();
    connection.close().await.unwrap();
    usize::try_from(count).unwrap()
}

#[tokio::test]
async fn a_file_that_is_still_being_written_is_not_opened() {
    let files = Files::new().await;
    let whole = fs::read(files.path("backup")).unwrap();
    fs::remove_file(files.path("db")).unwrap();
    // In place, as `cp` writes: nothing, then a part, then another part.
    for len in [0, 4096, whole.len() / 2, whole.len() - 4096] {
        fs::write(files.path("db"), &whole[..len]).unwrap();
        files.says("no longer changes").await;
        files.says("not whole").await;
        assert!(fs::read(files.path("db")).unwrap() == whole[..len], "the file was changed");
    }
    fs::write(files.path("db"), &whole).unwrap();
    files.has_tenants(1).await;
    assert_eq!(tenants_of(&files.path("db")).await, 1);
}

#[tokio::test]
async fn a_file_that_comes_back_after_a_bad_one_is_used_again() {
    let files = Files::new().await;
    files.rename("db", "away");
    fs::write(files.path("db"), "no database".repeat(999)).unwrap();
    files.says("is not a database").await;
    files.rename("away", "db");
    files.has_tenants(2).await;
    files.store.add_tenant(&root(), &tenant("newer"), &Policy::new()).await.unwrap();
    assert_eq!(tenants_of(&files.path("db")).await, 3);
}

#[tokio::test]
async fn a_file_that_comes_back_after_another_programs_has_its_log() {
    let files = Files::new().await;
    let backup = files.path("backup");
    let mut connection = AnyConnection::connect(url(&backup).expose()).await.unwrap();
    connection.execute("UPDATE _sqlx_migrations SET checksum = x'00'").await.unwrap();
    connection.close().await.unwrap();
    files.rename("db", "away");
    files.rename("backup", "db");
    files.says("another program's database").await;
    files.rename("away", "db");
    files.has_tenants(2).await;
    files.store.add_tenant(&root(), &tenant("newer"), &Policy::new()).await.unwrap();
    assert_eq!(tenants_of(&files.path("db")).await, 3);
}

#[tokio::test]
async fn nobody_waits_while_a_file_is_opened_for_long() {
    let files = Files::new().await;
    let backup = files.path("backup");
    let mut other = AnyConnection::connect(url(&backup).expose()).await.unwrap();
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    files.rename("backup", "db");
    files.says("was replaced").await;
    // Longer than any query may take.
    let over = Instant::now() + QUERY_TIMEOUT + Duration::from_secs(1);
    while Instant::now() < over {
        let began = Instant::now();
        files.store.tenants().await.unwrap_err();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        sleep(Duration::from_millis(50)).await;
    }
    other.execute("ROLLBACK").await.unwrap();
    files.has_tenants(1).await;
}

#[tokio::test]
async fn the_last_changes_of_a_replaced_file_are_kept() {
    let files = Files::new().await;
    files.rename("db", "away");
    files.rename("backup", "db");
    files.has_tenants(1).await;
    // The file alone may have nothing yet: all of it may be in the log.
    fs::rename(files.log_aside().expect("the log is gone"), files.path("away-wal")).unwrap();
    assert_eq!(tenants_of(&files.path("away")).await, 2);
    assert_eq!(tenants_of(&files.path("db")).await, 1);
}

#[tokio::test]
async fn the_log_of_a_file_behind_a_link_is_kept_apart_too() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("data")).unwrap();
    let target = dir.path().join("data/file");
    fs::write(&target, "").unwrap();
    symlink(&target, dir.path().join("db")).unwrap();
    let files = Files::at(dir, "db").await;
    files.rename("backup", "data/file");
    files.has_tenants(1).await;
    assert_eq!(tenants_of(&target).await, 1);
}
