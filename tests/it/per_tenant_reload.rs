//! Servers of tenants that are configured otherwise, or gone, while they are called.

use serde_json::json;

use crate::support::{Answer, Gateway, Setup, eventually, is_alive, refused};

async fn pid(gateway: &Gateway) -> i32 {
    gateway.call("own", "pid", "").await.tool_text().parse().unwrap()
}

async fn is_gone(pid: i32) {
    eventually("stopped", async || (!is_alive(pid)).then_some(())).await;
}

/// Waits until calls go to another process. Nobody waits for it meanwhile.
async fn replaced(gateway: &Gateway, old: i32) -> i32 {
    eventually("replaced", async || Some(pid(gateway).await).filter(|pid| *pid != old)).await
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
    // More than the usual time, and what calls that are given up have beyond it.
    let long = gateway.post("own", "later", json!({"ms": 7000}));
    let long = tokio::spawn(Answer::of(long.header("Trunkline-Timeout-Ms", "30000")));
    eventually("under way", async || fake.calls_of("later").pop()).await;
    assert!(gateway.apply(&own(&none, "timeout = \"2s\"")).await);
    let new = replaced(&gateway, old).await;
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
async fn the_old_process_serves_until_the_new_one_is_ready_however_often_it_changes() {
    let none = Setup::new();
    let gateway = own(&none, "").start().await;
    let fake = gateway.fake("own");
    let old = pid(&gateway).await;
    let tenant = |options: &[&str]| none.clone().fake_with("own", options, "sharing = \"tenant\"");
    let replacement = async || gateway.server("own").await.json()["replacement"]["state"].clone();
    // One that does not start is tried, and costs nothing.
    assert!(gateway.apply(&tenant(&["start=fail"])).await);
    assert_eq!(fake.pids().len(), 1, "nothing is started before the next call");
    assert_eq!(pid(&gateway).await, old);
    eventually("failed", async || (replacement().await == "backoff").then_some(())).await;
    assert_eq!(pid(&gateway).await, old);
    // Nor does the next one, and the one after that is slow.
    assert!(gateway.apply(&tenant(&["start=mute"])).await);
    assert_eq!(pid(&gateway).await, old);
    assert_eq!(replacement().await, "starting");
    assert!(gateway.apply(&tenant(&["start=slow"])).await);
    assert_eq!(pid(&gateway).await, old);
    let new = replaced(&gateway, old).await;
    assert_eq!(Some(&new), fake.pids().last());
    assert_eq!(replacement().await, serde_json::Value::Null);
    for pid in fake.pids().into_iter().filter(|pid| *pid != new) {
        is_gone(pid).await;
    }
    assert_eq!(pid(&gateway).await, new);
    gateway.stop().await;
}

#[tokio::test]
async fn where_there_may_be_fewer_the_others_keep_the_process_they_have() {
    let none = ["one", "two"]
        .iter()
        .fold(Setup::new(), |setup, tenant| setup.with_tenant(tenant, "servers = [\"own\"]"));
    let gateway = own(&none, "").start().await;
    let (one, two) = (gateway.as_tenant("one").await, gateway.as_tenant("two").await);
    let held = [one.spawn_call("own", "hold", ""), two.spawn_call("own", "hold", "")];
    let fake = gateway.fake("own");
    eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
    assert!(gateway.apply(&own(&none, "max_tenants = 1")).await);
    // Both are in use: neither can be the one that gives way.
    for tenant in [&one, &two] {
        assert_eq!(tenant.call("own", "release", "").await.status, 200);
    }
    for call in held {
        assert_eq!(call.await.unwrap().status, 200);
    }
    // Now the other can.
    let pids = fake.pids();
    eventually("replaced", async || {
        let pid = one.call("own", "pid", "").await.tool_text();
        (!pids.iter().any(|it| it.to_string() == pid)).then_some(())
    })
    .await;
    for pid in pids {
        is_gone(pid).await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_exclusive_one_is_alone_whoever_shares_it() {
    let none = Setup::new();
    let sharing = |sharing: &str| {
        none.clone().fake_with("own", &[], &format!("sharing = \"{sharing}\"\nexclusive = true"))
    };
    let gateway = sharing("shared").start().await;
    let fake = gateway.fake("own");
    for (round, next) in ["tenant", "shared", "tenant"].into_iter().enumerate() {
        let before = pid(&gateway).await;
        let long = gateway.spawn_call("own", "later", json!({"ms": 700}));
        eventually("under way", async || fake.calls_of("later").get(round).cloned()).await;
        assert!(gateway.apply(&sharing(next)).await);
        let now = pid(&gateway).await;
        assert!(now != before && !is_alive(before), "two at once");
        assert_eq!(long.await.unwrap().tool_text(), "later");
    }
    // Also after it was not there at all.
    let (before, long) =
        (pid(&gateway).await, gateway.spawn_call("own", "later", json!({"ms": 700})));
    eventually("under way", async || fake.calls_of("later").get(3).cloned()).await;
    assert!(gateway.apply(&none).await);
    assert!(gateway.apply(&sharing("tenant")).await);
    assert_ne!(pid(&gateway).await, before);
    assert!(!is_alive(before), "two at once");
    assert_eq!(long.await.unwrap().tool_text(), "later");
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
