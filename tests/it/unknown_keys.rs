//! Unknown keys cost the store little, whoever sends how many of them.

use futures_util::future::join_all;
use sqlx::{Connection, Executor, PgConnection};
use trunkline::common::keys::ApiKey;
use trunkline::tenants::{Directory, KeyError};

use crate::support::{Database, Postgres, Setup, eventually, on_both};

/// Questions to the store at once.
const QUERIES_MAX: i64 = 4;

async fn directory(database: &Database) -> Directory {
    let config = Setup::new().without_anonymous().with_store(&database.url).config();
    Directory::open(database.open().await, &config, None).await.unwrap()
}

#[tokio::test]
async fn the_same_unknown_key_is_looked_up_once() {
    on_both(async |database| {
        let directory = directory(database).await;
        let key = ApiKey::generate();
        assert_eq!(directory.authenticate(&key).await.err(), Some(KeyError::Invalid));
        // Whoever asks now gets no answer.
        directory.store().close().await;
        for _ in 0..99 {
            assert_eq!(directory.authenticate(&key).await.err(), Some(KeyError::Invalid));
        }
        let other = directory.authenticate(&ApiKey::generate()).await;
        assert_eq!(other.err(), Some(KeyError::Unavailable));
    })
    .await;
}

#[tokio::test]
async fn a_store_that_hangs_is_asked_about_a_few_at_once_and_nobody_is_told_that_its_key_is_wrong()
{
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let directory = directory(&database).await;
    let mut hanging = PgConnection::connect(database.url.expose()).await.unwrap();
    hanging.execute("BEGIN; LOCK TABLE keys IN ACCESS EXCLUSIVE MODE").await.unwrap();

    let mut watching = PgConnection::connect(database.url.expose()).await.unwrap();
    let keys: Vec<_> = (0..100).map(|_| ApiKey::generate()).collect();
    let mut asking = std::pin::pin!(join_all(keys.iter().map(|key| directory.authenticate(key))));
    let mut under_way_max = 0;
    let outcomes = loop {
        tokio::select! {
            outcomes = &mut asking => break outcomes,
            under_way = questions(&mut watching) => under_way_max = under_way_max.max(under_way),
        }
    };
    assert_eq!(under_way_max, QUERIES_MAX);
    assert!(outcomes.iter().all(|outcome| outcome.as_ref().err() == Some(&KeyError::Unavailable)));

    hanging.execute("ROLLBACK").await.unwrap();
    eventually("asked again", async || {
        let outcome = directory.authenticate(&ApiKey::generate()).await;
        (outcome.err() == Some(KeyError::Invalid)).then_some(())
    })
    .await;
}

/// How many look-ups of a key wait.
async fn questions(connection: &mut PgConnection) -> i64 {
    let waiting = sqlx::query_scalar(
        "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND wait_event_type = 'Lock' AND query LIKE '%FROM keys WHERE id%'",
    );
    waiting.fetch_one(connection).await.unwrap()
}
