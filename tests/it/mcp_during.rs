//! Notifications of a shared server during the call of a legacy client.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, Stream, messages, request, text_of};
use crate::support::{Answer, Setup, eventually};

fn progress(session: &Session, id: u64, token: Value, steps: &[u64]) -> RequestBuilder {
    let params = json!({
        "name": "progress",
        "arguments": {"steps": steps},
        "_meta": {"progressToken": token},
    });
    session.post(request(id, "tools/call", params))
}

fn log(level: &str, data: &str) -> Value {
    json!({"method": "notifications/message", "params": {"level": level, "logger": "x",
        "data": data}})
}

#[tokio::test]
async fn progress_comes_before_the_answer_in_order_under_the_clients_own_token() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    for token in [json!("mine"), json!(0), json!(1)] {
        let answer = Answer::of(progress(&session, 5, token.clone(), &[1, 2, 3])).await;
        assert_eq!(answer.header("content-type"), "text/event-stream");
        let messages = messages(&answer);
        assert_eq!(messages.len(), 4, "{messages:?}");
        for (n, message) in (1..).zip(&messages[..3]) {
            let params = json!({"progressToken": token, "progress": n, "total": 10,
                "message": format!("step {n}")});
            assert_eq!(message["params"], params);
        }
        assert_eq!(messages[3]["id"], 5);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn who_sent_no_token_is_told_nothing_and_gets_json() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let plain = Answer::of(session.call(1, "raw", json!({}))).await;
    assert_eq!(plain.header("content-type"), "application/json");
    let sent = gateway.fake("fake").calls_of("raw").pop().unwrap();
    assert_eq!(sent["params"].get("_meta"), None);
    // Also from a server that talks unasked.
    let answer = Answer::of(session.call(1, "progress", json!({"steps": [1, 2]}))).await;
    assert_eq!(messages(&answer).len(), 1, "{answer:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn two_clients_with_the_same_token_hear_of_their_own_calls_alone() {
    let gateway = Setup::new().fake("fake").start().await;
    let sessions =
        [Session::open(&gateway, "/mcp/fake").await, Session::open(&gateway, "/mcp/fake").await];
    let calls: Vec<_> = (0..20_usize)
        .map(|n| tokio::spawn(Answer::of(progress(&sessions[n % 2], 1, json!(1), &[n as u64]))))
        .collect();
    for (n, call) in calls.into_iter().enumerate() {
        let messages = messages(&call.await.unwrap());
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0]["params"]["progress"], n);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_log_line_reaches_the_only_caller_it_can_be_for_if_grave_enough() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let say = async || {
        let lines = json!({"messages": [log("debug", "a"), log("error", "b")]});
        let answer = Answer::of(session.call(1, "say", lines)).await;
        messages(&answer)
            .iter()
            .filter_map(|it| it["params"]["data"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(say().await, ["a", "b"]);
    session.result("logging/setLevel", json!({"level": "warning"})).await;
    assert_eq!(say().await, ["b"]);
    session.result("logging/setLevel", json!({"level": "emergency"})).await;
    assert_eq!(say().await, [] as [&str; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_log_line_that_may_be_about_another_call_is_nobodys() {
    let gateway = Setup::new().fake("fake").start().await;
    let (one, other) =
        (Session::open(&gateway, "/mcp/fake").await, Session::open(&gateway, "/mcp/fake").await);
    let mut listening = other.listen().await;
    let held = tokio::spawn(Answer::of(other.call(1, "hold", json!({}))));
    let fake = gateway.fake("fake");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    let lines = json!({"messages": [log("error", "secret"),
        {"method": "notifications/prompts/list_changed"}]});
    let answer = Answer::of(one.call(1, "say", lines)).await;
    assert_eq!(messages(&answer).len(), 1, "{answer:?}");
    one.tool_text("release", json!({})).await;
    assert_eq!(messages(&held.await.unwrap()).len(), 1);
    assert_eq!(listening.method().await, "notifications/prompts/list_changed");
    gateway.stop().await;
}

#[tokio::test]
async fn a_shared_server_that_asks_its_client_is_refused_at_once() {
    let gateway = Setup::new().fake("fake").start().await;
    let everything = json!({"sampling": {}, "elicitation": {}, "roots": {"listChanged": true}});
    let session = Session::open_with(&gateway, "/mcp/fake", everything).await;
    let fake = gateway.fake("fake");
    // The server was not told that anybody could be asked.
    assert_eq!(fake.received_of("initialize")[0]["params"]["capabilities"], json!({}));
    let mut listening = session.listen().await;
    for (id, method) in [
        (json!(1), "sampling/createMessage"),
        (json!("x"), "elicitation/create"),
        (json!(0), "roots/list"),
    ] {
        let question = json!({"question": {"id": id, "method": method, "params": {}}});
        let answer: Value =
            serde_json::from_str(&session.tool_text("question", question).await).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32601)), "{method}");
    }
    let question = json!({"question": {"id": 7, "method": "ping"}});
    let answer: Value =
        serde_json::from_str(&session.tool_text("question", question).await).unwrap();
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
    // Nothing of all that went to the client.
    session
        .tool_text("say", json!({"messages": [{"method": "notifications/prompts/list_changed"}]}))
        .await;
    assert_eq!(listening.method().await, "notifications/prompts/list_changed");
    gateway.stop().await;
}

#[tokio::test]
async fn a_stream_begins_with_the_first_thing_the_server_says() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let call = session.call(9, "say_and_hold", json!({"messages": [log("info", "early")]}));
    let mut stream = Stream::of(call).await;
    assert_eq!(stream.message().await["params"]["data"], "early");
    session.tool_text("release", json!({})).await;
    let answer = stream.message().await;
    assert_eq!((&answer["id"], text_of(&answer["result"]).as_str()), (&json!(9), "say_and_hold"));
    assert_eq!(stream.next().await, None);
    gateway.stop().await;
}
