//! A server that has a process for each session may ask its client, and is answered by that one
//! alone.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, Stream, messages, result_of, text_of};
use crate::support::{Answer, Gateway, Setup, eventually};

const OWN: &str = r#"sharing = "session""#;

async fn start() -> Gateway {
    Setup::new().fake_with("own", &[], OWN).fake("shared").start().await
}

async fn open(gateway: &Gateway, path: &str) -> Session {
    let able = json!({"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": true}});
    Session::open_with(gateway, path, able).await
}

/// A call during which the server asks something.
async fn ask(session: &Session, question: Value) -> Stream {
    Stream::of(session.call(1, "question", json!({"question": question}))).await
}

fn answer(question: &Value, member: &str, value: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": question["id"], member: value})
}

/// Returns the answer that the server got: the end of the call.
async fn got(stream: &mut Stream) -> Value {
    let answer = stream.message().await;
    assert_eq!(stream.next().await, None);
    serde_json::from_str(&text_of(&answer["result"])).unwrap()
}

#[tokio::test]
async fn questions_reach_the_client_and_its_answers_the_server() {
    let gateway = start().await;
    let session = open(&gateway, "/mcp/own").await;
    let greeted = gateway.fake("own").received_of("initialize").pop().unwrap();
    let able = json!({"sampling": {}, "elicitation": {"form": {}}, "roots": {"listChanged": true}});
    assert_eq!(greeted["params"]["capabilities"], able);
    for (id, method, params) in [
        (
            json!("a \"b\""),
            "sampling/createMessage",
            json!({"messages": [], "maxTokens": 1, "x": 1.5}),
        ),
        (json!(0), "elicitation/create", json!({"message": "é\n?", "requestedSchema": {}})),
        (json!(1), "roots/list", json!({})),
    ] {
        let mut stream = ask(&session, json!({"id": id, "method": method, "params": params})).await;
        let question = stream.message().await;
        assert_eq!((&question["method"], &question["params"]), (&json!(method), &params));
        // Line breaks between tokens are no line breaks to the server.
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\n\"id\":{},\"result\":{{\r\n\"x\":\n1.10}}}}",
            question["id"]
        );
        assert_eq!(session.send(body).await.status, 202);
        assert_eq!(
            got(&mut stream).await,
            json!({"jsonrpc": "2.0", "id": id, "result": {"x": 1.10}})
        );

        let mut stream = ask(&session, json!({"id": id, "method": method})).await;
        let question = stream.message().await;
        let refusal = json!({"code": -1, "message": "User rejected", "data": [1]});
        let refused = session.send(answer(&question, "error", refusal.clone())).await;
        assert_eq!(refused.status, 202);
        assert_eq!(got(&mut stream).await, json!({"jsonrpc": "2.0", "id": id, "error": refusal}));
        // Answered once is answered.
        assert_eq!(session.send(answer(&question, "result", json!({}))).await.status, 202);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn two_sessions_that_are_asked_the_same_answer_each_their_own_server() {
    let gateway = start().await;
    let (one, two) = (open(&gateway, "/mcp/own").await, open(&gateway, "/mcp/own").await);
    let question = json!({"id": 1, "method": "sampling/createMessage", "params": {}});
    let mut of_one = ask(&one, question.clone()).await;
    let mut of_two = ask(&two, question).await;
    let (asked_one, asked_two) = (of_one.message().await, of_two.message().await);
    // The answer of one does not reach the server of the other, though both have the same id.
    assert_eq!(asked_one["id"], asked_two["id"]);
    assert_eq!(two.send(answer(&asked_two, "result", json!({"from": "two"}))).await.status, 202);
    assert_eq!(got(&mut of_two).await["result"], json!({"from": "two"}));
    assert_eq!(two.send(answer(&asked_one, "result", json!({"from": "two"}))).await.status, 202);
    assert_eq!(one.send(answer(&asked_one, "result", json!({"from": "one"}))).await.status, 202);
    assert_eq!(got(&mut of_one).await["result"], json!({"from": "one"}));
    gateway.stop().await;
}

#[tokio::test]
async fn a_question_outside_of_any_call_comes_on_the_standing_stream() {
    let gateway = start().await;
    let (session, other) = (open(&gateway, "/mcp").await, open(&gateway, "/mcp").await);
    assert_eq!(session.tool_text("own__raw", json!({})).await, "{}");
    assert_eq!(other.tool_text("own__raw", json!({})).await, "{}");
    let mut listening = session.listen().await;
    let mut others = other.listen().await;
    // This one's server asks when it hears of that.
    assert_eq!(session.notify("notifications/roots/list_changed", json!({})).await.status, 202);
    let question = listening.message().await;
    assert_eq!(question["method"], "roots/list");
    assert_eq!(session.send(answer(&question, "result", json!({"roots": []}))).await.status, 202);
    let fake = gateway.fake("own");
    let answered = json!({"jsonrpc": "2.0", "id": "roots", "result": {"roots": []}});
    eventually("answered", async || fake.received().contains(&answered).then_some(())).await;
    other
        .tool_text(
            "own__say",
            json!({"messages": [{"method": "notifications/prompts/list_changed"}]}),
        )
        .await;
    assert_eq!(others.method().await, "notifications/prompts/list_changed");
    gateway.stop().await;
}

#[tokio::test]
async fn a_question_with_nobody_to_hear_it_is_refused() {
    let gateway = start().await;
    let session = open(&gateway, "/mcp/own").await;
    assert_eq!(session.notify("notifications/roots/list_changed", json!({})).await.status, 202);
    let fake = gateway.fake("own");
    let refused = eventually("refused", async || {
        fake.received().into_iter().find(|message| message["id"] == "roots")
    })
    .await;
    assert_eq!(refused["error"]["code"], -32603);
    gateway.stop().await;
}

#[tokio::test]
async fn a_question_that_is_withdrawn_is_withdrawn_at_the_client() {
    let gateway = start().await;
    let session = open(&gateway, "/mcp/own").await;
    let mut stream = ask(&session, json!({"id": "q1", "method": "elicitation/create"})).await;
    let question = stream.message().await;
    let withdrawn = Answer::of(session.call(2, "withdraw", json!({"id": "q1"}))).await;
    assert_eq!(text_of(&result_of(&withdrawn)), "withdrawn");
    // On either of the two streams.
    let mut told = messages(&withdrawn);
    while let Some(message) = stream.next().await {
        told.push(message);
    }
    let cancelled: Vec<_> =
        told.iter().filter(|it| it["method"] == "notifications/cancelled").collect();
    assert_eq!(cancelled.len(), 1, "{told:?}");
    assert_eq!(cancelled[0]["params"]["requestId"], question["id"]);
    // Its answer is of no use any more.
    assert_eq!(session.send(answer(&question, "result", json!({}))).await.status, 202);
    assert_eq!(session.tool_text("raw", json!({})).await, "{}");
    assert!(
        !gateway.fake("own").lines_received().iter().any(|line| line.contains("\"q1\",\"result\""))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn changed_roots_are_told_to_the_processes_of_that_session_alone() {
    let gateway = start().await;
    let (one, two) = (open(&gateway, "/mcp").await, open(&gateway, "/mcp").await);
    let pid = one.tool_text("own__pid", json!({})).await;
    assert_ne!(pid, two.tool_text("own__pid", json!({})).await);
    assert_eq!(one.notify("notifications/roots/list_changed", json!({})).await.status, 202);
    one.tool_text("own__raw", json!({})).await;
    two.tool_text("own__raw", json!({})).await;
    let fake = gateway.fake("own");
    assert_eq!(fake.received_of("notifications/roots/list_changed").len(), 1);
    assert!(gateway.fake("shared").received_of("notifications/roots/list_changed").is_empty());
    gateway.stop().await;
}

/// The server's words become part of a message of ours.
#[tokio::test]
async fn a_method_that_is_no_name_is_not_passed_on() {
    let gateway = start().await;
    let session = open(&gateway, "/mcp/own").await;
    let odd = "x\",\"id\":7,\"y\":\"";
    let told =
        json!({"messages": [{"method": odd}, {"method": "notifications/x", "params": {"a": 1}}]});
    let answered = Answer::of(session.call(1, "say", told)).await;
    let told = messages(&answered);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[0], json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}}));
    let question = json!({"question": {"id": 5, "method": odd}});
    let refused: Value =
        serde_json::from_str(&session.tool_text("question", question).await).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(5), &json!(-32601)));
    gateway.stop().await;
}
