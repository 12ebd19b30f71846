//! Opening: by many at once, by older versions, and what is said when it fails.

use std::os::unix::fs::PermissionsExt;
use std::pin::pin;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AnyConnection, ConnectOptions, Connection};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use trunkline::common::keys::ApiKey;
use trunkline::common::policy::Policy;
use trunkline::config::Secret;
use trunkline::store::{QUERY_TIMEOUT, Store, StoreError};

use crate::store::{root, tenant};
use crate::support::{Postgres, on_both};

#[tokio::test(flavor = "multi_thread")]
async fn many_replicas_open_a_new_database_at_once() {
    for _ in 0..3 {
        on_both(async |database| {
            let mut replicas = JoinSet::new();
            for _ in 0..8 {
                let url = database.url.clone();
                replicas.spawn(async move { Store::open(&url, None).await });
            }
            let stores: Result<Vec<Store>, _> = replicas.join_all().await.into_iter().collect();
            let stores = stores.unwrap();
            // They agree on the key that the store has made.
            let key = ApiKey::generate();
            let hashes = stores.iter().map(|store| store.hash(&key));
            assert!(hashes.collect::<Vec<_>>().windows(2).all(|two| two[0] == two[1]));
            stores[0].add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
            assert_eq!(stores[7].tenants().await.unwrap().len(), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_new_file_that_somebody_else_is_at_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    std::fs::write(&path, "").unwrap();
    let mut other = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let url = Secret::new(format!("sqlite://{}", path.display()));
    let mut opening = pin!(Store::open(&url, None));
    let a_while = Duration::from_millis(300);
    assert!(timeout(a_while, &mut opening).await.is_err(), "it did not wait");
    other.close().await.unwrap();
    opening.await.unwrap();
}

#[tokio::test]
async fn an_older_version_starts_on_a_newer_schema() {
    on_both(async |database| {
        database.open().await.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        for change in [
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, \
             execution_time) SELECT 9999, 'from the future', success, checksum, 1 \
             FROM _sqlx_migrations WHERE version = 1",
            "ALTER TABLE tenants ADD COLUMN colour TEXT",
            "ALTER TABLE keys ADD COLUMN shape TEXT DEFAULT 'round' NOT NULL",
        ] {
            sqlx::query(change).execute(&mut connection).await.unwrap();
        }
        connection.close().await.unwrap();
        let store = database.open().await;
        assert_eq!(store.tenants().await.unwrap().len(), 1);
        store.set_tenant(&root(), &tenant("acme"), &Policy::unlimited()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_file_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    let url = Secret::new(format!("sqlite://{}", path.display()));
    let store = Store::open(&url, None).await.unwrap();
    store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
    }
    store.close().await;
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

async fn failure(url: &str) -> StoreError {
    let began = Instant::now();
    let error = Store::open(&Secret::new(url.to_owned()), None).await.err().expect("a failure");
    assert!(began.elapsed() < 2 * QUERY_TIMEOUT, "{url} took {:?}", began.elapsed());
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("s3cret"), "{shown}");
    error
}

#[tokio::test]
async fn what_cannot_be_opened_is_named_without_its_password() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent/x.db");
    let error = failure(&format!("sqlite://{}", path.display())).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("cannot create the file") && text.contains("absent/x.db"), "{text}");
    assert!(text.ends_with("; `[store] url` says where else"), "{text}");

    let path = dir.path().join("text");
    std::fs::write(&path, "this is not a database, but it is long enough to look at".repeat(99))
        .unwrap();
    let text = failure(&format!("sqlite://{}", path.display())).await.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("not a database"), "{text}");

    let error = failure("postgres://u:hunter2@127.0.0.1:1/db").await;
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().contains("cannot use PostgreSQL at 127.0.0.1:1, database db"),
        "{error}"
    );
    let text = failure("postgres://u:s3cret@no-such-host.invalid/db").await.to_string();
    assert!(text.contains("no-such-host.invalid:5432"), "{text}");
    for url in ["postgres://u:hunter2#s3cret@h/db", "postgres://u:hunter2@h:s3cret/db"] {
        let error = failure(url).await;
        assert!(matches!(error, StoreError::InvalidUrl(_)), "{error:?}");
        assert!(error.to_string().contains("write `%40` for `@`"), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_database_are_told_apart() {
    let Some(server) = Postgres::shared() else { return };
    let url = server.database().await;
    let wrong = url.expose().replace("hunter2", "s3cret");
    let text = failure(&wrong).await.to_string();
    assert!(text.contains("password authentication failed for user \"trunkline\""), "{text}");
    let (server, _) = url.expose().rsplit_once('/').unwrap();
    let text = failure(&format!("{server}/absent")).await.to_string();
    assert!(text.contains("database \"absent\" does not exist"), "{text}");
}
