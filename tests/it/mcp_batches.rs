//! Batches, as clients of 2025-03-26 may send them.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, initialize, messages, post, request, text_of};
use crate::support::{Answer, Gateway, Setup, eventually};

async fn open(gateway: &Gateway, path: &str, version: &str) -> Session {
    let opened = Answer::of(post(gateway, path, initialize(version, &json!({})))).await;
    assert_eq!(opened.json()["result"]["protocolVersion"], version);
    Session::of(gateway, path, opened.header("mcp-session-id"))
}

/// Sends a batch, without the header that newer versions have.
async fn send(gateway: &Gateway, session: &Session, batch: &Value) -> Answer {
    Answer::of(post(gateway, "/mcp/fake", batch).header("mcp-session-id", &session.id)).await
}

fn call(id: u64, tool: &str, arguments: Value, token: Option<u64>) -> Value {
    let mut params = json!({"name": tool, "arguments": arguments});
    if let Some(token) = token {
        params["_meta"] = json!({"progressToken": token});
    }
    request(id, "tools/call", params)
}

#[tokio::test]
async fn each_message_of_a_batch_is_answered_as_if_it_were_alone() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = open(&gateway, "/mcp/fake", "2025-03-26").await;
    let batch = json!([
        request(1, "ping", json!({})),
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call(2, "progress", json!({"steps": [1, 2]}), Some(7)),
        call(3, "raw", json!({"n": 1}), None),
        request(4, "no/such", json!({})),
        request(5, "initialize", json!({})),
        {"id": 6},
        [request(7, "ping", json!({}))],
        {"jsonrpc": "2.0", "id": 99, "result": {}},
    ]);
    let answer = send(&gateway, &session, &batch).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    let messages = messages(&answer);
    let of = |id: u64| messages.iter().find(|it| it["id"] == id).unwrap();
    assert_eq!(of(1)["result"], json!({}));
    assert_eq!(text_of(&of(2)["result"]), "done");
    assert_eq!(text_of(&of(3)["result"]), "{\"n\":1}");
    assert_eq!(
        (&of(4)["error"]["code"], &of(5)["error"]["code"]),
        (&json!(-32601), &json!(-32602))
    );
    let of_nobody = messages.iter().filter(|it| it.get("id").is_some_and(Value::is_null));
    assert_eq!((of_nobody.count(), &of(6)["error"]["code"]), (1, &json!(-32600)), "{messages:?}");
    let progress: Vec<_> =
        messages.iter().filter(|it| it.get("method").is_some()).map(|it| &it["params"]).collect();
    assert_eq!(progress.len(), 2);
    assert!(progress.iter().all(|it| it["progressToken"] == 7), "{progress:?}");
    assert_eq!(messages.len(), 9, "{messages:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_batch_that_needs_no_answer_gets_none_and_is_taken() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = open(&gateway, "/mcp/fake", "2025-03-26").await;
    let held = tokio::spawn(Answer::of(session.call(8, "hold", json!({}))));
    eventually("held", async || gateway.fake("fake").calls_of("hold").pop()).await;
    let batch = json!([
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 8}},
    ]);
    let answer = send(&gateway, &session, &batch).await;
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    assert_eq!(messages(&held.await.unwrap()), [] as [Value; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn one_answer_of_a_batch_does_not_wait_for_another() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = open(&gateway, "/mcp/fake", "2025-03-26").await;
    let batch = json!([call(1, "hold", json!({}), None), call(2, "pid", json!({}), None)]);
    let sending = tokio::spawn({
        let (session, post) = (session.clone(), post(&gateway, "/mcp/fake", batch));
        Answer::of(post.header("mcp-session-id", session.id))
    });
    eventually("held", async || gateway.fake("fake").calls_of("hold").pop()).await;
    eventually("answered", async || gateway.fake("fake").calls_of("pid").pop()).await;
    gateway.call("fake", "release", "{}").await.tool_text();
    assert_eq!(messages(&sending.await.unwrap()).len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn batches_of_other_versions_and_too_many_messages_are_refused() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!([request(1, "ping", json!({}))]);
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let session = open(&gateway, "/mcp/fake", version).await;
        let refused = send(&gateway, &session, &batch).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(-32600)));
    }
    let session = open(&gateway, "/mcp/fake", "2025-03-26").await;
    let many: Vec<_> = (0..33).map(|id| request(id, "ping", json!({}))).collect();
    for (batch, code) in [
        (json!([]).to_string(), -32600),
        (json!(many).to_string(), -32600),
        ("[".repeat(100_000), -32600),
        ("[{}".to_owned(), -32700),
    ] {
        let post = post(&gateway, "/mcp/fake", batch).header("mcp-session-id", &session.id);
        let refused = Answer::of(post).await;
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!(code)));
    }
    let nobody = Answer::of(post(&gateway, "/mcp/fake", &batch)).await;
    assert_eq!(nobody.status, 400);
    gateway.stop().await;
}
