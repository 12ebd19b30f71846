//! Servers of which several instances run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::Instant;
use trunkline::backend::supervise::restart_policy::Budget;

use crate::support::{Answer, Gateway, Setup, eventually, in_time, is_alive, kill, within};

/// A gateway with a server of these settings.
async fn start(settings: &str) -> Gateway {
    Setup::new().fake_with("fake", &[], settings).start().await
}

/// Calls one after another; how many each process had.
async fn calls_by_process(gateway: &Gateway, calls: usize) -> BTreeMap<String, usize> {
    let mut by_process = BTreeMap::new();
    for _ in 0..calls {
        let pid = gateway.call("fake", "pid", "{}").await.tool_text();
        *by_process.entry(pid).or_default() += 1;
    }
    by_process
}

/// Waits until so many instances are ready.
async fn has_ready(gateway: &Gateway, instances: usize) {
    eventually("ready", async || {
        (gateway.server("fake").await.json()["ready"] == instances).then_some(())
    })
    .await;
}

/// Waits until its server takes no more calls, and still has some.
async fn is_draining(gateway: &Gateway) {
    eventually("draining", async || {
        (gateway.server("fake").await.json()["state"] == "draining").then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_are_spread_evenly_over_the_instances() {
    let gateway = start("instances = 4").await;
    has_ready(&gateway, 4).await;
    let by_process = calls_by_process(&gateway, 40).await;
    assert_eq!(by_process.values().copied().collect::<Vec<_>>(), [10; 4]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_copy_that_is_new_does_not_take_all_calls_until_it_has_had_as_many() {
    let gateway = start("instances = 4").await;
    has_ready(&gateway, 4).await;
    calls_by_process(&gateway, 20).await;
    let fake = gateway.fake("fake");
    kill(fake.pids()[0], Signal::KILL);
    eventually("another", async || (fake.pids().len() == 5).then_some(())).await;
    has_ready(&gateway, 4).await;
    let by_process = calls_by_process(&gateway, 40).await;
    assert_eq!(by_process.values().copied().collect::<Vec<_>>(), [10; 4]);
    gateway.stop().await;
}

#[tokio::test]
async fn the_least_busy_copy_takes_the_call_and_none_takes_more_than_its_bound() {
    let gateway = start("instances = 2\nmax_in_flight = 1").await;
    has_ready(&gateway, 2).await;
    let held: Vec<_> = (0..2).map(|_| gateway.spawn_call("fake", "hold", "{}")).collect();
    let fake = gateway.fake("fake");
    eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
    // All places are taken: one more waits, whatever it is.
    let waits = gateway.call_within_ms(200, "fake", "raw", "{}").await;
    assert_eq!(waits.status, 504);
    assert!(fake.calls_of("raw").is_empty());
    for pid in fake.pids() {
        kill(pid, Signal::KILL);
    }
    for call in held {
        assert_eq!(call.await.unwrap().json()["code"], "backend_exited");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn while_one_copy_is_down_the_others_serve() {
    let gateway = start("instances = 3").await;
    has_ready(&gateway, 3).await;
    let pids = gateway.fake("fake").pids();
    kill(pids[0], Signal::KILL);
    // What is written until its end is noticed may have been executed.
    eventually("noticed", async || {
        let is_noticed = gateway.server("fake").await.json()["ready"] != 3;
        (is_noticed || gateway.fake("fake").pids().len() > 3).then_some(())
    })
    .await;
    let by_process = calls_by_process(&gateway, 30).await;
    assert!(!by_process.contains_key(&pids[0].to_string()));
    has_ready(&gateway, 3).await;
    assert_eq!(gateway.fake("fake").pids().len(), 4);
    gateway.stop().await;
}

#[tokio::test]
async fn a_copy_that_has_served_its_time_is_replaced_without_a_failed_call() {
    let gateway = start("recycle.calls = 5").await;
    let fake = gateway.fake("fake");
    eventually("three processes", async || {
        let answer = gateway.call("fake", "raw", "{}").await;
        assert_eq!(answer.tool_text(), "{}");
        (fake.pids().len() >= 3).then_some(())
    })
    .await;
    // The first one had nothing left to do.
    let first = fake.pids()[0];
    eventually("gone", async || (!is_alive(first)).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_copy_that_is_old_is_replaced_without_a_failed_call() {
    let gateway = start("recycle.age = \"1s\"").await;
    let fake = gateway.fake("fake");
    eventually("three processes", async || {
        assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
        (fake.pids().len() >= 3).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn metrics_show_what_was_found_out_about_a_server_that_does_one_after_the_other() {
    let gateway = start("adaptive = true\nmax_in_flight = 16").await;
    let slots =
        async || gateway.metrics().await.value("trunkline_server_slots{server=\"fake\"}").unwrap();
    assert_eq!(slots().await, 16.0);
    let callers: Vec<_> = (0..16).map(|_| (*gateway).clone()).collect();
    let calling = callers.into_iter().map(|api| {
        tokio::spawn(async move {
            loop {
                api.call("fake", "serial", r#"{"ms":5}"#).await.tool_text();
            }
        })
    });
    let calling: Vec<_> = calling.collect();
    within(Duration::from_secs(60), "fewer slots", async || (slots().await <= 3.0).then_some(()))
        .await;
    calling.iter().for_each(|calls| calls.abort());
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_is_under_way_on_a_copy_that_is_replaced_is_answered() {
    let gateway = start("recycle.calls = 1").await;
    let fake = gateway.fake("fake");
    let slow = gateway.spawn_call("fake", "later", r#"{"ms":3000}"#);
    eventually("replaced", async || (fake.pids().len() >= 2).then_some(())).await;
    assert!(is_alive(fake.pids()[0]));
    assert_eq!(slow.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_takes_long_on_a_copy_that_was_replaced_does_not_keep_the_next_from_it() {
    let gateway = start("recycle.calls = 1\ntimeout = \"3s\"").await;
    let fake = gateway.fake("fake");
    let hold = gateway.post("fake", "hold", "{}").header("trunkline-timeout-ms", "300000");
    let held = tokio::spawn(Answer::of(hold));
    eventually("replaced", async || (fake.pids().len() == 2).then_some(())).await;
    // The second has its call, too, and is replaced as soon as calls have usually ended.
    eventually("replaced again", async || {
        assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
        (fake.pids().len() >= 3).then_some(())
    })
    .await;
    assert!(is_alive(fake.pids()[0]) && !held.is_finished());
    kill(fake.pids()[0], Signal::KILL);
    assert_eq!(held.await.unwrap().json()["code"], "backend_exited");
    gateway.stop().await;
}

#[tokio::test]
async fn only_so_many_instances_start_at_once() {
    let at_once = (std::thread::available_parallelism().unwrap().get() / 2).clamp(1, 8);
    let (began, settings) = (Instant::now(), format!("instances = {}", at_once + 1));
    // None of them gets ready: each holds its turn as long as it may, and no longer.
    let setup = Setup::new().fake_with("fake", &["start=mute"], &settings);
    let gateway = setup.start_at_once().await;
    eventually("all", async || (gateway.fake("fake").pids().len() > at_once).then_some(())).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "after {:?}", began.elapsed());
    gateway.stop().await;
}

#[tokio::test]
async fn planned_replacements_do_not_count_as_starts_after_failures() {
    let setup = Setup::new().fake_with("fake", &[], "recycle.calls = 1");
    // More would be quarantine.
    let budget = Budget { starts: 3, within: Duration::from_secs(3600), ..Budget::default() };
    let tenants = setup.start_within(budget, &["local"]).await;
    let (api, fake) = (tenants.first(), tenants.fake("fake"));
    let fifth = eventually("the fifth process serves", async || {
        let pid = api.call("fake", "pid", "{}").await.tool_text().parse().unwrap();
        (fake.pids().len() >= 5 && fake.pids().last() == Some(&pid)).then_some(pid)
    })
    .await;
    kill(fifth, Signal::KILL);
    eventually("back", async || {
        let answer = api.call("fake", "raw", "{}").await;
        // Only one that it had when it was killed.
        assert!(answer.status == 200 || answer.json()["code"] == "backend_exited", "{answer:?}");
        (answer.status == 200 && fake.pids().len() >= 6).then_some(())
    })
    .await;
    tenants.stop().await;
}

#[tokio::test]
async fn a_copy_that_uses_too_much_memory_is_replaced_but_not_again_and_again() {
    let gateway = start("recycle.memory = \"1MiB\"").await;
    let fake = gateway.fake("fake");
    within(Duration::from_secs(60), "replaced", async || (fake.pids().len() >= 2).then_some(()))
        .await;
    assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
    assert_eq!(fake.pids().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_copy_that_ends_while_it_is_replaced_holds_up_nobody() {
    // No successor ever gets ready.
    let settings = "instances = 2\nrecycle.calls = 1\nstart_timeout = \"60s\"";
    let gateway = Setup::new().fake_with("fake", &["mute_after=2"], settings).start().await;
    let fake = gateway.fake("fake");
    has_ready(&gateway, 2).await;
    let pid = gateway.call("fake", "pid", "{}").await.tool_text();
    eventually("a successor", async || (fake.pids().len() >= 3).then_some(())).await;
    kill(pid.parse().unwrap(), Signal::KILL);
    has_ready(&gateway, 1).await;
    for _ in 0..20 {
        let answer = in_time("an answer", gateway.call("fake", "raw", "{}")).await;
        assert_eq!(answer.tool_text(), "{}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn two_instances_of_an_exclusive_server_never_run_side_by_side() {
    let gateway = start("recycle.calls = 1\nexclusive = true").await;
    let fake = gateway.fake("fake");
    let slow = gateway.spawn_call("fake", "later", r#"{"ms":1500}"#);
    gateway.has_in_flight("fake", 1.0).await;
    eventually("three processes", async || {
        assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
        let alive = fake.pids().into_iter().filter(|pid| is_alive(*pid)).count();
        assert!(alive <= 1, "{alive} at once");
        (fake.pids().len() >= 3).then_some(())
    })
    .await;
    assert_eq!(slow.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn an_exclusive_server_that_hangs_is_not_waited_for_before_it_is_replaced() {
    let gateway = start("recycle.calls = 2\nexclusive = true").await;
    let deaf = gateway.call_within_ms(200, "fake", "deaf", "{}").await;
    assert_eq!(deaf.status, 504);
    // It was sent, and will never be read; those that come after it wait for the next run.
    let lost = gateway.spawn_call("fake", "raw", "{}");
    is_draining(&gateway).await;
    assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
    assert_eq!(in_time("told", lost).await.unwrap().json()["code"], "backend_exited");
    gateway.stop().await;
}

#[tokio::test]
async fn callers_that_wait_for_an_exclusive_server_are_told_at_once_when_it_is_stopped() {
    let setup = Setup::new().set("drain_timeout = \"300ms\"");
    let setup = setup.fake_with("fake", &[], "recycle.calls = 1\nexclusive = true");
    let gateway = setup.start().await;
    // It does not end by itself.
    let deaf = gateway.spawn_call("fake", "deaf", "{}");
    is_draining(&gateway).await;
    let waits = gateway.spawn_call("fake", "raw", "{}");
    gateway.has_in_flight("fake", 2.0).await;
    gateway.shut_down();
    assert_eq!(waits.await.unwrap().json()["code"], "shutting_down");
    assert_eq!(deaf.await.unwrap().json()["code"], "backend_exited");
    gateway.stop().await;
}

#[tokio::test]
async fn many_callers_of_a_lazy_server_start_each_copy_once() {
    let gateway = start("instances = 2\nstart = \"lazy\"").await;
    let calls: Vec<_> = (0..20).map(|_| gateway.spawn_call("fake", "pid", "{}")).collect();
    let mut pids = BTreeSet::new();
    for call in calls {
        pids.insert(call.await.unwrap().tool_text());
    }
    has_ready(&gateway, 2).await;
    assert_eq!(gateway.fake("fake").pids().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn four_instances_of_a_serial_server_do_four_calls_at_once() {
    let setup = Setup::new();
    let gateway = setup
        .server("slow", "trunkline", &["std".to_owned()], "instances = 4\nmax_in_flight = 1")
        .start()
        .await;
    eventually("ready", async || (gateway.server("slow").await.json()["ready"] == 4).then_some(()))
        .await;
    let begun = Instant::now();
    let sleep = json!({"ms": 1000}).to_string();
    let calls: Vec<_> = (0..4).map(|_| gateway.spawn_call("slow", "sleep", &sleep)).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().status, 200);
    }
    // One after another they would take four seconds.
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
    gateway.stop().await;
}
