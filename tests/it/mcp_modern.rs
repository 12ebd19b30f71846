//! The modern era: questions of servers, deadlines, errors.

use serde_json::{Value, json};

use crate::support::mcp_modern::{Ask, CLIENT_CAPABILITIES, without_link};
use crate::support::{Mcp, Setup, failed};

/// As `talking_server.py` has it.
const STATE: &str = "where we were: \"é\" \\ \n \u{2028}";

fn questions(mcp: &Mcp) -> [Ask; 3] {
    [
        mcp.call("ask", json!({"a": 1, "b": [1.5]})),
        mcp.ask("prompts/get", json!({"name": "ask", "arguments": {"x": "y"}})),
        mcp.ask("resources/read", json!({"uri": "ask:///"})),
    ]
}

#[tokio::test]
async fn what_a_server_asks_reaches_the_client_and_its_state_comes_back() {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    for n in 0..3 {
        let ask = || questions(&mcp).into_iter().nth(n).unwrap();
        let can = json!({"elicitation": {}});
        let result = ask().meta(CLIENT_CAPABILITIES, can.clone()).send().await.result();
        assert_eq!(result["resultType"], "input_required");
        assert_eq!(result["inputRequests"]["q"]["method"], "elicitation/create");
        let sealed = result["requestState"].as_str().unwrap();
        assert!(!sealed.contains("where"), "{sealed}");

        let responses = json!({"q": {"action": "accept", "content": {"n": 1}}});
        let retry = ask().id("2").param("requestState", sealed);
        let retry = retry.param("inputResponses", responses.clone()).meta(CLIENT_CAPABILITIES, can);
        let seen: Value = serde_json::from_str(&retry.send().await.tool_text()).unwrap();
        assert_eq!(seen, json!({"state": STATE, "responses": responses}));
    }
    // In a stream it is no different.
    let ask = mcp.call("ask", json!({})).meta("progressToken", 1);
    let sealed = ask.send().await.result()["requestState"].clone();
    let retry = mcp.call("ask", json!({})).meta("progressToken", 1).param("requestState", sealed);
    assert!(retry.send().await.tool_text().contains("where we were"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_servers_state_comes_back_with_the_same_request_only() {
    let gateway = Setup::new().talker("talker", "modern").talker("other", "modern").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    let state = |said: &Value| said["requestState"].as_str().unwrap().to_owned();
    let sealed = state(&mcp.call("ask", json!({"a": 1})).send().await.result());
    let fake = gateway.fake("talker");
    fake.is_listened_to().await;
    let before = fake.lines_received().len();
    let (first, rest) = sealed.split_at(1);
    let tampered = format!("{}{rest}", if first == "A" { "B" } else { "A" });
    for ask in [
        mcp.call("ask", json!({"a": 1})).param("requestState", tampered),
        mcp.call("ask", json!({"a": 1})).param("requestState", STATE),
        mcp.call("ask", json!({"a": 1})).param("requestState", ""),
        mcp.call("ask", json!({"a": 1})).param("requestState", 7),
        mcp.call("ask", json!({"a": 2})).param("requestState", sealed.as_str()),
        mcp.call("ask", json!({})).param("requestState", sealed.as_str()),
        mcp.call("echo", json!({"a": 1})).param("requestState", sealed.as_str()),
        mcp.ask("prompts/get", json!({"name": "ask"})).param("requestState", sealed.as_str()),
        gateway
            .mcp("/mcp/other")
            .call("ask", json!({"a": 1}))
            .param("requestState", sealed.as_str()),
    ] {
        let shown = format!("{ask:?}");
        assert_eq!(ask.send().await.error()["code"], -32602, "{shown}");
    }
    assert_eq!(fake.lines_received().len(), before);
    assert!(gateway.fake("other").received_of("tools/call").is_empty());
    // It has not been used up.
    mcp.call("ask", json!({"a": 1})).param("requestState", sealed).send().await.tool_text();
    gateway.stop().await;
}

#[tokio::test]
async fn a_legacy_server_that_asks_as_modern_ones_do_gets_its_state_back_too() {
    let gateway = Setup::new().talker("talker", "legacy").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    let result = mcp.call("ask", json!({})).send().await.result();
    let sealed = result["requestState"].as_str().unwrap();
    assert!(!sealed.contains("where"), "{sealed}");
    let retry = mcp.call("ask", json!({})).param("requestState", sealed);
    assert!(retry.send().await.tool_text().contains("where we were"));
    gateway.stop().await;
}

#[tokio::test]
async fn callers_that_cannot_be_asked_are_told_that_input_is_needed() {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    let rest = gateway.call("talker", "ask", "{}").await;
    assert_eq!(rest.problem(), failed(422, "input_required"));
    assert!(!rest.text().contains("where we were"));

    let post = |session: &str, body: Value| {
        let request = gateway.client.post(gateway.url("/mcp/talker"));
        let request = request.header("content-type", "application/json");
        let request = request.header("accept", "application/json, text/event-stream");
        request.header("mcp-session-id", session).body(body.to_string()).send()
    };
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let session = post("", hello).await.unwrap();
    let session = session.headers()["mcp-session-id"].to_str().unwrap();
    for (method, params) in [
        ("tools/call", json!({"name": "ask"})),
        ("prompts/get", json!({"name": "ask"})),
        ("resources/read", json!({"uri": "ask:///"})),
    ] {
        let ask = json!({"jsonrpc": "2.0", "id": 2, "method": method, "params": params});
        let answer = post(session, ask).await.unwrap().bytes().await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["error"]["data"]["code"], "input_required", "{answer}");
        assert!(!answer.to_string().contains("where we were"));
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_gateways_own_errors_have_codes_of_their_own() {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    for (mcp, prefix) in [(gateway.mcp("/mcp/talker"), ""), (gateway.mcp("/mcp"), "talker__")] {
        let late = || mcp.call(&format!("{prefix}hold"), json!({})).id("\"late\"");
        let late = || late().header("trunkline-timeout-ms", "300");
        for ask in [late(), late().meta("progressToken", "t")] {
            let said = ask.send().await;
            assert!(said.echoes("\"late\""), "{said:?}");
            let error = said.error();
            let code = error["code"].as_i64().unwrap();
            assert!(!(-32768..=-32000).contains(&code), "{error}");
            let data =
                json!({"code": "deadline_exceeded", "executed": "unknown", "retryable": false});
            assert_eq!(without_link(&error["data"]), data);
        }
        let said = mcp.call(&format!("{prefix}nothing"), json!({})).send().await;
        assert_eq!(said.error()["code"], -32602);
        assert_eq!(said.error()["data"]["code"], "tool_not_found");
        assert_eq!(said.error()["data"]["executed"], "no");
        for timeout in ["0", "x", "-1", "1e3", "3600001"] {
            let ask = mcp.call(&format!("{prefix}echo"), json!({}));
            let said = ask.header("trunkline-timeout-ms", timeout).send().await;
            assert_eq!(said.refusal(), (400, -32600), "{timeout}");
        }
    }
    let said = gateway.mcp("/mcp/talker").call("exit", json!({})).send().await;
    assert_eq!(said.error()["data"]["code"], "backend_exited");
    assert_eq!(said.error()["data"]["executed"], "unknown");
    let nobody = gateway.mcp("/mcp/nobody").call("echo", json!({}));
    assert_eq!(nobody.send().await.status, 404);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_its_deadline_ends_is_cancelled_at_the_server() {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    let ask = mcp.call("hold", json!({})).header("trunkline-timeout-ms", "300");
    ask.send().await.error();
    let fake = gateway.fake("talker");
    let cancelled = crate::support::eventually("cancelled", async || {
        fake.received_of("notifications/cancelled").pop()
    })
    .await;
    assert_eq!(cancelled["params"]["requestId"], fake.calls_of("hold")[0]["id"]);
    gateway.stop().await;
}
