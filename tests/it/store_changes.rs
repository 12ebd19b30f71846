//! Changes reach whoever waits for them, wherever they are made.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;
use trunkline::common::policy::Policy;
use trunkline::config::Secret;
use trunkline::store::{KeyOwner, Store, StoreChanges, Subject};

use crate::store::{root, tenant};
use crate::support::{Database, Postgres, Setup, eventually, in_time, on_both, trunkline};

/// SQLite is looked at every half second, and PostgreSQL says when to look; the rest is for busy
/// machines.
const SOON: Duration = Duration::from_secs(5);
/// Long enough for SQLite to be looked at.
const A_WHILE: Duration = Duration::from_millis(1200);

async fn hears(changes: &mut StoreChanges, what: &str) {
    let heard = timeout(SOON, next(changes)).await;
    heard.unwrap_or_else(|_| panic!("did not hear of {what}"));
}

/// Waits until the store tells of a change.
async fn next(changes: &mut StoreChanges) {
    while changes.next().await.is_err() {}
}

/// One that has seen all there is.
async fn listening(store: &Store) -> StoreChanges {
    let mut changes = store.changes(Subject::Policy);
    in_time("the first look", next(&mut changes)).await;
    changes
}

#[tokio::test]
async fn every_change_is_heard_of_by_all() {
    on_both(async |database| {
        let store = database.open().await;
        let mut here = listening(&store).await;
        let mut elsewhere = listening(&database.open().await).await;
        let (acme, owner) = (tenant("acme"), KeyOwner::Tenant(tenant("acme")));
        let mut heard = async |what: &str| {
            hears(&mut here, what).await;
            hears(&mut elsewhere, what).await;
        };
        store.add_tenant(&root(), &acme, &Policy::new()).await.unwrap();
        heard("a new tenant").await;
        store.set_tenant(&root(), &acme, &Policy::unlimited()).await.unwrap();
        heard("another policy").await;
        let key = store.create_key(&root(), &owner, None, None).await.unwrap().key;
        heard("a new key").await;
        store.revoke_key(&root(), &key.id()).await.unwrap();
        heard("a revoked key").await;
        store.remove_tenant(&root(), &acme).await.unwrap();
        heard("a tenant that is gone").await;
    })
    .await;
}

#[tokio::test]
async fn whoever_waits_is_woken() {
    on_both(async |database| {
        let store = database.open().await;
        let mut changes = listening(&database.open().await).await;
        let mut next = pin!(next(&mut changes));
        assert!(timeout(A_WHILE, &mut next).await.is_err(), "woken by nothing");
        store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.unwrap();
        timeout(SOON, next).await.expect("did not wake");
    })
    .await;
}

#[tokio::test]
async fn a_change_between_two_looks_is_not_missed() {
    on_both(async |database| {
        let store = database.open().await;
        let mut changes = listening(&store).await;
        store.add_tenant(&root(), &tenant("a"), &Policy::new()).await.unwrap();
        store.add_tenant(&root(), &tenant("b"), &Policy::new()).await.unwrap();
        hears(&mut changes, "two tenants").await;
        assert_eq!(store.tenants().await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn usage_and_uses_and_what_fails_wake_nobody() {
    on_both(async |database| {
        let store = database.open().await;
        let key = store.create_key(&root(), &KeyOwner::Admin, None, None).await.unwrap().key;
        let mut changes = listening(&database.open().await).await;
        store.record_key_uses(&[(key.id(), 5)]).await.unwrap();
        store.add_usage("r1", 1, &BTreeMap::new()).await.unwrap();
        store.remove_tenant(&root(), &tenant("nobody")).await.unwrap_err();
        assert!(timeout(A_WHILE, changes.next()).await.is_err(), "woken by what is no change");
    })
    .await;
}

#[tokio::test]
async fn a_command_in_another_process_is_heard_of() {
    let setup = Setup::new();
    setup.write();
    let url = format!("sqlite://{}/trunkline.db", setup.dir.path().display());
    let store = Store::open(&Secret::new(url), None).await.unwrap();
    let mut changes = listening(&store).await;
    let output = trunkline(&setup, &["tenant", "add", "acme"]).await;
    assert!(output.status.success(), "{output:?}");
    hears(&mut changes, "a tenant added by command").await;
    assert!(store.tenants().await.unwrap().contains_key("acme"));
}

#[tokio::test]
async fn changes_made_while_the_connection_was_lost_are_heard_of() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let store = database.open().await;
    let mut changes = listening(&store).await;
    server.down();
    let waiting = tokio::spawn(async move {
        next(&mut changes).await;
        changes
    });
    server.up();
    let added = async || store.add_tenant(&root(), &tenant("acme"), &Policy::new()).await.ok();
    eventually("a tenant is added", added).await;
    let mut changes = timeout(SOON, waiting).await.expect("did not hear of the change").unwrap();
    // And it listens again.
    store.set_tenant(&root(), &tenant("acme"), &Policy::unlimited()).await.unwrap();
    hears(&mut changes, "another policy").await;
}
