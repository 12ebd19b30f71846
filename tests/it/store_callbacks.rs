//! Callbacks in the store: each is one gateway's for a while, and tenants take turns.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::sleep;
use trunkline::common::ids::{CallId, ServerId, TenantId, TenantName};
use trunkline::common::policy::Policy;
use trunkline::store::{
    Actor, CallBatch, CallState, CallbackState, EndedCall, NewCall, NewCallback, Store,
    TakenCallback,
};

use crate::support::on_both;

const OWNER: &str = "one";
const HOUR_MS: i64 = 3_600_000;

async fn tenant(store: &Store, name: &str) -> TenantId {
    let name = TenantName::parse(name).unwrap();
    store.add_tenant(&Actor::cli("test"), &name, &Policy::new()).await.unwrap();
    let generation = store.tenant(&name).await.unwrap().unwrap().generation;
    name.of(generation)
}

/// Adds calls with callbacks that have begun.
async fn begin(store: &Store, tenant: &TenantId, calls: usize) -> Vec<CallId> {
    let new = |_| NewCall {
        id: CallId::generate(),
        tenant: tenant.clone(),
        scope: None,
        fingerprint: String::new(),
        server: ServerId::parse("std").unwrap(),
        tool: "echo".to_owned(),
        state: CallState::Begun,
        owner: OWNER.into(),
        request: "{}".to_owned(),
        arguments: None,
        labels: vec![],
        callback: Some(NewCallback { url: "https://a/".to_owned(), about: "{}".to_owned() }),
        created: 1,
        expires: HOUR_MS,
    };
    let new: Vec<_> = (0..calls).map(new).collect();
    let ids = new.iter().map(|call| call.id).collect();
    let batch = CallBatch { new: new.iter().collect(), ..CallBatch::default() };
    store.call_connection(OWNER.into(), false).write(&batch).await.unwrap();
    ids
}

async fn end(store: &Store, tenant: &TenantId, calls: &[CallId]) {
    let ended = |id: &CallId| EndedCall {
        id: *id,
        tenant: tenant.clone(),
        owner: OWNER.into(),
        at: 2,
        head: "head".to_owned(),
        result: None,
        result_len: 0,
        parts: 0,
        frees_key: false,
        has_callback: true,
    };
    let ended: Vec<_> = calls.iter().map(ended).collect();
    let batch = CallBatch { ended: ended.iter().collect(), ..CallBatch::default() };
    store.call_connection(OWNER.into(), false).write(&batch).await.unwrap();
}

async fn take(store: &Store, tenant: &TenantId, lease_ms: i64) -> Vec<TakenCallback> {
    store.take_callbacks(tenant.name(), 10, lease_ms).await.unwrap()
}

async fn due(store: &Store) -> Vec<String> {
    let names = store.tenants_with_due_callbacks().await.unwrap();
    names.iter().map(TenantName::to_string).collect()
}

#[tokio::test]
async fn a_callback_is_one_gateways_for_a_while_then_anyones() {
    on_both(async |database| {
        let store = database.open().await;
        let acme = tenant(&store, "acme").await;
        let ids = begin(&store, &acme, 3).await;
        assert!(due(&store).await.is_empty() && take(&store, &acme, HOUR_MS).await.is_empty());
        end(&store, &acme, &ids).await;
        // Of two that look at once, one gets each.
        let other = database.open().await;
        let (mine, others) =
            tokio::join!(take(&store, &acme, HOUR_MS), take(&other, &acme, HOUR_MS));
        let taken: HashSet<_> = mine.iter().chain(&others).map(|it| it.call).collect();
        assert_eq!((mine.len() + others.len(), taken.len()), (3, 3));
        let first = mine.iter().chain(&others).next().unwrap();
        assert_eq!((first.head.as_deref(), first.ended, first.attempts), (Some("head"), 2, 1));
        assert!(due(&store).await.is_empty());
        // Whoever had it is gone.
        store.retry_callback(first, 100, "why").await.unwrap();
        sleep(Duration::from_millis(150)).await;
        assert_eq!(due(&store).await, ["acme"]);
        let again = take(&store, &acme, HOUR_MS).await;
        assert_eq!((again.len(), again[0].call, again[0].attempts), (1, first.call, 2));
        // One that comes late with an old attempt changes nothing.
        store.retry_callback(first, -HOUR_MS, "late").await.unwrap();
        assert!(due(&store).await.is_empty());
        store.end_callback(&again[0], CallbackState::Delivered, None).await.unwrap();
        let status = store.callback_status(first.call).await.unwrap().unwrap();
        assert_eq!((status.state, status.attempts), (CallbackState::Delivered, 2));
    })
    .await;
}

#[tokio::test]
async fn callbacks_are_due_tenant_by_tenant_and_outlive_the_record_of_their_call() {
    on_both(async |database| {
        let store = database.open().await;
        let (acme, other) = (tenant(&store, "acme").await, tenant(&store, "other").await);
        let many = begin(&store, &acme, 30).await;
        let one = begin(&store, &other, 1).await;
        end(&store, &acme, &many).await;
        // Given up: nobody knows how it ended.
        store.abandon_calls(OWNER, 3).await.unwrap();
        assert_eq!(due(&store).await, ["acme", "other"]);
        assert_eq!(take(&store, &acme, HOUR_MS).await.len(), 10);
        store.delete_call(OWNER, one[0], Some(3), 0).await.unwrap();
        let unknown = take(&store, &other, HOUR_MS).await;
        assert_eq!((unknown[0].call, &unknown[0].head), (one[0], &None));
        store.end_callback(&unknown[0], CallbackState::Delivered, None).await.unwrap();
        assert_eq!(store.callback_status(one[0]).await.unwrap(), None);
        // With its record goes one that is delivered or not due.
        let waiting = begin(&store, &other, 1).await;
        store.delete_call(OWNER, waiting[0], None, i64::MAX).await.unwrap();
        assert_eq!(store.callback_status(waiting[0]).await.unwrap(), None);
        assert!(!store.delete_tenants_callbacks(&acme).await.unwrap());
        assert_eq!(store.callback_status(many[0]).await.unwrap(), None);
    })
    .await;
}
