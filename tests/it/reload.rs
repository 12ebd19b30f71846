//! Servers that come, change and go while the gateway runs.

use serde_json::json;

use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Gateway, Setup, eventually, failed, in_time, is_alive, refused};

async fn pid(gateway: &Gateway, server: &str) -> String {
    gateway.call(server, "pid", "").await.tool_text()
}

async fn is_gone(pid: i32) {
    eventually("stopped", async || (!is_alive(pid)).then_some(())).await;
}

#[tokio::test]
async fn a_server_comes_and_goes_and_the_others_do_not_notice() {
    let one = Setup::new().fake("one");
    let gateway = one.clone().start().await;
    let before = pid(&gateway, "one").await;
    assert!(gateway.apply(&one.clone().fake_with("two", &["start=slow"], "")).await);
    // It is there, whether or not it has started, and the gateway stays ready.
    assert_eq!(gateway.readyz().await.status, 200);
    assert_eq!(gateway.server("two").await.status, 200);
    assert_eq!(gateway.call("two", "raw", "{}").await.tool_text(), "{}");
    let two = gateway.fake("two").pids()[0];
    let of_two = "trunkline_calls_total{outcome=\"ok\",server=\"two\",tool=\"raw\"}";
    assert_eq!(gateway.metrics().await.value(of_two), Some(1.0));
    assert!(gateway.apply(&one).await);
    assert_eq!(gateway.call("two", "raw", "{}").await.problem(), refused(404, "server_not_found"));
    assert_eq!(gateway.servers().await.json()["servers"].as_array().unwrap().len(), 1);
    is_gone(two).await;
    assert_eq!(pid(&gateway, "one").await, before);
    let metrics = gateway.metrics().await;
    let up = |server: &str| metrics.value(&format!("trunkline_server_up{{server={server:?}}}"));
    assert_eq!((up("one"), up("two")), (Some(1.0), None), "one that is not there is not down");
    eventually("its tools are forgotten", async || {
        gateway.metrics().await.value(of_two).is_none().then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn calls_at_a_server_that_goes_are_finished_there_those_in_line_too() {
    let none = Setup::new();
    let gateway = none.clone().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    let calls: Vec<_> =
        (0..3).map(|_| gateway.spawn_call("fake", "later", json!({"ms": 300}))).collect();
    gateway.has_in_flight("fake", 3.0).await;
    assert!(gateway.apply(&none).await);
    assert_eq!(gateway.call("fake", "raw", "{}").await.problem(), refused(404, "server_not_found"));
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "later");
    }
    is_gone(fake.pids()[0]).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_changed_server_is_replaced_when_its_successor_is_ready_and_not_before() {
    let none = Setup::new();
    let gateway = none.clone().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let old = pid(&gateway, "fake").await;
    let long = gateway.spawn_call("fake", "later", json!({"ms": 3000}));
    eventually("under way", async || fake.calls_of("later").pop()).await;
    let changed = none.fake_with("fake", &["start=slow"], "");
    assert!(gateway.apply(&changed).await);
    assert_eq!(gateway.server("fake").await.json()["replacement"]["state"], "starting");
    // What is on its way goes on, whatever else changes.
    assert!(gateway.apply(&changed.fake("other")).await);
    assert_eq!(pid(&gateway, "fake").await, old);
    let new = eventually("replaced", async || {
        // Whoever calls meanwhile is answered at once.
        Some(pid(&gateway, "fake").await).filter(|pid| *pid != old)
    })
    .await;
    assert_eq!(new, fake.pids()[1].to_string());
    assert_eq!(gateway.server("fake").await.json().get("replacement"), None);
    // The old one still has its call.
    assert!(is_alive(fake.pids()[0]));
    assert_eq!(long.await.unwrap().tool_text(), "later");
    is_gone(fake.pids()[0]).await;
    assert_eq!(gateway.metrics().await.value("trunkline_server_up{server=\"fake\"}"), Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_of_several_instances_is_replaced_when_as_many_of_the_next_are_ready() {
    let none = Setup::new();
    let three = |options: &[&str], settings: &str| {
        none.clone().fake_with("fake", options, &format!("instances = 3\n{settings}"))
    };
    let gateway = three(&[], "").start().await;
    let view = async || gateway.server("fake").await.json();
    eventually("ready", async || (view().await["ready"] == 3).then_some(())).await;
    let old = gateway.fake("fake").pids();
    // One of the next is ready and the others are not: that is less than there was.
    assert!(gateway.apply(&three(&["mute_after=4"], "")).await);
    eventually("one", async || (view().await["replacement"]["state"] == "ready").then_some(()))
        .await;
    assert_eq!(view().await["ready"], 3);
    assert!(old.contains(&pid(&gateway, "fake").await.parse().unwrap()));
    // There are never fewer.
    assert!(gateway.apply(&three(&[], "timeout = \"31s\"")).await);
    eventually("replaced", async || {
        let view = view().await;
        assert_eq!(view["ready"], 3);
        view.get("replacement").is_none().then_some(())
    })
    .await;
    assert!(!old.contains(&pid(&gateway, "fake").await.parse().unwrap()));
    // Those that never come are not waited for longer than they may take to start.
    let last = format!("mute_after={}", gateway.fake("fake").pids().len() + 1);
    assert!(gateway.apply(&three(&[&last], "start_timeout = \"2s\"")).await);
    eventually("replaced", async || (view().await["ready"] == 1).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_successor_that_does_not_start_leaves_the_old_one_where_it_is() {
    let none = Setup::new();
    let first = none.clone().fake("fake");
    let gateway = first.clone().start().await;
    let old = pid(&gateway, "fake").await;
    assert!(gateway.apply(&none.clone().fake_with("fake", &["start=fail"], "")).await);
    let view = eventually("failed", async || {
        let view = gateway.server("fake").await.json();
        (view["replacement"]["state"] == "backoff").then_some(view)
    })
    .await;
    assert_eq!(view["state"], "ready");
    assert!(view["replacement"]["reason"].as_str().unwrap().contains("code 3"), "{view}");
    assert_eq!(pid(&gateway, "fake").await, old);
    assert_eq!(gateway.metrics().await.value("trunkline_server_up{server=\"fake\"}"), Some(1.0));
    // Taken back: nothing is started and nothing stopped.
    assert!(gateway.apply(&first).await);
    assert_eq!(gateway.server("fake").await.json().get("replacement"), None);
    assert_eq!(pid(&gateway, "fake").await, old);
    // Another mistake, and then none: the last word counts.
    assert!(gateway.apply(&none.clone().fake_with("fake", &["start=mute"], "")).await);
    assert!(gateway.apply(&none.fake_with("fake", &[], "timeout = \"31s\"")).await);
    eventually("replaced", async || (pid(&gateway, "fake").await != old).then_some(())).await;
    eventually("nothing else runs", async || (gateway.processes().len() == 2).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn of_an_exclusive_server_there_are_never_two_and_its_callers_wait() {
    let none = Setup::new();
    let gateway = none.clone().fake_with("fake", &[], "exclusive = true").start().await;
    let fake = gateway.fake("fake");
    for round in 1..4 {
        let call = gateway.spawn_call("fake", "later", json!({"ms": 300}));
        eventually("under way", async || fake.calls_of("later").get(round - 1).cloned()).await;
        // Also if it was gone for a moment.
        if round == 3 {
            assert!(gateway.apply(&none).await);
        }
        let settings = format!("exclusive = true\ntimeout = \"{}s\"", 30 + round);
        assert!(gateway.apply(&none.clone().fake_with("fake", &[], &settings)).await);
        let waiting: Vec<_> = (0..3).map(|_| gateway.spawn_call("fake", "pid", "")).collect();
        assert_eq!(call.await.unwrap().tool_text(), "later");
        eventually("the next", async || {
            let pids = fake.pids();
            (pids.len() == round + 1).then(|| assert!(!is_alive(pids[round - 1]), "two at once"))
        })
        .await;
        for call in waiting {
            let pid = in_time("answered", call).await.unwrap().tool_text();
            assert_eq!(pid, fake.pids()[round].to_string());
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn an_exclusive_server_is_not_waited_for_longer_than_its_calls_usually_may_take() {
    let none = Setup::new();
    let settings = |max: &str| format!("exclusive = true\ntimeout = \"1s\"\nmax_timeout = {max:?}");
    let gateway = none.clone().fake_with("fake", &[], &settings("1s")).start().await;
    let fake = gateway.fake("fake");
    let held = gateway.post("fake", "hold", json!({})).header("Trunkline-Timeout-Ms", "60000");
    let held = tokio::spawn(Answer::of(held));
    eventually("held", async || fake.calls_of("hold").pop()).await;
    assert!(gateway.apply(&none.fake_with("fake", &[], &settings("2s"))).await);
    let next = gateway.post("fake", "pid", json!({})).header("Trunkline-Timeout-Ms", "60000");
    let next = in_time("answered", Answer::of(next)).await.tool_text();
    assert_eq!(next, fake.pids()[1].to_string());
    assert_eq!(held.await.unwrap().problem(), failed(502, "backend_exited"));
    gateway.stop().await;
}

#[tokio::test]
async fn how_long_the_drain_may_take_can_change_too() {
    let fake = Setup::new().fake("fake");
    let gateway = fake.clone().start().await;
    assert!(gateway.apply(&fake.set("drain_timeout = \"300ms\"")).await);
    let held = gateway.spawn_call("fake", "hold", "{}");
    eventually("held", async || gateway.fake("fake").calls_of("hold").pop()).await;
    gateway.shut_down();
    // Within the half minute that it was, it would be waited for.
    assert_eq!(in_time("ended", held).await.unwrap().problem(), failed(502, "backend_exited"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_lazy_server_is_replaced_at_once_and_starts_with_its_next_call() {
    let none = Setup::new();
    let gateway = none.clone().fake_with("fake", &[], "start = \"lazy\"").start().await;
    let fake = gateway.fake("fake");
    let old = pid(&gateway, "fake").await;
    let changed = none.fake_with("fake", &[], "start = \"lazy\"\ntimeout = \"31s\"");
    assert!(gateway.apply(&changed).await);
    assert_eq!(gateway.server("fake").await.json()["state"], "idle");
    is_gone(fake.pids()[0]).await;
    assert_ne!(pid(&gateway, "fake").await, old);
    assert_eq!(fake.pids().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_mistake_anywhere_changes_nothing() {
    let one = Setup::new().fake("one");
    let gateway = one.clone().start().await;
    let before = pid(&gateway, "one").await;
    let mistaken = one.clone().without_servers().fake("two").fake_with("three", &[], "timeout = 7");
    assert!(!gateway.apply(&mistaken).await);
    assert_eq!(pid(&gateway, "one").await, before);
    assert_eq!(gateway.servers().await.json()["servers"].as_array().unwrap().len(), 1);
    assert_eq!(gateway.readyz().await.status, 200);
    assert!(gateway.fake("two").pids().is_empty());
    assert!(gateway.apply(&one).await);
    assert_eq!(gateway.reloads().await, (1.0, 1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_keeps_its_process_and_the_next_one_gets_the_new() {
    let none = Setup::new();
    let settings = "sharing = \"session\"";
    let gateway = none.clone().fake_with("fake", &[], settings).start().await;
    let first = Session::open(&gateway, "/mcp/fake").await;
    let old = first.tool_text("pid", json!({})).await;
    assert!(gateway.apply(&none.clone().fake_with("fake", &["pages=2"], settings)).await);
    let second = Session::open(&gateway, "/mcp/fake").await;
    let new = second.tool_text("pid", json!({})).await;
    assert_ne!(new, old);
    assert_eq!(first.tool_text("pid", json!({})).await, old);
    // Gone for all of them.
    assert!(gateway.apply(&none).await);
    eventually("nothing runs", async || gateway.processes().is_empty().then_some(())).await;
    gateway.stop().await;
}
