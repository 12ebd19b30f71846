//! `sharing = "tenant"`: each tenant has a process of its own.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;

use crate::support::mcp_legacy::Session;
use crate::support::{Api, Gateway, Setup, eventually, is_alive, kill, refused};

async fn start(settings: &str) -> Gateway {
    let settings = format!("sharing = \"tenant\"\n{settings}");
    let setup = Setup::new().fake_with("own", &[], &settings);
    let setup = ["a", "b", "c"]
        .into_iter()
        .fold(setup, |setup, id| setup.with_tenant(id, "servers = [\"own\"]"));
    setup.start().await
}

async fn three(gateway: &Gateway) -> [Api; 3] {
    [gateway.as_tenant("a").await, gateway.as_tenant("b").await, gateway.as_tenant("c").await]
}

async fn pid(api: &Api) -> i32 {
    api.call("own", "pid", "").await.tool_text().parse().unwrap()
}

async fn gone(pid: i32) {
    eventually("gone", async || (!is_alive(pid)).then_some(())).await;
}

#[tokio::test]
async fn each_tenant_has_one_process_and_keeps_it() {
    let gateway = start("").await;
    assert!(gateway.fake("own").pids().is_empty(), "none before a call");
    let [a, b, _] = three(&gateway).await;
    let state = async |api: &Api| api.server("own").await.json()["state"].clone();
    assert_eq!(state(&a).await, "per_tenant");
    let pids = [pid(&a).await, pid(&b).await];
    assert_ne!(pids[0], pids[1]);
    assert_eq!([pid(&a).await, pid(&b).await], pids);
    let other = gateway.as_tenant("a").await;
    let over_mcp = other.mcp("/mcp").call("own__pid", json!({})).send().await;
    assert_eq!(over_mcp.tool_text(), pids[0].to_string(), "one for all callers of a tenant");
    assert_eq!(gateway.fake("own").pids(), pids);
    assert_eq!(state(&a).await, "ready");
    assert_eq!(state(&gateway).await, "per_tenant", "of another tenant's nothing is seen");
    gateway.stop().await;
    assert!(!pids.into_iter().any(is_alive));
}

#[tokio::test]
async fn many_calls_at_once_start_one_process() {
    let gateway = start("").await;
    let [a, b, _] = three(&gateway).await;
    let calls: Vec<_> =
        (0..16).map(|n| if n % 2 == 0 { &a } else { &b }.spawn_call("own", "pid", "")).collect();
    for call in calls {
        call.await.unwrap().tool_text();
    }
    assert_eq!(gateway.fake("own").pids().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn the_list_of_one_server_starts_it_and_the_list_of_all_shows_what_is_known() {
    let gateway = start("").await;
    let [a, b, c] = three(&gateway).await;
    assert!(a.tools("own").await.text().contains("\"pid\""));
    assert!(b.mcp("/mcp").tool_names().await.contains(&"own__pid".to_owned()));
    assert_eq!(gateway.fake("own").pids().len(), 1);
    let session = Session::open(&c, "/mcp").await;
    let of_c: i32 = session.tool_text("own__pid", json!({})).await.parse().unwrap();
    assert_eq!(of_c, pid(&c).await);
    gateway.stop().await;
}

#[tokio::test]
async fn the_one_that_was_not_used_for_longest_gives_way() {
    let gateway = start("max_tenants = 2").await;
    let [a, b, c] = three(&gateway).await;
    let pids = [pid(&a).await, pid(&b).await];
    assert_eq!(pid(&a).await, pids[0]);
    let of_c = pid(&c).await;
    assert!(!is_alive(pids[1]), "it was gone before another was started");
    assert!(is_alive(pids[0]));
    assert_ne!(pid(&b).await, pids[1]);
    assert!(!is_alive(pids[0]));
    assert_eq!(pid(&c).await, of_c);
    gateway.stop().await;
}

#[tokio::test]
async fn those_that_are_in_use_do_not_give_way() {
    let gateway = start("max_tenants = 2").await;
    let [a, b, c] = three(&gateway).await;
    let held = [a.spawn_call("own", "hold", ""), b.spawn_call("own", "hold", "")];
    let fake = gateway.fake("own");
    eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
    let refusal = c.call("own", "pid", "").await;
    assert_eq!(refusal.problem(), refused(503, "overloaded").for_now());
    assert!(refusal.detail().contains("max_tenants"), "{}", refusal.detail());
    for api in [&a, &b] {
        api.call("own", "release", "").await.tool_text();
    }
    for call in held {
        call.await.unwrap().tool_text();
    }
    pid(&c).await;
    gateway.stop().await;
}

#[tokio::test]
async fn one_that_does_not_end_when_told_holds_up_whoever_needs_its_place() {
    let settings = "sharing = \"tenant\"\nmax_tenants = 1";
    let gateway = Setup::new()
        .fake_with("own", &["stubborn=yes"], settings)
        .with_tenant("a", "servers = [\"own\"]")
        .with_tenant("b", "servers = [\"own\"]")
        .start()
        .await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let of_a = pid(&a).await;
    let began = Instant::now();
    pid(&b).await;
    assert!(!is_alive(of_a), "there was never more than one");
    assert!(began.elapsed() > Duration::from_secs(2), "{:?}", began.elapsed());
    gateway.stop().await;
}

#[tokio::test]
async fn one_that_is_not_used_is_stopped_and_started_again_when_it_is() {
    let gateway = start("idle_timeout = \"300ms\"").await;
    let [a, b, _] = three(&gateway).await;
    let (first, other) = (pid(&a).await, b.spawn_call("own", "later", json!({"ms": 1500})));
    gone(first).await;
    assert_ne!(pid(&a).await, first);
    assert_eq!(other.await.unwrap().tool_text(), "later", "a call in flight keeps its process");
    gateway.stop().await;
}

#[tokio::test]
async fn a_crash_is_one_tenants_own() {
    let gateway = start("").await;
    let [a, b, _] = three(&gateway).await;
    let pids = [pid(&a).await, pid(&b).await];
    let held = b.spawn_call("own", "later", json!({"ms": 500}));
    kill(pids[0], Signal::KILL);
    let again = eventually("started again", async || {
        let answer = a.call("own", "pid", "").await;
        (answer.status == 200).then(|| answer.tool_text())
    });
    assert_ne!(again.await, pids[0].to_string());
    held.await.unwrap().tool_text();
    assert_eq!(pid(&b).await, pids[1]);
    gateway.stop().await;
}

#[tokio::test]
async fn whoever_listens_hears_of_every_process_that_comes() {
    let gateway = start("idle_timeout = \"300ms\"\nmax_tenants = 1").await;
    let [a, b, _] = three(&gateway).await;
    let changed = "notifications/tools/list_changed";
    let (mut stream, _) = a.mcp("/mcp").listen("1", json!({"toolsListChanged": true})).await;
    assert!(gateway.fake("own").pids().is_empty(), "listening starts nothing");
    let first = pid(&a).await;
    assert_eq!(stream.next().await["method"], changed);
    // Another tenant takes its place; when it is back it is another process, and the stream is the
    // same.
    pid(&b).await;
    assert_ne!(pid(&a).await, first);
    assert_eq!(stream.next().await["method"], changed);
    gateway.stop().await;
}
