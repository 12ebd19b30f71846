//! Calls answered with events: `Accept: text/event-stream` over REST.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Setup, eventually, in_time, refused};

fn with_events(api: &Api, tool: &str, arguments: impl ToString) -> RequestBuilder {
    api.post("fake", tool, arguments).header("Accept", "text/event-stream")
}

/// Returns the names and the data of all events.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    let event = |text: &str| {
        let (name, data) = text.split_once('\n').unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), serde_json::from_str(data).unwrap())
    };
    answer.text().split("\n\n").filter(|text| !text.is_empty()).map(event).collect()
}

async fn one(request: RequestBuilder) -> (String, Value) {
    let mut events = events(&Answer::of(request).await);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

#[tokio::test]
async fn a_caller_that_takes_json_as_well_is_answered_with_json() {
    let gateway = Setup::new().fake("fake").start().await;
    let call = gateway.post("fake", "progress", json!({"steps": [1]}));
    let answer = Answer::of(call.header("Accept", "application/json, text/event-stream")).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    gateway.stop().await;
}

#[tokio::test]
async fn progress_comes_first_then_the_result_with_its_status() {
    let gateway = Setup::new().fake("fake").start().await;
    let keys = [None, Some("k")];
    for key in keys {
        let call = with_events(&gateway, "progress", json!({"steps": [1, 2]}));
        let call = match key {
            Some(key) => call.header("Idempotency-Key", key),
            None => call,
        };
        let answer = Answer::of(call.header("X-Request-Id", "r-1")).await;
        assert_eq!(answer.header("x-request-id"), "r-1");
        let events = events(&answer);
        let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["progress", "progress", "result"], "{events:?}");
        assert_eq!(events[0].1, json!({"progress": 1, "total": 10, "message": "step 1"}));
        let end = &events[2].1;
        assert_eq!((&end["status"], &end["outcome"]), (&json!(200), &json!("ok")));
        assert_eq!((&end["attempts"], &end["replayed"]), (&json!(1), &json!(false)));
        assert_eq!(end["result"]["content"][0]["text"], "done");
        if key.is_none() {
            assert_eq!(answer.header("trunkline-call-id"), end["call"]);
        }
    }
    // A replay has no progress.
    let again = with_events(&gateway, "progress", json!({"steps": [1, 2]}));
    let (name, end) = one(again.header("Idempotency-Key", "k")).await;
    assert_eq!((name.as_str(), &end["replayed"]), ("result", &json!(true)));
    assert_eq!(end["result"]["content"][0]["text"], "done");
    assert_eq!(gateway.fake("fake").calls_of("progress").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn an_error_after_the_head_is_an_event_with_the_problem() {
    let gateway = Setup::new().fake("fake").start().await;
    let hold = with_events(&gateway, "hold", "{}").header("Trunkline-Timeout-Ms", "300");
    let (name, end) = one(hold).await;
    assert_eq!((name.as_str(), &end["status"]), ("error", &json!(504)));
    assert_eq!(
        (&end["outcome"], &end["problem"]["code"]),
        (&json!("error"), &json!("deadline_exceeded"))
    );
    assert_eq!(end["problem"]["executed"], "unknown");
    let (name, end) = one(with_events(&gateway, "nothing", "{}")).await;
    assert_eq!((name.as_str(), &end["problem"]["code"]), ("error", &json!("tool_not_found")));
    // Refused before the call: with its own status, without events.
    let bad = Answer::of(with_events(&gateway, "raw", "[]")).await;
    assert_eq!(bad.problem(), refused(400, "invalid_arguments"));
    // A tool's own failure is a result.
    let failure = json!({"value": {"content": [], "isError": true}});
    let failing = || with_events(&gateway, "result", failure.clone());
    let (name, end) = one(failing()).await;
    assert_eq!((name.as_str(), &end["outcome"]), ("result", &json!("tool_error")));
    assert_eq!(end["status"], 200);
    let (_, end) = one(failing().header("Trunkline-Tool-Errors", "fail")).await;
    assert_eq!((&end["status"], &end["result"]["isError"]), (&json!(422), &json!(true)));
    gateway.stop().await;
}

#[tokio::test]
async fn hanging_up_cancels_a_plain_call_and_not_a_keyed_one() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let began = async |calls: usize| {
        eventually("it runs", async || (fake.calls_of("hold").len() == calls).then_some(())).await;
    };
    let plain = with_events(&gateway, "hold", "{}").send().await.unwrap();
    began(1).await;
    drop(plain);
    eventually("cancelled", async || {
        (!fake.received_of("notifications/cancelled").is_empty()).then_some(())
    })
    .await;
    let keyed = || with_events(&gateway, "hold", "{}").header("Idempotency-Key", "k");
    let first = keyed().send().await.unwrap();
    began(2).await;
    drop(first);
    let again = tokio::spawn(Answer::of(keyed()));
    gateway.call("fake", "release", "{}").await.tool_text();
    let answer = in_time("the retry", again).await.unwrap();
    assert_eq!(events(&answer).last().unwrap().1["replayed"], true);
    assert_eq!(
        (fake.calls_of("hold").len(), fake.received_of("notifications/cancelled").len()),
        (2, 1)
    );
    gateway.stop().await;
}
