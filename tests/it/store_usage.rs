//! Usage: counted once, however often it is sent.

use std::collections::BTreeMap;

use tokio::task::JoinSet;
use trunkline::common::ids::ServerId;
use trunkline::common::usage::Counts;
use trunkline::store::{Store, StoreError, USAGE_ROWS_MAX, UsageKey, UsageOf, UsageQuery};

use crate::store::{root, tenant, tenant_id};
use crate::support::on_both;

const MINUTE: i64 = 60_000;

fn row(minute: i64, tenant: &str, tool: &str, calls: u64) -> (UsageKey, Counts) {
    let counts = Counts {
        calls,
        errors: 2 * calls,
        tool_errors: 3 * calls,
        queue_us: 4 * calls,
        backend_us: 5 * calls,
        bytes_in: 6 * calls,
        bytes_out: 7 * calls,
    };
    let key = UsageKey {
        minute: minute * MINUTE,
        tenant: tenant_id(tenant),
        server: ServerId::parse("std").unwrap(),
        tool: tool.to_owned(),
    };
    (key, counts)
}

fn all() -> UsageQuery {
    UsageQuery { from: 0, to: i64::MAX, whose: UsageOf::Everybody, by_minute: false }
}

/// Minute, tenant, tool and calls of what is found.
async fn found(store: &Store, query: &UsageQuery) -> Vec<(Option<i64>, String, String, u64)> {
    let rows = store.usage(query).await.unwrap();
    let row = |row: trunkline::store::UsageTotal| {
        let calls = row.counts.calls;
        assert_eq!(row.counts.bytes_out, 7 * calls);
        (row.minute.map(|minute| minute / MINUTE), row.tenant.to_string(), row.tool, calls)
    };
    rows.into_iter().map(row).collect()
}

#[tokio::test]
async fn usage_adds_up_and_is_found_by_time_and_tenant() {
    on_both(async |database| {
        let store = database.open().await;
        let rows = [row(1, "a", "echo", 1), row(1, "b", "echo", 2), row(2, "a", "echo", 4)];
        store.add_usage("r1", 1, &rows.into()).await.unwrap();
        // Another replica.
        store.add_usage("r2", 1, &[row(1, "a", "echo", 24)].into()).await.unwrap();
        store.add_usage("r2", 2, &[row(3, "a", "time", 32)].into()).await.unwrap();
        store.add_usage("r2", 3, &BTreeMap::new()).await.unwrap();

        let text = |minute, tenant: &str, tool: &str, calls| {
            (minute, tenant.to_owned(), tool.to_owned(), calls)
        };
        assert_eq!(
            found(&store, &all()).await,
            [text(None, "a", "echo", 29), text(None, "a", "time", 32), text(None, "b", "echo", 2)]
        );
        let whose = UsageOf::Name(tenant("a"));
        let query = UsageQuery { from: MINUTE, to: 3 * MINUTE, whose, by_minute: true };
        assert_eq!(
            found(&store, &query).await,
            [text(Some(1), "a", "echo", 25), text(Some(2), "a", "echo", 4)]
        );
    })
    .await;
}

#[tokio::test]
async fn a_batch_counts_once_however_often_it_is_sent() {
    on_both(async |database| {
        let store = database.open().await;
        let mut senders = JoinSet::new();
        for _ in 0..4 {
            for batch in [1, u64::MAX] {
                let store = store.clone();
                senders.spawn(async move {
                    store.add_usage("r1", batch, &[row(1, "a", "echo", 1)].into()).await.unwrap();
                });
            }
        }
        senders.join_all().await;
        store.add_usage("r1", 1, &[row(1, "a", "echo", 1)].into()).await.unwrap();
        assert_eq!(found(&store, &all()).await[0].3, 2);
        store.add_usage("r2", 1, &[row(1, "a", "echo", 1)].into()).await.unwrap();
        assert_eq!(found(&store, &all()).await[0].3, 3);
    })
    .await;
}

#[tokio::test]
async fn replicas_that_add_the_same_rows_at_once_do_not_get_in_each_others_way() {
    on_both(async |database| {
        let tools: Vec<String> = (0..600).map(|tool| format!("tool-{tool}")).collect();
        let mut replicas = JoinSet::new();
        for replica in 0..4 {
            let store = database.open().await;
            let rows: BTreeMap<_, _> = tools.iter().map(|tool| row(1, "a", tool, 1)).collect();
            replicas.spawn(async move {
                for batch in 0..5 {
                    store.add_usage(&format!("r{replica}"), batch, &rows).await.unwrap();
                }
            });
        }
        replicas.join_all().await;
        let found = found(&database.open().await, &all()).await;
        assert_eq!(found.len(), 600);
        assert!(found.iter().all(|(_, _, _, calls)| *calls == 20), "{found:?}");
    })
    .await;
}

#[tokio::test]
async fn more_than_can_be_shown_is_refused_and_not_cut_off() {
    on_both(async |database| {
        let store = database.open().await;
        let rows: BTreeMap<_, _> =
            (0..=USAGE_ROWS_MAX).map(|tool| row(1, "a", &tool.to_string(), 1)).collect();
        store.add_usage("r1", 1, &rows).await.unwrap();
        let refused = store.usage(&all()).await;
        assert!(matches!(refused, Err(StoreError::TooManyRows(USAGE_ROWS_MAX))), "{refused:?}");
    })
    .await;
}

#[tokio::test]
async fn what_is_old_is_deleted() {
    on_both(async |database| {
        let store = database.open().await;
        // More than one statement deletes.
        let mut rows: BTreeMap<_, _> =
            (0..10_001).map(|tool| row(1, "a", &tool.to_string(), 1)).collect();
        rows.extend([row(2, "a", "echo", 1)]);
        store.add_usage("r1", 1, &rows).await.unwrap();
        store.add_tenant(&root(), &tenant("a"), &Default::default()).await.unwrap();
        assert_eq!(store.delete_old(2 * MINUTE, 0).await.unwrap(), 10_001);
        assert_eq!(found(&store, &all()).await.len(), 1);
        assert_eq!(store.audit(10, None).await.unwrap().len(), 1);
        assert_eq!(store.delete_old(0, i64::MAX).await.unwrap(), 1);
        // What has been added lately is still known.
        store.add_usage("r1", 1, &rows).await.unwrap();
        assert_eq!(found(&store, &all()).await.len(), 1);
    })
    .await;
}
