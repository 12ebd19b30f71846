//! When a tenant's secret changes, its process is replaced, and nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use reqwest::Method;
use serde_json::json;
use tokio::task::JoinSet;

use crate::secrets::{send, set, setup, token};
use crate::support::{Postgres, eventually, is_alive, refused};

#[tokio::test]
async fn a_call_in_flight_ends_where_it_began_and_new_ones_go_to_the_new_process() {
    let gateway = setup("").start().await;
    let (acme, globex) = (gateway.as_tenant("acme").await, gateway.as_tenant("globex").await);
    set(&acme, "one").await;
    set(&globex, "other").await;
    assert_eq!([token(&acme).await, token(&globex).await], ["<one>", "<other>"]);
    let pids = gateway.fake("own").pids();
    let slow = acme.spawn_call("own", "later", json!({"ms": 1500}));
    let fake = gateway.fake("own");
    eventually("in flight", async || fake.calls_of("later").pop()).await;
    set(&acme, "two").await;
    assert_eq!(token(&acme).await, "<two>");
    assert!(is_alive(pids[0]) && !slow.is_finished());
    assert_eq!(slow.await.unwrap().tool_text(), "later");
    eventually("gone", async || (!is_alive(pids[0])).then_some(())).await;
    assert_eq!(token(&globex).await, "<other>");
    assert_eq!(gateway.fake("own").pids().len(), 3, "the other tenant keeps its own");
    gateway.stop().await;
}

#[tokio::test]
async fn no_call_fails_while_values_change_and_none_sees_another_tenants() {
    let gateway = setup("max_tenants = 2").start().await;
    let tenants = [gateway.as_tenant("acme").await, gateway.as_tenant("globex").await];
    for (api, id) in tenants.iter().zip(["acme", "globex"]) {
        set(api, &format!("{id}-0")).await;
    }
    let (over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = JoinSet::new();
    for (api, id) in
        tenants.iter().zip(["acme", "globex"]).chain(tenants.iter().zip(["acme", "globex"]))
    {
        let (api, over, made) = (api.clone(), over.clone(), made.clone());
        load.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let token = token(&api).await;
                assert!(token.starts_with(&format!("<{id}-")), "{id} sees {token}");
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for n in 1..=5 {
        for (api, id) in tenants.iter().zip(["acme", "globex"]) {
            let before = made.load(Ordering::Relaxed);
            set(api, &format!("{id}-{n}")).await;
            assert_eq!(token(api).await, format!("<{id}-{n}>"), "at once, in this gateway");
            eventually("calls", async || (made.load(Ordering::Relaxed) > before + 4).then_some(()))
                .await;
        }
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.unwrap();
    }
    gateway.stop().await;
}

#[tokio::test]
async fn one_that_must_be_alone_is_started_when_the_other_is_gone() {
    let gateway = setup("exclusive = true").start().await;
    let acme = gateway.as_tenant("acme").await;
    set(&acme, "one").await;
    assert_eq!(token(&acme).await, "<one>");
    let first = gateway.fake("own").pids()[0];
    let slow = acme.spawn_call("own", "later", json!({"ms": 700}));
    let fake = gateway.fake("own");
    eventually("in flight", async || fake.calls_of("later").pop()).await;
    set(&acme, "two").await;
    assert_eq!(token(&acme).await, "<two>");
    assert!(!is_alive(first));
    assert_eq!(slow.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn a_secret_that_goes_takes_the_process_with_it() {
    let gateway = setup("").start().await;
    let acme = gateway.as_tenant("acme").await;
    set(&acme, "one").await;
    assert_eq!(token(&acme).await, "<one>");
    let pid = gateway.fake("own").pids()[0];
    let removed = send(&acme, Method::DELETE, "/v1/servers/own/secrets/TOKEN", "").await;
    assert_eq!(removed.status, 200);
    eventually("gone", async || (!is_alive(pid)).then_some(())).await;
    let refusal = acme.call("own", "pid", "").await;
    assert_eq!(refusal.problem(), refused(409, "secret_missing"));
    set(&acme, "two").await;
    assert_eq!(token(&acme).await, "<two>");
    gateway.stop().await;
}

#[tokio::test]
async fn a_store_that_is_away_changes_nothing_for_what_is_known() {
    let Some(postgres) = Postgres::start() else { return };
    let gateway =
        setup("idle_timeout = \"200ms\"").with_store(&postgres.database().await).start().await;
    let acme = gateway.as_tenant("acme").await;
    set(&acme, "one").await;
    assert_eq!(token(&acme).await, "<one>");
    let first = gateway.fake("own").pids()[0];
    postgres.down();
    eventually("gone", async || (!is_alive(first)).then_some(())).await;
    assert_eq!(token(&acme).await, "<one>", "started again without the store");
    assert_eq!(crate::secrets::put(&acme, "two").await.json()["code"], "store_unavailable");
    postgres.up();
    eventually("set", async || {
        (crate::secrets::put(&acme, "two").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(token(&acme).await, "<two>");
    gateway.stop().await;
}
