//! Questions between eras: a legacy server with a process of its own for each session asks modern
//! clients, which have none (`sessionless = true`).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::mcp_legacy::{Session, messages};
use crate::support::mcp_modern::{Ask, CLIENT_CAPABILITIES, Said};
use crate::support::{Answer, Api, Gateway, Mcp, Setup, eventually};

pub const SESSIONLESS: &str = "sharing = \"session\"\nsessionless = true";

pub fn able() -> Value {
    json!({"elicitation": {"form": {}}, "sampling": {}})
}

/// A request of a client that can be asked.
pub fn with(ask: Ask) -> Ask {
    ask.meta(CLIENT_CAPABILITIES, able())
}

/// Adds the answer to a request that is sent again.
pub fn answered(ask: Ask, state: &str, answer: Value) -> Ask {
    with(ask).param("requestState", state).param("inputResponses", json!({"question": answer}))
}

pub fn state_of(said: &Said) -> String {
    let result = said.result();
    assert_eq!(result["resultType"], "input_required", "{result}");
    result["requestState"].as_str().unwrap().to_owned()
}

/// The answer that the server got.
pub fn got(said: &Said) -> Value {
    serde_json::from_str(&said.tool_text()).unwrap()
}

async fn sessionless() -> Gateway {
    let setup = Setup::new().without_anonymous().fake_with("own", &[], SESSIONLESS);
    let setup = setup.raw("[toolsets.t]\ntools = [\"own/question\"]\n");
    let tenant = "servers = [\"own\", \"toolset:t\"]";
    setup.with_tenant("a", tenant).with_tenant("b", tenant).start().await
}

#[tokio::test]
async fn a_legacy_server_asks_a_modern_client_and_the_same_call_goes_on() {
    let gateway = sessionless().await;
    let a = gateway.as_tenant("a").await;
    let asks = json!({"question": {"id": "q \"1\"", "method": "elicitation/create",
        "params": {"message": "é?", "requestedSchema": {}, "task": {"ttl": 1}}}});
    for (path, tool) in
        [("/mcp/own", "question"), ("/mcp", "own__question"), ("/mcp/t/t", "own__question")]
    {
        let mcp = a.mcp(path);
        let first = with(mcp.call(tool, asks.clone())).send().await;
        let question = &first.result()["inputRequests"]["question"];
        assert_eq!(question["method"], "elicitation/create", "{path}");
        assert_eq!(question["params"], json!({"message": "é?", "requestedSchema": {}}), "{path}");
        let accepted = json!({"action": "accept", "content": {"n": 1.5}});
        let last = answered(mcp.call(tool, asks.clone()), &state_of(&first), accepted.clone());
        let last = last.send().await;
        assert_eq!(got(&last), json!({"jsonrpc": "2.0", "id": "q \"1\"", "result": accepted}));
        assert_eq!(last.result()["resultType"], "complete");
        // One call, told of once.
        assert_eq!(last.headers["trunkline-call-id"], first.headers["trunkline-call-id"]);
    }
    assert_eq!(gateway.fake("own").calls_of("question").len(), 3);
    let greeted = gateway.fake("own").received_of("initialize").pop().unwrap();
    let declared = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}});
    assert_eq!(greeted["params"]["capabilities"], declared);
    gateway.stop().await;
}

#[tokio::test]
async fn a_parked_call_is_answered_once_by_its_own_tenant_and_request() {
    let gateway = sessionless().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let asks = json!({"question": {"id": 1, "method": "elicitation/create"}});
    let mcp = a.mcp("/mcp/own");
    let first = with(mcp.call("question", asks.clone())).send().await;
    let (state, yes) = (state_of(&first), json!({"action": "accept"}));
    let code = async |ask: Ask| ask.send().await.error()["code"].as_i64().unwrap();
    let other = b.mcp("/mcp/own").call("question", asks.clone());
    assert_eq!(code(answered(other, &state, yes.clone())).await, -32602, "another tenant");
    let changed = mcp.call("question", json!({"question": {"id": 2}}));
    assert_eq!(code(answered(changed, &state, yes.clone())).await, -32602, "other arguments");
    let forged = answered(mcp.call("question", asks.clone()), &format!("{state}A"), yes.clone());
    assert_eq!(code(forged).await, -32602, "another state");
    for odd in [json!({}), json!({"question": 7}), json!([]), json!({"other": {}})] {
        let ask = with(mcp.call("question", asks.clone())).param("requestState", state.as_str());
        assert_eq!(code(ask.param("inputResponses", odd.clone())).await, -32602, "{odd}");
    }
    let missing = with(mcp.call("question", asks.clone())).param("requestState", state.as_str());
    assert_eq!(code(missing).await, -32602);
    let last = answered(mcp.call("question", asks.clone()), &state, yes.clone()).send().await;
    assert_eq!(got(&last)["result"], yes);
    let replay = answered(mcp.call("question", asks.clone()), &state, yes).send().await;
    assert_eq!(replay.error()["code"], -32602);
    let message = replay.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("answered before"), "{message}");
    gateway.stop().await;
}

#[tokio::test]
async fn callers_that_cannot_be_asked_are_not_asked() {
    let gateway = sessionless().await;
    let a = gateway.as_tenant("a").await;
    let asks = |method: &str, params: Value| {
        let question = json!({"id": 1, "method": method, "params": params});
        json!({"question": question})
    };
    let form = asks("elicitation/create", json!({"message": "?"}));
    let refusal = |answer: &Value| {
        let answer: Value = serde_json::from_str(answer.as_str().unwrap()).unwrap();
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    let mcp = a.mcp("/mcp/own");
    let unable = mcp.call("question", form.clone()).send().await;
    let why = refusal(&json!(unable.tool_text()));
    assert!(why.contains("declares such questions"), "{why}");
    let rest = a.call("own", "question", form.to_string()).await;
    refusal(&rest.json()["content"][0]["text"]);
    for (method, params, lacks) in [
        ("elicitation/create", json!({"mode": "url", "url": "u"}), "`elicitation` by `url`"),
        ("sampling/createMessage", json!({"tools": []}), "`sampling` with `tools`"),
        ("x/y", json!({}), "no such question"),
    ] {
        let said = with(mcp.call("question", asks(method, params))).send().await;
        let why = refusal(&json!(said.tool_text()));
        assert!(why.contains(lacks), "{method}: {why}");
    }
    // Roots would be those of all callers.
    let said = with(mcp.call("question", asks("roots/list", json!({})))).send().await;
    assert_eq!(got(&said)["error"]["code"], -32601);
    gateway.stop().await;
}

#[tokio::test]
async fn calls_of_a_tenant_come_one_at_a_time_and_tenants_have_processes_of_their_own() {
    let gateway = sessionless().await;
    let (a, b) = (gateway.as_tenant("a").await, gateway.as_tenant("b").await);
    let pid = async |api: &Api| api.mcp("/mcp/own").call("pid", json!({})).send().await.tool_text();
    let of_a = pid(&a).await;
    assert_ne!(of_a, pid(&b).await);
    // Listed to clients without a session, at `/mcp` too.
    assert!(a.mcp("/mcp").tool_names().await.contains(&"own__pid".to_owned()));
    let asks = json!({"question": {"id": 1, "method": "elicitation/create"}});
    let mcp: Mcp = a.mcp("/mcp/own");
    let first = with(mcp.call("question", asks.clone())).send().await;
    let next = mcp.call("pid", json!({})).spawn();
    eventually("waiting", async || {
        let waiting =
            gateway.metrics().await.value("trunkline_longest_wait_seconds{server=\"own\"}");
        waiting.is_some_and(|waiting| waiting > 0.0).then_some(())
    })
    .await;
    // A list of all servers goes on without this one, and another tenant's call does not wait.
    let listed = a.mcp("/mcp").ask("prompts/list", json!({})).send().await.result();
    assert_eq!(listed["_meta"]["trunkline/notListed"], json!(["own"]));
    pid(&b).await;
    let yes = json!({"action": "accept"});
    answered(mcp.call("question", asks), &state_of(&first), yes).send().await.result();
    assert_eq!(next.await.unwrap().tool_text(), of_a);
    // A session has a process of its own, as ever.
    let session = Session::open(&a, "/mcp/own").await;
    assert_ne!(session.tool_text("pid", json!({})).await, of_a);
    gateway.stop().await;
}

#[tokio::test]
async fn a_parked_call_ends_at_its_deadline_and_gives_its_place_back() {
    let gateway = sessionless().await;
    let a = gateway.as_tenant("a").await;
    let asks = json!({"question": {"id": 1, "method": "elicitation/create"}});
    let (mcp, began) = (a.mcp("/mcp/own"), Instant::now());
    let first = with(mcp.call("question", asks.clone())).header("trunkline-timeout-ms", "500");
    let state = state_of(&first.send().await);
    let fake = gateway.fake("own");
    let told = eventually("cancelled", async || fake.received_of("notifications/cancelled").pop());
    assert!(told.await["params"]["requestId"].is_number());
    assert!(began.elapsed() >= Duration::from_millis(500));
    let late = answered(mcp.call("question", asks), &state, json!({"action": "accept"}));
    let late = late.send().await.error();
    assert_eq!(late["data"]["code"], "deadline_exceeded", "{late}");
    mcp.call("pid", json!({})).send().await.tool_text();
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_server_has_a_modern_client_sample() {
    let gateway = sessionless().await;
    let mcp = gateway.as_tenant("a").await.mcp("/mcp/own");
    let asks = json!({"question": {"id": 1, "method": "sampling/createMessage",
        "params": {"messages": [], "maxTokens": 1}}});
    let first = with(mcp.call("question", asks.clone())).meta("progressToken", "p").send().await;
    let question = &first.result()["inputRequests"]["question"];
    assert_eq!(question["method"], "sampling/createMessage");
    let answer = json!({"role": "assistant", "content": {"type": "text", "text": "x"}});
    let last = answered(mcp.call("question", asks), &state_of(&first), answer.clone());
    assert_eq!(got(&last.send().await)["result"], answer);
    gateway.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_it_was_asked_cancels_its_call() {
    let gateway = sessionless().await;
    let a = gateway.as_tenant("a").await;
    let held = with(a.mcp("/mcp/own").call("hold", json!({}))).spawn();
    let fake = gateway.fake("own");
    eventually("held", async || fake.calls_of("hold").pop()).await;
    held.abort();
    eventually("cancelled", async || fake.received_of("notifications/cancelled").pop()).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_reload_decides_whether_callers_need_a_session() {
    let without = Setup::new().fake_with("own", &[], "sharing = \"session\"");
    let allowed = without.clone().without_servers().fake_with("own", &[], SESSIONLESS);
    let gateway = without.start().await;
    let mcp = gateway.mcp("/mcp/own");
    let refused = mcp.call("pid", json!({})).send().await.error();
    assert!(refused["message"].as_str().unwrap().contains("sessionless"), "{refused}");
    let session = Session::open(&gateway, "/mcp/own").await;
    let own = session.tool_text("pid", json!({})).await;
    assert!(gateway.apply(&allowed).await);
    let pid = mcp.call("pid", json!({})).send().await.tool_text();
    assert_ne!(pid, own);
    assert_eq!(session.tool_text("pid", json!({})).await, own);
    let slower = SESSIONLESS.to_owned() + "\ntimeout = \"20s\"";
    let slower = allowed.clone().without_servers().fake_with("own", &[], &slower);
    assert!(gateway.apply(&slower).await);
    eventually("replaced", async || {
        let now = mcp.call("pid", json!({})).send().await.tool_text();
        (now != pid).then_some(())
    })
    .await;
    assert!(
        gateway
            .apply(&allowed.without_servers().fake_with("own", &[], "sharing = \"session\""))
            .await
    );
    assert_eq!(mcp.call("pid", json!({})).send().await.error()["data"]["code"], "invalid_request");
    assert_eq!(session.tool_text("pid", json!({})).await, own);
    let told = messages(&Answer::of(session.call(1, "pid", json!({}))).await);
    assert_eq!(told.len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_no_client_that_was_asked() {
    let gateway = sessionless().await;
    let a = gateway.as_tenant("a").await;
    let asks = json!({"question": {"id": 1, "method": "elicitation/create"}});
    state_of(&with(a.mcp("/mcp/own").call("question", asks)).send().await);
    let began = Instant::now();
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
