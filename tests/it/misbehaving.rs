//! Servers that flood, do not read, or stand still: they are found and replaced.
//! `examples/reliability` shows the same at full size, with a neighbour that must not notice.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Gateway, Setup, eventually, failed, in_time, kill, within};

/// The deadline of a call, its grace, the time for a sign of life, and the time to end what gives
/// none.
const STOPPED_MAX: Duration = Duration::from_secs(40);

/// Waits until another process answers.
async fn is_replaced(gateway: &Gateway) {
    let before = gateway.fake("fake").pids()[0].to_string();
    within(STOPPED_MAX, "replaced", async || {
        let answer = gateway.call_within_ms(1000, "fake", "pid", "{}").await;
        (answer.status == 200 && answer.tool_text() != before).then_some(())
    })
    .await;
}

async fn floods(arguments: Value) {
    let gateway = Setup::new().fake("fake").std().start().await;
    let held = gateway.spawn_call("fake", "hold", "{}");
    eventually("held", async || gateway.fake("fake").calls_of("hold").pop()).await;
    let answer = gateway.call("fake", "garbage_flood", arguments).await;
    assert_eq!(answer.problem(), failed(502, "backend_protocol"));
    assert!(answer.detail().contains("it floods its output"), "{}", answer.detail());
    let held = in_time("failed", held).await.unwrap();
    assert_eq!(held.problem(), failed(502, "backend_protocol"));
    is_replaced(&gateway).await;
    assert_eq!(gateway.call("std", "echo", json!({"text": "x"})).await.tool_text(), "x");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_floods_its_output_with_lines_that_are_no_messages_is_replaced() {
    floods(json!({"lines": 20_000})).await;
}

#[tokio::test]
async fn and_so_is_one_whose_few_lines_are_long() {
    floods(json!({"lines": 20, "len": 1 << 20})).await;
}

#[tokio::test]
async fn a_little_garbage_is_borne() {
    let gateway = Setup::new().fake("fake").start().await;
    let answer = gateway.call("fake", "garbage_flood", json!({"lines": 9_000})).await;
    assert_eq!(answer.tool_text(), "flooded");
    assert_eq!(gateway.fake("fake").pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_answers_with_a_line_without_end_is_replaced() {
    let gateway = Setup::new().set("max_response = \"64KiB\"").fake("fake").start().await;
    let answer = gateway.call("fake", "endless", json!({"bytes": 1 << 30})).await;
    assert_eq!(answer.problem(), failed(502, "backend_protocol"));
    assert!(answer.detail().contains("a line without end"), "{}", answer.detail());
    is_replaced(&gateway).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_read_its_input_is_replaced() {
    let gateway = Setup::new().fake("fake").start().await;
    // Nobody waits for the call that it is at.
    let deaf = gateway.call_within_ms(1000, "fake", "deaf", "{}").await;
    assert_eq!(deaf.problem(), failed(504, "deadline_exceeded"));
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(500_000));
    let answer = gateway.call("fake", "raw", &large).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    // Whichever is noticed first: it neither reads nor answers.
    assert!(answer.detail().contains("it has not"), "{}", answer.detail());
    is_replaced(&gateway).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_stands_still_is_replaced_when_a_call_has_waited_in_vain() {
    let gateway = Setup::new().fake("fake").start().await;
    kill(gateway.fake("fake").pids()[0], Signal::STOP);
    let answer = gateway.call_within_ms(1000, "fake", "raw", "{}").await;
    assert_eq!(answer.problem(), failed(504, "deadline_exceeded"));
    is_replaced(&gateway).await;
    gateway.stop().await;
}
