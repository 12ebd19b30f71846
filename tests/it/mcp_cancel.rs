//! Clients of the legacy era that do not wait for the answer. Hanging up means nothing; saying so
//! does.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::mcp_legacy::{Session, Stream, initialize, messages, post, result_of, text_of};
use crate::support::mcp_modern::without_link;
use crate::support::{Answer, Fake, Gateway, Setup, eventually};

const CANCELLED: &str = "notifications/cancelled";

async fn held(fake: &Fake, n: usize) {
    eventually("held", async || (fake.calls_of("hold").len() == n).then_some(())).await;
}

/// A call that does not end by itself, under a given id.
async fn hold(gateway: &Gateway, session: &Session, id: Value, n: usize) -> JoinHandle<Answer> {
    let call = tokio::spawn(Answer::of(session.call(id, "hold", json!({"n": n}))));
    held(&gateway.fake("fake"), n).await;
    call
}

async fn cancel(session: &Session, id: Value) {
    let params = json!({"requestId": id, "reason": "no longer needed"});
    assert_eq!(session.notify(CANCELLED, params).await.status, 202);
}

#[tokio::test]
async fn a_client_that_hangs_up_cancels_nothing() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let leaver = hold(&gateway, &session, json!(1), 1).await;
    leaver.abort();
    assert!(leaver.await.unwrap_err().is_cancelled());
    // The server still works on it: the only slot is taken.
    let late = session.call(2, "raw", json!({})).header("trunkline-timeout-ms", "300");
    let late = messages(&Answer::of(late).await).pop().unwrap();
    assert_eq!(
        without_link(&late["error"]["data"]),
        json!({"code": "deadline_exceeded", "retryable": true, "executed": "no"})
    );
    let fake = gateway.fake("fake");
    assert_eq!(fake.received_of(CANCELLED), [] as [Value; 0]);
    // And can still be told that nobody wants it.
    cancel(&session, json!(1)).await;
    eventually("told", async || fake.received_of(CANCELLED).pop()).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_cut_off_cancels_nothing_either() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let log = json!({"method": "notifications/message", "params": {"level": "info", "data": "x"}});
    let call = session.call(1, "say_and_hold", json!({"messages": [log]}));
    let mut stream = Stream::of(call).await;
    assert_eq!(stream.method().await, "notifications/message");
    drop(stream);
    session.tool_text("release", json!({})).await;
    let fake = gateway.fake("fake");
    let answered = |line: &String| line.starts_with("< ") && line.contains("say_and_hold");
    eventually("finished", async || fake.trace().into_iter().find(answered)).await;
    assert_eq!(fake.received_of(CANCELLED), [] as [Value; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_is_cancelled_in_its_own_session_alone() {
    let gateway = Setup::new().fake("fake").start().await;
    let (one, other) =
        (Session::open(&gateway, "/mcp/fake").await, Session::open(&gateway, "/mcp/fake").await);
    let first = hold(&gateway, &one, json!(1), 1).await;
    // Not its id, though it reads the same.
    cancel(&one, json!("1")).await;
    let second = hold(&gateway, &one, json!("1"), 2).await;
    let third = hold(&gateway, &other, json!(1), 3).await;
    // None of these is anybody's.
    for id in [json!(2), json!("x"), json!(null), json!(1.5), json!({"id": 1})] {
        cancel(&one, id).await;
    }
    cancel(&Session::open(&gateway, "/mcp/fake").await, json!(1)).await;
    cancel(&one, json!(1)).await;

    // Its POST ends at once, with nothing to read.
    let ended = first.await.unwrap();
    assert_eq!((ended.status, ended.text().as_str()), (200, ""));
    let fake = gateway.fake("fake");
    eventually("told", async || fake.received_of(CANCELLED).pop()).await;
    session_free(&one).await;
    assert!(!second.is_finished() && !third.is_finished());
    one.tool_text("release", json!({})).await;
    assert_eq!(text_of(&result_of(&second.await.unwrap())), "{\"n\":2}");
    assert_eq!(text_of(&result_of(&third.await.unwrap())), "{\"n\":3}");
    let cancelled = fake.received_of(CANCELLED);
    assert_eq!(cancelled.len(), 1);
    assert_eq!(cancelled[0]["params"]["requestId"], fake.calls_of("hold")[0]["id"]);
    gateway.stop().await;
}

/// An id can be used again when it is free.
async fn session_free(session: &Session) {
    assert_eq!(text_of(&result_of(&Answer::of(session.call(1, "raw", json!({}))).await)), "{}");
}

#[tokio::test]
async fn a_request_that_waits_in_line_is_cancelled_without_reaching_the_server() {
    let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let fake = gateway.fake("fake");
    let first = tokio::spawn(Answer::of(session.call(1, "fake__hold", json!({}))));
    held(&fake, 1).await;
    let waiting = tokio::spawn(Answer::of(session.call(2, "fake__raw", json!({}))));
    gateway.has_in_flight("fake", 2.0).await;
    cancel(&session, json!(2)).await;
    assert_eq!(waiting.await.unwrap().text(), "");
    cancel(&session, json!(1)).await;
    first.await.unwrap();
    // The client is answered before the server has read of it.
    eventually("told", async || fake.received_of(CANCELLED).pop()).await;
    assert!(fake.calls_of("raw").is_empty());
    assert_eq!(fake.received_of(CANCELLED).len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_greeting_cannot_be_cancelled() {
    let slow = Setup::new().fake_with("fake", &["start=slow"], r#"start = "lazy""#);
    let gateway = slow.start().await;
    let greeting = post(&gateway, "/mcp/fake", initialize("2025-11-25", &json!({})));
    let greeting = tokio::spawn(Answer::of(greeting));
    let fake = gateway.fake("fake");
    eventually("started", async || fake.pids().pop()).await;
    // There is no session yet to say so in, and another one's has no request 0.
    let other = Session::open(&gateway, "/mcp").await;
    cancel(&other, json!(0)).await;
    assert_eq!(result_of(&greeting.await.unwrap())["protocolVersion"], "2025-11-25");
    gateway.stop().await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_requests() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let held = hold(&gateway, &session, json!(1), 1).await;
    assert_eq!(session.delete().await.status, 204);
    let ended = tokio::time::timeout(Duration::from_secs(5), held).await.unwrap().unwrap();
    assert!(ended.text().contains("\"executed\":\"unknown\""), "{}", ended.text());
    let fake = gateway.fake("fake");
    eventually("told", async || fake.received_of(CANCELLED).pop()).await;
    gateway.stop().await;
}
