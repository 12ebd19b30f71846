//! Timeouts of a batch and of its calls, with and without a key.

use std::time::Duration;

use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::batch::{outcomes, statuses};
use crate::support::{Answer, Api, Gateway, Setup, eventually};

fn post(api: &Api, batch: &Value) -> RequestBuilder {
    api.client.post(api.url("/v1/batch")).body(batch.to_string())
}

fn hold(id: &str) -> Value {
    json!({"id": id, "server": "fake", "tool": "hold"})
}

/// A call that is never answered and has a short time, and one beside it.
fn with_a_short_one() -> Value {
    let mut short = hold("short");
    short["timeout_ms"] = json!(150);
    json!({"calls": [short, {"id": "other", "server": "fake", "tool": "raw"}]})
}

fn assert_late(outcome: &Value) {
    assert_eq!((&outcome["status"], &outcome["executed"]), (&json!(504), &json!("unknown")));
    assert_eq!(outcome["problem"]["code"], "deadline_exceeded");
}

async fn cancelled(gateway: &Gateway) {
    let fake = gateway.fake("fake");
    eventually("cancelled", async || fake.received_of("notifications/cancelled").pop()).await;
}

#[tokio::test]
async fn a_call_ends_at_its_own_timeout() {
    let gateway = Setup::new().fake("fake").start().await;
    let outcomes = outcomes(&gateway, with_a_short_one()).await;
    assert_late(&outcomes[0]);
    assert_eq!(outcomes[1]["status"], 200);
    cancelled(&gateway).await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_time_of_a_call_begins_when_the_call_does() {
    let gateway = Setup::new().fake("fake").start().await;
    for key in [None, Some("k")] {
        let later = |ms: u64| json!({"ms": ms});
        // The second has less time than the first takes.
        let batch = json!({"calls": [
            {"id": "a", "server": "fake", "tool": "later", "arguments": later(2500)},
            {"id": "b", "server": "fake", "tool": "later", "arguments": later(10),
             "depends_on": ["a"], "timeout_ms": 2400},
        ]});
        let request = post(&gateway, &batch);
        let request = key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
        let answer = Answer::of(request).await.json();
        assert_eq!(statuses(answer["results"].as_array().unwrap()), [200, 200], "{answer}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_time_of_the_batch_ends_all_of_its_calls() {
    let gateway = Setup::new().fake("fake").start().await;
    let mut second = hold("b");
    second["depends_on"] = json!(["a"]);
    second["if_dependency_fails"] = json!("run");
    let began = Instant::now();
    let outcomes =
        outcomes(&gateway, json!({"timeout_ms": 300, "calls": [hold("a"), second]})).await;
    assert_late(&outcomes[0]);
    // No time was left for it.
    assert_eq!(outcomes[1]["problem"]["code"], "deadline_exceeded");
    assert_eq!(outcomes[1]["executed"], "no");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(gateway.fake("fake").calls_of("hold").len(), 1);
    cancelled(&gateway).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_timeout_ends_the_waiting_for_a_keyed_call_and_not_the_call() {
    let gateway = Setup::new().fake("fake").start().await;
    let of_batch = json!({"timeout_ms": 300, "calls": [hold("whole")]});
    for (key, batch) in [("item", with_a_short_one()), ("batch", of_batch)] {
        let send = || Answer::of(post(&gateway, &batch).header("Idempotency-Key", key));
        for _ in 0..2 {
            let late = send().await.json()["results"].clone();
            assert_late(&late[0]);
            assert_eq!(late[0]["problem"]["retryable"], true, "{late}");
        }
        let fake = gateway.fake("fake");
        assert!(fake.received_of("notifications/cancelled").is_empty());
        gateway.call("fake", "release", "{}").await.tool_text();
        let again = send().await.json()["results"].clone();
        assert_eq!((&again[0]["status"], &again[0]["replayed"]), (&json!(200), &json!(true)));
    }
    assert_eq!(gateway.fake("fake").calls_of("hold").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn a_retry_waits_for_calls_that_run_no_longer_than_it_prefers() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!({"calls": [hold("a"), {"id": "b", "server": "fake", "tool": "raw"}]});
    let keyed = || post(&gateway, &batch).header("Idempotency-Key", "k");
    let first = tokio::spawn(Answer::of(keyed().header("Prefer", "wait=0")));
    let fake = gateway.fake("fake");
    eventually("held", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    let again = Answer::of(keyed().header("Prefer", "wait=0")).await.json()["results"].clone();
    assert_eq!((&again[0]["status"], &again[0]["executed"]), (&json!(409), &json!("no")));
    assert_eq!(again[0]["problem"]["code"], "in_progress");
    gateway.call("fake", "release", "{}").await.tool_text();
    // The request that has begun a call waits for it.
    let first = first.await.unwrap().json()["results"].clone();
    assert_eq!(statuses(first.as_array().unwrap()), [200, 200]);
    gateway.stop().await;
}
