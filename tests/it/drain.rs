//! The end of a gateway, as its callers see it.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::support::{Answer, Http2, Setup, eventually, failed};

#[tokio::test]
async fn connections_without_a_request_do_not_hold_up_the_end() {
    let gateway = Setup::new().std().start().await;
    let _silent = gateway.connect().await;
    let mut idle = gateway.connect().await;
    idle.send_call("/v1/servers/std/tools/uuid", "{}").await;
    idle.response().await;
    let began = Instant::now();
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(idle.rest().await, "");
}

#[tokio::test]
async fn half_a_request_holds_up_the_end_no_longer_than_header_timeout() {
    let gateway = Setup::new().set("header_timeout = \"1s\"").std().start().await;
    let mut half = gateway.connect().await;
    half.send("POST /v1/servers/std/tools/uuid HTTP/1.1\r\nhost: x").await;
    let began = Instant::now();
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn new_connections_are_refused_while_calls_in_flight_end() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let last = gateway.spawn_call("fake", "later", json!({"ms": 1000}));
    eventually("under way", async || fake.calls_of("later").pop()).await;
    gateway.shut_down();
    eventually("refused", async || tokio::net::TcpStream::connect(gateway.addr).await.err()).await;
    assert!(!last.is_finished());
    assert_eq!(last.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn http2_connections_are_told_to_go_away_and_their_calls_in_flight_answered() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let connection = Http2::connect(gateway.addr).await;
    let last = connection.clone().call("fake", "later", json!({"ms": 2000}).to_string());
    let last = tokio::spawn(last);
    eventually("under way", async || fake.calls_of("later").pop()).await;
    gateway.shut_down();
    // Not that it is closed: the connection is there, and takes no more.
    eventually("told to go away", async || {
        connection.clone().try_call("fake", "raw", "{}".to_owned()).await.err()
    })
    .await;
    assert!(!last.is_finished());
    assert_eq!(last.await.unwrap().tool_text(), "later");
    gateway.stop().await;
}

#[tokio::test]
async fn calls_that_outlast_the_drain_are_told_that_their_outcome_is_unknown() {
    let gateway = Setup::new()
        .set("drain_timeout = \"300ms\"")
        .fake_with("fake", &[], "max_in_flight = 2")
        .start()
        .await;
    let fake = gateway.fake("fake");
    let held: Vec<_> = (0..2).map(|_| gateway.spawn_call("fake", "hold", "{}")).collect();
    eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
    gateway.shut_down();
    for call in held {
        assert_eq!(call.await.unwrap().problem(), failed(502, "backend_exited"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn calls_that_still_wait_at_the_end_of_the_drain_were_not_run() {
    let gateway = Setup::new()
        .set("drain_timeout = \"300ms\"")
        .fake_with("fake", &[], "max_in_flight = 1")
        .start()
        .await;
    let fake = gateway.fake("fake");
    let held = gateway.spawn_call("fake", "hold", "{}");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    let waiting = gateway.spawn_call("fake", "raw", "{}");
    gateway.has_in_flight("fake", 2.0).await;
    gateway.shut_down();
    assert_eq!(held.await.unwrap().problem(), failed(502, "backend_exited"));
    let answer = waiting.await.unwrap();
    assert_eq!(answer.problem(), crate::support::refused(503, "shutting_down").for_now());
    assert_eq!(answer.retry_after(), Some(1));
    assert!(fake.calls_of("raw").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_second_attempt_then_may_have_been_run_by_the_first() {
    let settings = "max_in_flight = 1\nretry = \"safe\"\nattempt_timeout = \"200ms\"";
    let gateway = Setup::new()
        .set("drain_timeout = \"300ms\"")
        .fake_with("fake", &[], settings)
        .start()
        .await;
    let waiting = gateway.spawn_call("fake", "steps", json!({"steps": ["hang"]}));
    let retries = "trunkline_retries_total{server=\"fake\"}";
    eventually("its second attempt", async || {
        (gateway.metrics().await.value(retries) == Some(1.0)).then_some(())
    })
    .await;
    gateway.shut_down();
    let answer: Answer = waiting.await.unwrap();
    assert_eq!(answer.problem(), failed(503, "shutting_down"));
    assert_eq!(answer.header("trunkline-attempts"), "2");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_never_gets_ready_does_not_hold_up_the_end() {
    let gateway = Setup::new().fake_with("fake", &["start=mute"], "").start_at_once().await;
    let fake = gateway.fake("fake");
    eventually("started", async || fake.pids().pop()).await;
    // Fails if it takes as long as `start_timeout`.
    gateway.stop().await;
}
