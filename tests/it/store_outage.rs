//! A PostgreSQL that is gone, or does not answer: an error in time, and no lasting harm.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use trunkline::common::ids::ServerId;
use trunkline::common::policy::Policy;
use trunkline::common::usage::Counts;
use trunkline::store::{KeyOwner, QUERY_TIMEOUT, Store, StoreError, UsageKey, UsageOf, UsageQuery};

use crate::store::{root, tenant, tenant_id};
use crate::support::{Database, Postgres, eventually};

/// The time that a busy machine may add.
const SLACK: Duration = Duration::from_secs(2);

async fn fails_in_time<T>(what: &str, work: impl Future<Output = Result<T, StoreError>>) {
    let began = Instant::now();
    let outcome = work.await;
    let took = began.elapsed();
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{what}: {:?}", outcome.err());
    assert!(took < QUERY_TIMEOUT + SLACK, "{what} took {took:?}");
}

fn one_call() -> BTreeMap<UsageKey, Counts> {
    let (tenant, server) = (tenant_id("acme"), ServerId::parse("std").unwrap());
    let key = UsageKey { minute: 60_000, tenant, server, tool: "echo".to_owned() };
    BTreeMap::from([(key, Counts { calls: 1, ..Counts::default() })])
}

async fn all_fail_in_time(store: &Store) {
    let rows = one_call();
    let id = trunkline::common::keys::ApiKey::generate().id();
    let (actor, acme, policy) = (root(), tenant("acme"), Policy::new());
    let uses = [(id, 1)];
    // All at once, and more of them than there are connections.
    let loads = async {
        let loads = (0..20).map(|_| fails_in_time("load", store.load()));
        futures_util::future::join_all(loads).await
    };
    tokio::join!(
        loads,
        fails_in_time("key", store.key(&id)),
        fails_in_time("record_key_uses", store.record_key_uses(&uses)),
        fails_in_time("add_usage", store.add_usage("r1", 1, &rows)),
        fails_in_time("add_tenant", store.add_tenant(&actor, &acme, &policy)),
        fails_in_time("create_key", store.create_key(&actor, &KeyOwner::Admin, None, None)),
        fails_in_time("audit", store.audit(1, None)),
    );
}

/// All that failed can be done again, with no more effect than once.
async fn all_works(store: &Store) {
    let load = eventually("the store is back", async || store.load().await.ok()).await;
    assert_eq!(load.tenants.len(), 1);
    let id = tenant("new");
    eventually("a tenant is added", async || {
        store.add_tenant(&root(), &id, &Policy::new()).await.ok()
    })
    .await;
    store.remove_tenant(&root(), &id).await.unwrap();
    let query = UsageQuery { from: 0, to: i64::MAX, whose: UsageOf::Everybody, by_minute: false };
    let before = store.usage(&query).await.unwrap();
    // Whether it was added before or not, it is once now.
    store.add_usage("r1", 1, &one_call()).await.unwrap();
    store.add_usage("r1", 1, &one_call()).await.unwrap();
    let after = store.usage(&query).await.unwrap();
    assert_eq!(after.iter().map(|it| it.counts.calls).sum::<u64>(), 1, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_database_that_is_gone_is_an_error_in_time_and_comes_back() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let store = database.open().await;
    store.add_tenant(&root(), &tenant("there"), &Policy::new()).await.unwrap();
    server.down();
    all_fail_in_time(&store).await;
    let again = Store::open(&database.url, None);
    fails_in_time("open", again).await;
    server.up();
    all_works(&store).await;
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_an_error_in_time_and_comes_back() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let store = database.open().await;
    store.add_tenant(&root(), &tenant("there"), &Policy::new()).await.unwrap();
    // Some are under way.
    let mut busy = JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        busy.spawn(async move { while store.load().await.is_ok() {} });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.freeze();
    let frozen = Instant::now();
    busy.join_all().await;
    assert!(frozen.elapsed() < QUERY_TIMEOUT + SLACK, "loads went on for {:?}", frozen.elapsed());
    all_fail_in_time(&store).await;
    // Now that each connection was given up: those who come later are not worse off.
    all_fail_in_time(&store).await;
    fails_in_time("open", Store::open(&database.url, None)).await;
    server.thaw();
    all_works(&store).await;
}
