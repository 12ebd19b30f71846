//! PostgreSQL goes away under load and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trunkline::common::keys::ApiKey;

use crate::support::{Api, Postgres, Setup, refused, within};

const SOON: Duration = Duration::from_secs(30);

/// Returns how long the database is away. `.ci/long` makes it a minute.
fn outage() -> Duration {
    let seconds = std::env::var("TRUNKLINE_OUTAGE_SECONDS");
    Duration::from_secs(seconds.map_or(6, |text| text.parse().unwrap()))
}

async fn calls(api: &Api) -> u64 {
    let usage = api.get("/v1/usage").await;
    if usage.status != 200 {
        return 0;
    }
    let usage = usage.json()["usage"].as_array().unwrap().clone();
    usage.iter().map(|row| row["calls"].as_u64().unwrap()).sum()
}

async fn is_not_noticed(stop: fn(&Postgres), start: fn(&Postgres)) {
    let Some(postgres) = Postgres::start() else { return };
    let gateway = Setup::new()
        .without_anonymous()
        .std()
        .with_tenant("acme", "servers = [\"std\"]")
        .with_store(&postgres.database().await)
        .start()
        .await;
    let known = gateway.as_tenant("acme").await;
    assert_eq!(known.call("std", "uuid", "").await.status, 200);
    let made = Arc::new(AtomicU64::new(1));
    let over = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for _ in 0..4 {
        let (known, made, over) = (known.clone(), made.clone(), over.clone());
        load.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let answer = known.call("std", "uuid", "").await;
                assert_eq!(answer.status, 200, "{answer:?}");
                made.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(2)).await;
            }
        });
    }

    stop(&postgres);
    let back = Instant::now() + outage();
    while Instant::now() < back {
        let unknown = gateway.with_key(ApiKey::generate().expose());
        let answer = unknown.call("std", "uuid", "").await;
        assert_eq!(answer.problem(), refused(503, "auth_unavailable").for_now());
        assert_eq!(answer.retry_after(), Some(1));
    }
    start(&postgres);
    within(SOON, "asked again", async || {
        let unknown = gateway.with_key(ApiKey::generate().expose());
        (unknown.call("std", "uuid", "").await.status == 401).then_some(())
    })
    .await;
    over.store(true, Ordering::Relaxed);
    load.join_all().await;
    let made = made.load(Ordering::Relaxed);
    within(SOON, "nothing is lost", async || (calls(&known).await == made).then_some(())).await;
    // And nothing was counted twice, though the last batch was sent again and again.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(calls(&known).await, made);
    let new = gateway.as_tenant("acme").await;
    assert_eq!(new.call("std", "uuid", "").await.status, 200);
    gateway.stop().await;
}

/// At the same time, since most of it is waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_down_or_hangs_is_not_noticed_by_those_who_are_known() {
    let (down, hung) = (
        is_not_noticed(Postgres::down, Postgres::up),
        is_not_noticed(Postgres::freeze, Postgres::thaw),
    );
    tokio::join!(down, hung);
}
