//! Servers of tenants that are configured otherwise, or gone, while they are called.

use serde_json::json;

use crate::support::{Answer, Gateway, Setup, eventually, is_alive, refused};

async fn pid(gateway: &Gateway) -> i32 {
    gateway.call("own", "pid", "").await.tool_text().parse().unwrap()
}

async fn is_gone(pid: i32) {
    eventually("stopped", async || (!is_alive(pid)).then_some(())).await;
}

fn own(setup: &Setup, settings: &str) -> Setup {
    setup.clone().fake_with("own", &[], &format!("sharing = \"tenant\"\n{settings}"))
}

#[tokio::test]
async fn calls_end_where_they_began_however_long_they_may_take_and_new_ones_go_to_a_new_process() {
    let none = Setup::new();
    let gateway = own(&none, "timeout = \"1s\"").start().await;
    let old = pid(&gateway).await;
    let fake = gateway.fake("own");
    let long = gateway.post("own", "later", json!({"ms": 4000}));
    let long = tokio::spawn(Answer::of(long.header("Trunkline-Timeout-Ms", "30000")));
    eventually("under way", async || fake.calls_of("later").pop()).await;
    assert!(gateway.apply(&own(&none, "timeout = \"2s\"")).await);
    let new = pid(&gateway).await;
    assert_ne!(new, old);
    assert!(is_alive(old) && !long.is_finished());
    assert_eq!(long.await.unwrap().tool_text(), "later");
    is_gone(old).await;
    assert_eq!(pid(&gateway).await, new);
    // Without it there is no process left either.
    assert!(gateway.apply(&none).await);
    assert_eq!(gateway.call("own", "pid", "").await.problem(), refused(404, "server_not_found"));
    is_gone(new).await;
    gateway.stop().await;
}

#[tokio::test]
async fn an_exclusive_one_starts_when_the_one_before_it_is_gone() {
    let none = Setup::new();
    let gateway = own(&none, "exclusive = true").start().await;
    let old = pid(&gateway).await;
    let fake = gateway.fake("own");
    let long = gateway.spawn_call("own", "later", json!({"ms": 1500}));
    eventually("under way", async || fake.calls_of("later").pop()).await;
    // Twice: the second one waits for those before it, too.
    assert!(gateway.apply(&own(&none, "exclusive = true\ntimeout = \"20s\"")).await);
    let waiting = gateway.spawn_call("own", "pid", json!({}));
    gateway.has_in_flight("own", 2.0).await;
    assert!(gateway.apply(&own(&none, "exclusive = true\ntimeout = \"21s\"")).await);
    let new = waiting.await.unwrap().tool_text();
    assert!(!is_alive(old));
    assert_eq!(long.await.unwrap().tool_text(), "later");
    assert_eq!(fake.pids().len(), 2, "what was never wanted any more was never started");
    assert_eq!(new, fake.pids()[1].to_string());
    gateway.stop().await;
}

#[tokio::test]
async fn becomes_shared_and_back() {
    let none = Setup::new();
    let gateway = own(&none, "").start().await;
    let mut before = pid(&gateway).await;
    for setup in [none.clone().fake("own"), own(&none, "")] {
        assert!(gateway.apply(&setup).await);
        let now = pid(&gateway).await;
        assert_ne!(now, before);
        is_gone(before).await;
        before = now;
    }
    assert_eq!(gateway.server("own").await.json()["state"], "ready");
    gateway.stop().await;
}
