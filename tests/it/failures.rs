//! Calls that fail at the server.

use serde_json::json;

use crate::support::{Setup, eventually, failed, in_time, refused};

#[tokio::test]
async fn a_servers_error_is_passed_on_and_tells_whether_the_tool_ran() {
    let gateway = Setup::new().fake("fake").start().await;
    for (code, problem) in [
        (-32700, refused(502, "backend_error")),
        (-32600, refused(502, "backend_error")),
        (-32601, refused(502, "backend_error")),
        (-32602, refused(502, "backend_error")),
        (-32603, failed(502, "backend_error")),
        (-32000, failed(502, "backend_error")),
        (7, failed(502, "backend_error")),
    ] {
        let error = json!({"code": code, "message": "it is so", "data": {"why": [1.5, null]}});
        let answer = gateway.call("fake", "error", &error).await;
        assert_eq!(answer.problem(), problem, "{code}");
        assert_eq!(answer.json()["backend"], error);
    }
    let without_data = json!({"code": 7, "message": "it is so"});
    let answer = gateway.call("fake", "error", &without_data).await;
    assert_eq!(answer.json()["backend"], without_data);
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_without_sense_breaks_the_protocol() {
    let gateway = Setup::new().fake("fake").start().await;
    for value in [json!([]), json!(7), json!("text"), json!(null), json!({"isError": "yes"})] {
        let answer = gateway.call("fake", "result", json!({"value": value})).await;
        assert_eq!(answer.problem(), failed(502, "backend_protocol"), "{value}");
    }
    let answer = gateway.call("fake", "bad_error", "{}").await;
    assert_eq!(answer.problem(), failed(502, "backend_protocol"));
    assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
    assert_eq!(gateway.fake("fake").pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_tool_that_asks_for_input_cannot_be_answered() {
    let gateway = Setup::new().fake_with("fake", &["discover=modern"], "").start().await;
    let value = json!({"resultType": "input_required", "inputRequests": {}, "requestState": "s"});
    let answer = gateway.call("fake", "result", json!({"value": value})).await;
    assert_eq!(answer.problem(), failed(422, "input_required"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_ends_fails_all_its_calls_at_once() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let held: Vec<_> = (0..5).map(|_| gateway.spawn_call("fake", "hold", "{}")).collect();
    eventually("all held", async || (fake.calls_of("hold").len() == 5).then_some(())).await;
    let answer = gateway.call("fake", "exit", json!({"code": 9})).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    // How it ended is told if it is known in a moment.
    let detail = answer.detail();
    let reason = detail.strip_prefix("the server ended before it answered: ").unwrap();
    assert!(["it ended with exit code 9", "it closed its output"].contains(&reason), "{reason}");
    for call in held {
        let answer = in_time("failed", call).await.unwrap();
        assert_eq!(answer.problem(), failed(502, "backend_exited"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_closes_its_output_has_ended() {
    let gateway = Setup::new().fake("fake").start().await;
    let answer = gateway.call("fake", "close", "{}").await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_over_the_limit_fails_its_own_call_alone() {
    let gateway = Setup::new().set("max_response = \"64KiB\"").fake("fake").start().await;
    let fake = gateway.fake("fake");
    let held = gateway.spawn_call("fake", "hold", json!({"mine": 1}));
    eventually("held", async || fake.calls_of("hold").pop()).await;
    let answer = gateway.call("fake", "big", json!({"bytes": 3_000_000})).await;
    assert_eq!(answer.problem(), failed(502, "backend_too_large"));
    assert_eq!(
        gateway.call("fake", "big", json!({"bytes": 60_000})).await.tool_text().len(),
        60_000
    );
    gateway.call("fake", "release", "").await.tool_text();
    assert_eq!(held.await.unwrap().tool_text(), "{\"mine\":1}");
    assert_eq!(fake.pids().len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn an_overlong_line_that_is_nobodys_ends_the_server() {
    let gateway = Setup::new().set("max_response = \"64KiB\"").fake("fake").start().await;
    // Whose answer it was cannot be known: nobody may wait for it in vain.
    let answer = gateway.call("fake", "big_unknown", json!({"bytes": 100_000})).await;
    assert_eq!(answer.problem(), failed(502, "backend_protocol"));
    eventually("started again", async || {
        (gateway.call("fake", "raw", "{}").await.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn wrong_ids_second_answers_and_garbage_are_dropped_and_counted() {
    let gateway = Setup::new().fake("fake").start().await;
    assert_eq!(gateway.call("fake", "wrong_id", "{}").await.tool_text(), "right");
    assert_eq!(gateway.call("fake", "twice", "{}").await.tool_text(), "first");
    assert_eq!(gateway.call("fake", "garbage", "{}").await.tool_text(), "ok");
    let metrics = gateway.metrics().await;
    for (series, value) in [
        ("trunkline_unknown_answers_total{server=\"fake\"}", 2.0),
        ("trunkline_late_answers_total{server=\"fake\"}", 1.0),
        ("trunkline_dropped_lines_total{reason=\"garbage\",server=\"fake\"}", 2.0),
        ("trunkline_identity_alarms_total{server=\"fake\"}", 0.0),
    ] {
        assert_eq!(metrics.value(series), Some(value), "{series}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_servers_own_question_is_refused_so_that_it_does_not_wait() {
    let gateway = Setup::new().fake("fake").start().await;
    let refusal = gateway.call("fake", "ask", "{}").await.tool_text();
    let refusal: serde_json::Value = serde_json::from_str(&refusal).unwrap();
    assert_eq!((&refusal["id"], &refusal["error"]["code"]), (&json!("q"), &json!(-32601)));
    let refused = "trunkline_refused_server_requests_total{server=\"fake\"}";
    assert_eq!(gateway.metrics().await.value(refused), Some(1.0));
    gateway.stop().await;
}
