//! A replica starts at once, however many sessions have ended, and still refuses their tokens.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::Instant;

use crate::replicas::{is_good, setup};
use crate::support::mcp_legacy::Session;
use crate::support::{Api, Database, Postgres, eventually, on_both};

/// The promised time from the start of the process until it is ready.
const START: Duration = Duration::from_secs(2);
/// A whole session token's life from now.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Returns how many sessions have ended before. Ten million make the promise's own measure.
fn ended_before() -> u32 {
    let number = std::env::var("TRUNKLINE_ENDED_SESSIONS");
    number.map_or(100_000, |text| text.parse().unwrap())
}

/// Writes that many sessions as ended, as fast as the database can.
async fn end_many(database: &Database, number: u32) {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
    let expires = jiff::Timestamp::now().as_millisecond() + DAY_MS;
    let (numbers, id) = if database.dir().is_some() {
        let next = format!("SELECT i + 1 FROM n WHERE i < {number}");
        (format!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL {next})"), "printf('%032x', i)")
    } else {
        let numbers = format!("WITH n (i) AS (SELECT * FROM generate_series(1, {number}))");
        (numbers, "lpad(to_hex(i), 32, '0')")
    };
    // A thousand in each change.
    let text = format!(
        "{numbers} INSERT INTO ended_sessions (id, expires, revision) \
         SELECT {id}, {expires} + i % 1000, i / 1000 FROM n"
    );
    sqlx::query(AssertSqlSafe(text)).execute(&mut connection).await.unwrap();
    sqlx::query("UPDATE revisions SET value = $1 WHERE name = 'sessions'")
        .bind(i64::from(number / 1000 + 1))
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
}

/// Returns the most memory that a process has used, in megabytes.
fn memory_peak(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn a_replica_starts_at_once_after_many_ended_sessions() {
    on_both(async |database| {
        let began = Instant::now();
        let first = setup(database).without_servers().serve().await;
        let usual = began.elapsed();
        let api = Api::new(first.addr, None);
        let [ended, open] = [Session::open(&api, "/mcp").await, Session::open(&api, "/mcp").await];
        assert_eq!(ended.delete().await.status, 204);
        end_many(database, ended_before()).await;
        let began = Instant::now();
        let late = setup(database).without_servers().serve().await;
        let took = began.elapsed();
        let api = Api::new(late.addr, None);
        assert!(!is_good(&ended.at(&api, "/mcp")).await);
        assert!(is_good(&open.at(&api, "/mcp")).await);
        let memory = memory_peak(late.pid());
        eprintln!("{} ended: ready in {took:?}, {memory} MB", ended_before());
        // A busy machine takes its time, ended sessions or not.
        assert!(took < START.max(4 * usual), "{took:?}, and {usual:?} without");
        // An end after the start is followed, and reaches the late one too.
        assert_eq!(open.delete().await.status, 204);
        let there = open.at(&api, "/mcp");
        eventually("refused", async || (!is_good(&there).await).then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_from_before_the_start_is_not_trusted_while_the_store_is_away() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let setup = || setup(&database).without_servers();
    let first = setup().start().await;
    let [ended, open, asked] = [
        Session::open(&first, "/mcp").await,
        Session::open(&first, "/mcp").await,
        Session::open(&first, "/mcp").await,
    ];
    assert_eq!(ended.delete().await.status, 204);
    let late = setup().start().await;
    assert!(is_good(&asked.at(&late, "/mcp")).await);
    server.down();
    let code = json!("auth_unavailable");
    for session in [&ended, &open] {
        let answer = session.at(&late, "/mcp").ask("ping", json!({})).await;
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["data"]["code"]), (&json!(503), &code), "{error}");
    }
    // Those that were asked about before, and the replica's own, go on.
    assert!(is_good(&asked.at(&late, "/mcp")).await && is_good(&open).await);
    let own = Session::open(&late, "/mcp").await;
    assert!(is_good(&own).await);
    server.up();
    eventually("asked again", async || {
        let answer = open.at(&late, "/mcp").ask("ping", json!({})).await;
        answer.json()["error"].is_null().then_some(())
    })
    .await;
    assert!(!is_good(&ended.at(&late, "/mcp")).await);
    first.stop().await;
    late.stop().await;
}

#[tokio::test]
async fn a_tenant_asks_about_one_unknown_session_at_a_time() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let setup = || setup(&database).without_servers();
    let (first, late) = (setup().start().await, setup().start().await);
    let mut sessions = vec![];
    for _ in 0..10 {
        sessions.push(Session::open(&first, "/mcp").await.at(&late, "/mcp"));
    }
    let mut hanging = PgConnection::connect(database.url.expose()).await.unwrap();
    hanging.execute("BEGIN; LOCK TABLE ended_sessions IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let mut watching = PgConnection::connect(database.url.expose()).await.unwrap();
    let asks = sessions.iter().map(|session| session.ask("ping", json!({})));
    let mut asking = std::pin::pin!(join_all(asks));
    let mut under_way_max = 0;
    let answers = loop {
        tokio::select! {
            answers = &mut asking => break answers,
            under_way = questions(&mut watching) => under_way_max = under_way_max.max(under_way),
        }
    };
    // There are two permits, so another tenant would have found one.
    assert_eq!(under_way_max, 1);
    for answer in answers {
        let error = &answer.json()["error"];
        assert_eq!(error["data"]["code"], "auth_unavailable", "{error}");
    }
    hanging.execute("ROLLBACK").await.unwrap();
    for session in &sessions {
        assert!(is_good(session).await);
    }
    first.stop().await;
    late.stop().await;
}

/// Returns how many questions about a session wait.
async fn questions(connection: &mut PgConnection) -> i64 {
    let waiting = sqlx::query_scalar(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND wait_event_type = 'Lock' AND query LIKE '%ended_sessions WHERE id%'",
    );
    waiting.fetch_one(connection).await.unwrap()
}
