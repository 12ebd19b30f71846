//! The rate of a server itself, over all tenants (`rate`).

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::support::{Answer, Api, Setup, eventually, in_time, kill, refused};

/// Makes so many calls at once for each; how long all of them took.
async fn all_take(callers: &[Api], calls: usize) -> Duration {
    let began = Instant::now();
    let calls =
        callers.iter().flat_map(|api| (0..calls).map(|_| api.spawn_call("fake", "raw", "{}")));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().tool_text(), "{}");
    }
    began.elapsed()
}

#[tokio::test]
async fn a_server_is_asked_no_more_often_than_its_rate_says() {
    let gateway = Setup::new().fake_with("fake", &[], "rate = \"5/s\"").start().await;
    let took = all_take(&[(*gateway).clone()], 6).await;
    // The first at once, and each of the others a fifth of a second after the one before.
    assert!(took >= Duration::from_millis(990), "{took:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn processes_of_several_tenants_keep_the_rate_of_their_server_together() {
    let setup = Setup::new().with_tenant("acme", "servers = [\"*\"]");
    let setup = setup.with_tenant("globex", "servers = [\"*\"]");
    let settings = "sharing = \"tenant\"\nrate = \"4/s\"";
    let gateway = setup.fake_with("fake", &[], settings).start().await;
    let tenants = [gateway.as_tenant("acme").await, gateway.as_tenant("globex").await];
    // Their processes run from here on.
    all_take(&tenants, 1).await;
    let took = all_take(&tenants, 4).await;
    assert!(took >= Duration::from_millis(1700), "{took:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn who_waits_for_its_turn_is_told_at_once_when_the_server_is_in_quarantine() {
    let gateway = Setup::new().fake_with("fake", &[], "rate = \"1/h\"").start().await;
    assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
    let post = gateway.post("fake", "raw", "{}").header("trunkline-timeout-ms", "300000");
    let waits = tokio::spawn(Answer::of(post));
    gateway.has_in_flight("fake", 1.0).await;
    let fake = gateway.fake("fake");
    for start in 0..5 {
        assert!(!waits.is_finished(), "it may be started again still");
        let pid = eventually("a start", async || fake.pids().get(start).copied()).await;
        kill(pid, Signal::KILL);
    }
    let answer = in_time("told", waits).await.unwrap();
    assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
    assert!(answer.retry_after().is_some_and(|seconds| seconds > 10), "{answer:?}");
    gateway.stop().await;
}
