//! Callers that do not wait for the answer.

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Gateway, Http2, Setup, eventually, failed, kill, refused};

const HOLD: &str = "/v1/servers/fake/tools/hold";

async fn held(gateway: &Gateway, n: usize) {
    let fake = gateway.fake("fake");
    eventually("held", async || (fake.calls_of("hold").len() == n).then_some(())).await;
}

async fn cancelled(gateway: &Gateway, n: usize) {
    let fake = gateway.fake("fake");
    let cancelled = "notifications/cancelled";
    eventually("told", async || (fake.received_of(cancelled).len() == n).then_some(())).await;
}

/// The server was told once, of the first call it got, and of no other.
fn first_call_is_cancelled(gateway: &Gateway, reason: &str) {
    let fake = gateway.fake("fake");
    let id = &fake.calls_of("hold")[0]["id"];
    let params: Vec<_> = fake.received_of("notifications/cancelled");
    assert_eq!(params.len(), 1);
    assert_eq!(params[0]["params"], json!({"requestId": id, "reason": reason}));
}

#[tokio::test]
async fn a_caller_that_hangs_up_cancels_its_own_call_alone() {
    let gateway = Setup::new().fake("fake").start().await;
    let mut leaver = gateway.connect().await;
    leaver.send_call(HOLD, "{}").await;
    held(&gateway, 1).await;
    let stayer = gateway.spawn_call("fake", "hold", json!({"stays": true}));
    held(&gateway, 2).await;

    drop(leaver);
    cancelled(&gateway, 1).await;
    gateway.call("fake", "release", "").await.tool_text();
    assert_eq!(stayer.await.unwrap().tool_text(), "{\"stays\":true}");
    first_call_is_cancelled(&gateway, "the caller went away");
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("trunkline_cancelled_calls_total{server=\"fake\"}"), Some(1.0));
    assert_eq!(metrics.value("trunkline_late_answers_total{server=\"fake\"}"), Some(1.0));
    let calls = "trunkline_calls_total{outcome=\"cancelled\",server=\"fake\",tool=\"hold\"}";
    assert_eq!(metrics.value(calls), Some(1.0));
    gateway.stop().await;
}

#[tokio::test]
async fn a_reset_stream_of_http2_cancels_its_own_call_alone() {
    let gateway = Setup::new().fake("fake").start().await;
    let connection = Http2::connect(gateway.addr).await;
    let leaver = tokio::spawn(connection.clone().call("fake", "hold", "{}".to_owned()));
    held(&gateway, 1).await;
    let stayer = tokio::spawn(connection.call("fake", "hold", "{\"stays\":true}".to_owned()));
    held(&gateway, 2).await;

    leaver.abort();
    cancelled(&gateway, 1).await;
    gateway.call("fake", "release", "").await.tool_text();
    assert_eq!(stayer.await.unwrap().tool_text(), "{\"stays\":true}");
    first_call_is_cancelled(&gateway, "the caller went away");
    gateway.stop().await;
}

#[tokio::test]
async fn a_deadline_that_passes_cancels_the_call() {
    let gateway = Setup::new().fake("fake").start().await;
    let answer = gateway.call_within_ms(1000, "fake", "hold", "{}").await;
    assert_eq!(answer.problem(), failed(504, "deadline_exceeded"));
    cancelled(&gateway, 1).await;
    first_call_is_cancelled(&gateway, "deadline exceeded");
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_never_sent_is_not_cancelled() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    kill(fake.pids()[0], Signal::STOP);
    let first = gateway.spawn_call("fake", "later", json!({"ms": 0}));
    gateway.has_in_flight("fake", 1.0).await;
    let answer = gateway.call_within_ms(1000, "fake", "hold", "{}").await;
    assert_eq!(answer.problem(), refused(504, "deadline_exceeded").for_now());
    kill(fake.pids()[0], Signal::CONT);
    first.await.unwrap().tool_text();
    gateway.call("fake", "raw", "{}").await.tool_text();
    assert!(fake.calls_of("hold").is_empty());
    assert!(fake.received_of("notifications/cancelled").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_was_given_up_keeps_its_slot_until_the_server_is_done() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let fake = gateway.fake("fake");
    let answer = gateway.call_within_ms(1000, "fake", "later", json!({"ms": 3000})).await;
    assert_eq!(answer.problem(), failed(504, "deadline_exceeded"));
    gateway.call("fake", "raw", "{}").await.tool_text();
    let trace = fake.trace();
    let at = |text: &str| trace.iter().position(|line| line.contains(text)).unwrap();
    assert!(at("\"text\": \"later\"") < at("\"name\":\"raw\",\"arguments\""), "{trace:#?}");
    gateway.stop().await;
}
