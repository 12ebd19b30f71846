//! Many callers, one server.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{Answer, Setup, eventually, failed, kill};

#[tokio::test]
async fn five_calls_take_as_long_as_one() {
    let gateway = Setup::new().std().start().await;
    let began = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        calls.spawn(Answer::of(gateway.post("std", "sleep", json!({"ms": 1000}))));
    }
    for answer in calls.join_all().await {
        assert_eq!(answer.tool_text(), "slept 1000 ms");
    }
    let took = began.elapsed();
    assert!(
        took < Duration::from_millis(2500),
        "one after another would be 5 s, this was {took:?}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn of_five_calls_one_times_out_and_the_others_do_not_notice() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let others: Vec<_> = (0..4).map(|_| gateway.spawn_call("fake", "hold", "{}")).collect();
    eventually("held", async || (fake.calls_of("hold").len() == 4).then_some(())).await;
    let late = gateway.call_within_ms(200, "fake", "hold", "{}").await;
    assert_eq!(late.problem(), failed(504, "deadline_exceeded"));
    gateway.call("fake", "release", "").await.tool_text();
    for other in others {
        assert_eq!(other.await.unwrap().tool_text(), "{}");
    }
    assert_eq!(fake.pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn answers_in_any_order_reach_their_own_callers() {
    let gateway = Setup::new().fake("fake").start().await;
    let held: Vec<_> =
        (0..20).map(|n| gateway.spawn_call("fake", "hold", json!({"n": n}))).collect();
    let fake = gateway.fake("fake");
    eventually("all held", async || (fake.calls_of("hold").len() == 20).then_some(())).await;
    // The server answers the last one first.
    gateway.call("fake", "release", "").await.tool_text();
    for (n, call) in held.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().tool_text(), json!({"n": n}).to_string());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_serial_server_gets_one_call_at_a_time_in_the_order_they_came() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    // While it is stopped the calls line up, one after another.
    kill(fake.pids()[0], Signal::STOP);
    let mut calls = vec![];
    for n in 0..8 {
        calls.push(gateway.spawn_call("fake", "later", json!({"ms": 10, "n": n})));
        let lined_up = f64::from(n + 1);
        gateway.has_in_flight("fake", lined_up).await;
    }
    kill(fake.pids()[0], Signal::CONT);
    for call in calls {
        call.await.unwrap().tool_text();
    }
    let trace = fake.trace();
    let of_calls: Vec<_> = trace
        .iter()
        .skip_while(|line| !line.contains("tools/call"))
        .map(|line| line.split_at(2))
        .collect();
    for (n, exchange) in of_calls.chunks(2).enumerate() {
        let [("> ", request), ("< ", _)] = exchange else { panic!("not in turns: {of_calls:?}") };
        assert!(request.contains(&format!("\"n\":{n}}}")), "out of order: {of_calls:?}");
    }
    assert_eq!(of_calls.len(), 16);
    gateway.stop().await;
}

#[tokio::test]
async fn calls_are_limited_to_max_in_flight_at_once() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 3").start().await;
    let fake = gateway.fake("fake");
    let calls: Vec<_> =
        (0..9).map(|_| gateway.spawn_call("fake", "later", json!({"ms": 50}))).collect();
    for call in calls {
        call.await.unwrap().tool_text();
    }
    let (mut now, mut most) = (0_usize, 0);
    for line in fake.trace().iter().skip_while(|line| !line.contains("tools/call")) {
        if line.starts_with("> ") {
            now += 1;
        } else {
            now -= 1;
        }
        most = most.max(now);
    }
    assert_eq!(most, 3);
    gateway.stop().await;
}

#[tokio::test]
async fn runs_of_one_tenant_take_turns_by_their_fairness_key() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    // While it is stopped the calls line up, one after another.
    kill(fake.pids()[0], Signal::STOP);
    let mut calls = JoinSet::new();
    for n in 0..21 {
        let key = if n < 20 { "long run" } else { "short run" };
        let call = gateway.post("fake", "later", json!({"ms": 1, "n": n}));
        calls.spawn(Answer::of(call.header("trunkline-fairness-key", key)));
        gateway.has_in_flight("fake", f64::from(n + 1)).await;
    }
    kill(fake.pids()[0], Signal::CONT);
    for answer in calls.join_all().await {
        answer.tool_text();
    }
    let order: Vec<String> = fake
        .trace()
        .iter()
        .filter(|line| line.starts_with("> ") && line.contains("tools/call"))
        .map(|line| line.split("\"n\":").nth(1).unwrap().split('}').next().unwrap().to_owned())
        .collect();
    // The first call had the slot; one of the long run's was next in line.
    assert_eq!(order[..4], ["0", "1", "20", "2"]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_fairness_key_has_at_most_64_characters() {
    let gateway = Setup::new().std().start().await;
    for (key, status) in [("k".repeat(64), 200), ("k".repeat(65), 400), (String::new(), 400)] {
        let call = gateway.post("std", "uuid", "").header("trunkline-fairness-key", key);
        let answer = Answer::of(call).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    gateway.stop().await;
}
