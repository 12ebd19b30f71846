//! Questions between eras: a modern server asks a legacy client.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::mcp_sessionless::{SESSIONLESS, able, answered, got, state_of, with};
use crate::support::mcp_legacy::{Session, Stream, text_of};
use crate::support::mcp_modern::CLIENT_CAPABILITIES;
use crate::support::{Database, Setup};

const STATE: &str = "where we were: \"\u{e9}\" \\ \n \u{2028}";

/// Puts the answer to a question.
async fn reply(session: &Session, question: &Value, member: &str, value: Value) {
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], member: value});
    assert_eq!(session.send(answer).await.status, 202);
}

/// The first message of a call that asks.
async fn asked(session: &Session, tool: &str) -> (Stream, Value) {
    let mut stream = Stream::of(session.call("c1", tool, json!({}))).await;
    let question = stream.message().await;
    assert_eq!(question["method"], "elicitation/create", "{question}");
    (stream, question)
}

/// The words of the talking server, which repeats what it was answered.
async fn repeated(stream: &mut Stream) -> Value {
    let answer = stream.message().await;
    assert_eq!(answer["id"], "c1", "{answer}");
    serde_json::from_str(&text_of(&answer["result"])).unwrap()
}

#[tokio::test]
async fn a_modern_server_asks_a_legacy_client_and_gets_its_answer() {
    let setup = Setup::new().talker("m", "modern");
    let gateway = setup.raw("[toolsets.t]\ntools = [\"m/ask\"]\n").start().await;
    let accepted = json!({"action": "accept", "content": {"sure": true}});
    for (path, tool) in [("/mcp/m", "ask"), ("/mcp", "m__ask"), ("/mcp/t/t", "m__ask")] {
        let session = Session::open_with(&gateway, path, able()).await;
        let (mut stream, question) = asked(&session, tool).await;
        assert_eq!(question["params"], json!({"message": "sure?"}), "{path}");
        reply(&session, &question, "result", accepted.clone()).await;
        let words = repeated(&mut stream).await;
        assert_eq!(words, json!({"state": STATE, "responses": {"q": accepted}}), "{path}");
        // Answered once is answered.
        reply(&session, &question, "result", accepted.clone()).await;
        // A client that cannot decide.
        let (mut stream, question) = asked(&session, tool).await;
        reply(&session, &question, "error", json!({"code": -1, "message": "no"})).await;
        let words = repeated(&mut stream).await;
        assert_eq!(words["responses"], json!({"q": {"action": "cancel"}}), "{path}");
    }
    // The other requests that may ask.
    let session = Session::open_with(&gateway, "/mcp/m", able()).await;
    let read = json!({"jsonrpc": "2.0", "id": "c1", "method": "resources/read",
        "params": {"uri": "ask:///"}});
    let mut stream = Stream::of(session.post(read)).await;
    let question = stream.message().await;
    reply(&session, &question, "result", accepted.clone()).await;
    assert_eq!(repeated(&mut stream).await["responses"]["q"], accepted);
    let called = gateway.fake("m").received_of("tools/call");
    let meta = &called[0]["params"]["_meta"][CLIENT_CAPABILITIES];
    assert_eq!(*meta, able());
    assert!(called[0]["params"].get("inputResponses").is_none());
    gateway.stop().await;
}

#[tokio::test]
async fn only_the_session_that_was_asked_can_answer() {
    let setup = Setup::new().without_anonymous().talker("m", "modern");
    let setup = setup.with_tenant("a", "servers = [\"m\"]").with_tenant("b", "servers = [\"m\"]");
    let gateway = setup.start().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let session = Session::open_with(&a, "/mcp/m", able()).await;
    let same_tenant = Session::open_with(&a, "/mcp/m", able()).await;
    let other_tenant = Session::open_with(&b, "/mcp/m", able()).await;
    let (mut stream, question) = asked(&session, "ask").await;
    let (mut other_stream, other_question) = asked(&same_tenant, "ask").await;
    let evil = json!({"action": "accept", "content": {"from": "another"}});
    for other in [&same_tenant, &other_tenant] {
        reply(other, &question, "result", evil.clone()).await;
        reply(other, &json!({"id": 1}), "result", evil.clone()).await;
        reply(other, &json!({"id": "1"}), "result", evil.clone()).await;
    }
    let own = json!({"action": "decline"});
    reply(&session, &question, "result", own.clone()).await;
    assert_eq!(repeated(&mut stream).await["responses"]["q"], own);
    reply(&same_tenant, &other_question, "result", json!({"action": "cancel"})).await;
    let words = repeated(&mut other_stream).await;
    assert_eq!(words["responses"]["q"], json!({"action": "cancel"}));
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_client_that_cannot_be_asked_is_told_why() {
    let gateway = Setup::new().talker("m", "modern").start().await;
    let error = async |able: Value| {
        let session = Session::open_with(&gateway, "/mcp/m", able).await;
        session.error("tools/call", json!({"name": "ask", "arguments": {}})).await
    };
    let none = error(json!({})).await;
    assert_eq!((&none["code"], &none["data"]["code"]), (&json!(422), &json!("input_required")));
    assert_eq!(none["data"]["executed"], "unknown");
    let roots = error(json!({"roots": {}})).await;
    assert_eq!(roots["data"]["code"], "input_required");
    let message = roots["message"].as_str().unwrap();
    assert!(message.contains("does not declare `elicitation` by `form`"), "{message}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_question_is_open_until_the_deadline_of_its_call() {
    let gateway = Setup::new().talker("m", "modern").start().await;
    let session = Session::open_with(&gateway, "/mcp/m", able()).await;
    let call = session.call("c1", "ask", json!({})).header("trunkline-timeout-ms", "400");
    let mut stream = Stream::of(call).await;
    let question = stream.message().await;
    let withdrawn = stream.message().await;
    assert_eq!(withdrawn["method"], "notifications/cancelled");
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    let late = stream.message().await;
    assert_eq!(late["error"]["data"]["code"], "deadline_exceeded", "{late}");
    assert_eq!(late["error"]["data"]["executed"], "unknown");
    reply(&session, &question, "result", json!({"action": "accept"})).await;
    assert_eq!(gateway.fake("m").received_of("tools/call").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn each_time_that_a_server_asks_counts_as_a_call() {
    let setup = Setup::new().without_anonymous().talker("m", "modern");
    let setup = setup.with_tenant("a", "servers = [\"m\"]\nrate = \"1/h\"\nburst = 1");
    let gateway = setup.start().await;
    let session = Session::open_with(&gateway.as_tenant("a").await, "/mcp/m", able()).await;
    let (mut stream, question) = asked(&session, "ask").await;
    reply(&session, &question, "result", json!({"action": "accept"})).await;
    let refused = stream.message().await;
    assert_eq!(refused["error"]["data"]["code"], "rate_limited", "{refused}");
    assert_eq!(refused["error"]["data"]["executed"], "unknown");
    gateway.stop().await;
}

#[tokio::test]
async fn an_answer_may_reach_any_replica() {
    let database = Database::sqlite();
    let keys = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";
    let one = || {
        let setup = Setup::new().with_store(&database.url).set(keys);
        let setup = setup.set("replicas.listen = \"127.0.0.1:0\"").talker("m", "modern");
        setup.fake_with("own", &[], SESSIONLESS).start()
    };
    let (owner, other) = tokio::join!(one(), one());
    let opened = Session::open_with(&owner, "/mcp/m", able()).await;
    for (calls, answers) in [(&owner, &other), (&other, &owner), (&other, &other)] {
        let (mut stream, question) = asked(&opened.at(calls, "/mcp/m"), "ask").await;
        let accepted = json!({"action": "accept", "content": {}});
        reply(&opened.at(answers, "/mcp/m"), &question, "result", accepted.clone()).await;
        assert_eq!(repeated(&mut stream).await["responses"]["q"], accepted);
    }
    // A modern client's, too.
    let question = json!({"question": {"id": "q1", "method": "elicitation/create"}});
    let first = with(owner.mcp("/mcp/own").call("question", question.clone())).send().await;
    let state = state_of(&first);
    let mcp = other.mcp("/mcp/own");
    let last = answered(mcp.call("question", question.clone()), &state, json!({"n": 1}));
    assert_eq!(got(&last.send().await)["result"], json!({"n": 1}));
    let again = answered(mcp.call("question", question), &state, json!({"n": 2})).send().await;
    assert_eq!(again.error()["code"], -32602);
    owner.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_no_client_that_was_asked() {
    let gateway = Setup::new().talker("m", "modern").start().await;
    let session = Session::open_with(&gateway, "/mcp/m", able()).await;
    let (mut stream, _) = asked(&session, "ask").await;
    let began = Instant::now();
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    while let Some(message) = stream.next().await {
        assert!(message.get("result").is_none(), "{message}");
    }
}
