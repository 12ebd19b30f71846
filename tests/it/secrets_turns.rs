//! A tenant's requests about its secrets cost that tenant, not the others.

use reqwest::Method;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::secrets::{put, send, setup};
use crate::support::{Gateway, eventually, refused};

const LIST: &str = "/v1/servers/own/secrets";
const UNKNOWN: &str = "/v1/servers/own/secrets/NONE";

/// A writer's lock: other writers wait until it is dropped.
async fn lock(gateway: &Gateway) -> SqliteConnection {
    let path = gateway.setup().dir.path().join("trunkline.db");
    let mut other = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    other
}

#[tokio::test]
async fn looking_is_taken_from_the_tenants_rate_too() {
    let setup = setup("").with_tenant("slow", "servers = [\"own\"]\nrate = \"2/h\"");
    let gateway = setup.start().await;
    let slow = gateway.as_tenant("slow").await;
    assert_eq!(slow.get(LIST).await.status, 200);
    let removal = send(&slow, Method::DELETE, UNKNOWN, "").await;
    assert_eq!(removal.problem(), refused(404, "not_found"));
    assert_eq!(slow.get(LIST).await.problem(), refused(429, "rate_limited").for_now());
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_removed_without_keeping_others_from_writing() {
    let gateway = setup("").start().await;
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(acme.get(LIST).await.status, 200);
    let lock = lock(&gateway).await;
    let removal = send(&acme, Method::DELETE, UNKNOWN, "").await;
    assert_eq!(removal.problem(), refused(404, "not_found"));
    drop(lock);
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_counts_for_as_long_as_it_waits_for_the_store() {
    let setup = setup("").with_tenant("one", "servers = [\"own\"]\nmax_in_flight = 1");
    let gateway = setup.start().await;
    let one = gateway.as_tenant("one").await;
    assert_eq!(one.get(LIST).await.status, 200);
    let lock = lock(&gateway).await;
    // Who looks may come first, and is done at once; who writes waits for the lock.
    let refusal = eventually("one at a time", async || {
        let (_, looked) = tokio::join!(put(&one, "a"), one.get(LIST));
        (looked.status != 200).then_some(looked)
    });
    assert_eq!(refusal.await.problem(), refused(429, "tenant_busy").for_now());
    drop(lock);
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenants_own_requests_wait_for_each_other_before_others_do() {
    let gateway = setup("").start().await;
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(acme.get(LIST).await.status, 200);
    let lock = lock(&gateway).await;
    let refusal = eventually("one of its own", async || {
        let (_, looked) = tokio::join!(put(&acme, "a"), acme.get(LIST));
        (looked.status != 200).then_some(looked)
    });
    assert_eq!(refusal.await.problem(), refused(429, "tenant_busy").for_now());
    drop(lock);
    gateway.stop().await;
}

#[tokio::test]
async fn one_request_is_at_the_store_at_a_time() {
    let gateway = setup("").start().await;
    let (acme, globex) = (gateway.as_tenant("acme").await, gateway.as_tenant("globex").await);
    assert_eq!((acme.get(LIST).await.status, globex.get(LIST).await.status), (200, 200));
    let lock = lock(&gateway).await;
    let refusal = eventually("one turn", async || {
        let (_, looked) = tokio::join!(put(&acme, "a"), globex.get(LIST));
        (looked.status != 200).then_some(looked)
    });
    assert_eq!(refusal.await.problem(), refused(503, "overloaded").for_now());
    drop(lock);
    gateway.stop().await;
}
