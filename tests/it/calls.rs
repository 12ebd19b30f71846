//! A call as `curl` would make it.

use std::collections::HashSet;

use serde_json::json;

use crate::support::Setup;

#[tokio::test]
async fn a_call_is_answered_with_the_tools_result() {
    let gateway = Setup::new().std().start().await;
    let answer = gateway.call("std", "echo", json!({"text": "hello"})).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    assert_eq!(answer.header("trunkline-outcome"), "ok");
    assert_eq!(answer.json()["content"], json!([{"type": "text", "text": "hello"}]));
    gateway.stop().await;
}

#[tokio::test]
async fn every_call_has_an_id_of_its_own() {
    let gateway = Setup::new().std().start().await;
    let mut ids = HashSet::new();
    for tool in ["uuid", "uuid", "no_such_tool"] {
        ids.insert(gateway.call("std", tool, "").await.header("trunkline-call-id").to_owned());
    }
    ids.insert(gateway.call("std", "uuid", "no JSON").await.header("trunkline-call-id").to_owned());
    assert_eq!(ids.len(), 4);
    assert!(!ids.contains(""));
    gateway.stop().await;
}

#[tokio::test]
async fn the_answer_tells_where_the_time_went() {
    let gateway = Setup::new().std().start().await;
    let answer = gateway.call("std", "sleep", json!({"ms": 200})).await;
    let timing = answer.header("server-timing");
    let (queue, backend) = timing.split_once(", ").unwrap();
    let queue_ms: f64 = queue.strip_prefix("queue;dur=").unwrap().parse().unwrap();
    let backend_ms: f64 = backend.strip_prefix("backend;dur=").unwrap().parse().unwrap();
    assert!(backend_ms >= 199.0, "{timing}");
    assert!((0.0..backend_ms).contains(&queue_ms), "{timing}");
    gateway.stop().await;
}

#[tokio::test]
async fn without_a_body_the_arguments_are_empty() {
    let gateway = Setup::new().fake("fake").start().await;
    assert_eq!(gateway.call("fake", "raw", "").await.tool_text(), "{}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_says_it_failed_is_a_result() {
    let gateway = Setup::new().std().fake("fake").start().await;
    let answer = gateway.call("std", "fail", json!({"message": "no luck"})).await;
    assert_eq!((answer.status, answer.header("trunkline-outcome")), (200, "tool_error"));
    assert_eq!(answer.json()["content"][0]["text"], "no luck");

    let result = json!({"isError": true, "content": [], "more": {"x": 1}});
    let answer = gateway.call("fake", "result", json!({"value": result})).await;
    assert_eq!((answer.status, answer.header("trunkline-outcome")), (200, "tool_error"));
    assert_eq!(answer.json(), result);
    gateway.stop().await;
}
