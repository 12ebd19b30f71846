//! Usage is written in time and old rows are deleted, neither in the other's way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::Instant;
use trunkline::common::ids::ServerId;
use trunkline::common::usage::Counts;
use trunkline::store::{Store, UsageKey, UsageOf, UsageQuery};
use trunkline::telemetry::metrics::Metrics;
use trunkline::tenants::Directory;
use trunkline::tenants::usage_writer::UsageWriter;

use crate::store::{tenant, tenant_id};
use crate::support::{Database, Postgres, Setup, eventually, on_both};

const ONE: Counts = Counts {
    calls: 1,
    errors: 0,
    tool_errors: 0,
    queue_us: 0,
    backend_us: 0,
    bytes_in: 0,
    bytes_out: 0,
};

/// All tenants of a store; `acme` is one of them.
async fn directory(database: &Database) -> Arc<Directory> {
    let setup = Setup::new().with_store(&database.url).with_tenant("acme", "servers = [\"std\"]");
    Arc::new(Directory::open(database.open().await, &setup.config(), None).await.unwrap())
}

/// Keeps the books for as long as something else takes.
async fn kept<T>(directory: &Arc<Directory>, work: impl Future<Output = T>) -> T {
    let usage = Metrics::new().usage();
    let mut books = UsageWriter::new(directory.store().clone(), directory.clone(), usage);
    tokio::select! {
        () = books.run() => unreachable!("it is never done"),
        done = work => done,
    }
}

/// Calls that are written down, those of long ago included.
async fn written(store: &Store) -> u64 {
    let all = UsageQuery { from: 0, to: i64::MAX, whose: UsageOf::Everybody, by_minute: false };
    store.usage(&all).await.unwrap().iter().map(|total| total.counts.calls).sum()
}

#[tokio::test]
async fn what_is_new_does_not_wait_until_what_is_old_is_gone() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let directory = directory(&database).await;
    // Whoever takes out what is old waits for this.
    let mut holding = PgConnection::connect(database.url.expose()).await.unwrap();
    holding.execute("BEGIN; LOCK TABLE audit IN ACCESS EXCLUSIVE MODE").await.unwrap();

    let acme = directory.tenant(&tenant("acme")).unwrap();
    let server = ServerId::parse("std").unwrap();
    let use_and_wait = async |calls: u64| {
        acme.meter.add(&server, "uuid", ONE);
        let is_written = async || (written(directory.store()).await == calls).then(Instant::now);
        eventually("written", is_written).await
    };
    let took = kept(&directory, async {
        let first = use_and_wait(1).await;
        use_and_wait(2).await;
        use_and_wait(3).await - first
    });
    // Every two seconds. With the time that each attempt to take something out is given it would be
    // ten.
    let took = took.await;
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[tokio::test]
async fn what_is_old_is_taken_out() {
    on_both(async |database| {
        let directory = directory(database).await;
        let row = |minute| {
            let (tenant, server) = (tenant_id("acme"), ServerId::parse("std").unwrap());
            (UsageKey { minute, tenant, server, tool: "uuid".to_owned() }, ONE)
        };
        let now = jiff::Timestamp::now().as_millisecond();
        let store = directory.store();
        store.add_usage("r1", 1, &BTreeMap::from([row(0), row(now)])).await.unwrap();
        let taken_out = async || (written(store).await == 1).then_some(());
        kept(&directory, eventually("taken out", taken_out)).await;
    })
    .await;
}

/// PostgreSQL has no text with this character in it, and will never have that row.
#[tokio::test]
async fn a_row_that_can_never_be_written_blocks_no_other_and_is_counted() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let directory = directory(&database).await;
    let usage = Metrics::new().usage();
    let mut writer = UsageWriter::new(directory.store().clone(), directory.clone(), usage.clone());
    let acme = directory.tenant(&tenant("acme")).unwrap();
    let server = ServerId::parse("std").unwrap();
    for tool in ["a", "b", "b\0", "c", "d"] {
        acme.meter.add(&server, tool, ONE);
    }
    writer.write().await.unwrap();
    assert_eq!(written(directory.store()).await, 4);
    assert_eq!((usage.lost_calls.get(), usage.unwritten_rows.get()), (1, 0));
}

/// A trigger stands for whatever refuses rows: SQLite reports a constraint.
async fn refuse_rows(database: &Database, which: &str) -> AnyConnection {
    let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
    let trigger = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON tenant_usage WHEN {which} \
         BEGIN SELECT RAISE(ABORT, 'refused by a rule'); END"
    );
    connection.execute(AssertSqlSafe(trigger)).await.unwrap();
    connection
}

#[tokio::test]
async fn a_store_that_refuses_every_row_loses_none() {
    let database = Database::sqlite();
    let directory = directory(&database).await;
    let usage = Metrics::new().usage();
    let mut writer = UsageWriter::new(directory.store().clone(), directory.clone(), usage.clone());
    let acme = directory.tenant(&tenant("acme")).unwrap();
    let server = ServerId::parse("std").unwrap();
    let mut connection = refuse_rows(&database, "TRUE").await;
    for write in 1..=3 {
        for tool in 0..30 {
            acme.meter.add(&server, &format!("tool{tool}"), ONE);
        }
        let error = writer.write().await.unwrap_err();
        assert!(error.to_string().contains("refused by a rule"), "{write}: {error}");
        assert_eq!(usage.lost_calls.get(), 0);
        assert!(usage.unwritten_rows.get() >= 30, "{}", usage.unwritten_rows.get());
    }
    connection.execute("DROP TRIGGER refuse").await.unwrap();
    writer.write().await.unwrap();
    assert_eq!((written(directory.store()).await, usage.lost_calls.get()), (90, 0));
    assert_eq!(usage.unwritten_rows.get(), 0);
}

#[tokio::test]
async fn many_rows_that_are_refused_first_do_not_block_the_others() {
    let database = Database::sqlite();
    let directory = directory(&database).await;
    let usage = Metrics::new().usage();
    let mut writer = UsageWriter::new(directory.store().clone(), directory.clone(), usage.clone());
    let acme = directory.tenant(&tenant("acme")).unwrap();
    let server = ServerId::parse("std").unwrap();
    let _connection = refuse_rows(&database, "NEW.tool LIKE 'bad%'").await;
    for tool in 0..25 {
        acme.meter.add(&server, &format!("bad{tool}"), ONE);
    }
    acme.meter.add(&server, "good", ONE);
    let mut writes = 1;
    while writer.write().await.is_err() {
        assert_eq!(usage.lost_calls.get(), 0);
        writes += 1;
    }
    assert!(writes <= 3, "{writes}");
    assert_eq!((written(directory.store()).await, usage.lost_calls.get()), (1, 25));
}
