//! MCP as clients up to 2025-11-25 speak it: the greeting, and answers to single requests.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, initialize, post, request, result_of};
use crate::support::{Answer, Setup};

const RICH: &str = concat!(
    r#"capabilities={"tools":{},"prompts":{},"resources":{"subscribe":true}"#,
    r#","completions":{},"logging":{},"tasks":{"list":{}},"experimental":{"x":{}}"#,
    r#"}"#
);

#[tokio::test]
async fn every_version_up_to_2025_11_25_is_spoken_and_any_other_answered_with_that() {
    let gateway = Setup::new().fake("fake").start().await;
    for path in ["/mcp", "/mcp/fake"] {
        for (asked, given) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("2030-01-01", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            let answer = Answer::of(post(&gateway, path, initialize(asked, &json!({})))).await;
            assert_eq!(result_of(&answer)["protocolVersion"], given, "{asked:?} at {path}");
            assert_eq!(answer.json()["id"], 0);
            assert_eq!(answer.header("content-type"), "application/json");
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_is_introduced_with_what_the_gateway_can_pass_on_of_it() {
    let gateway = Setup::new().fake("plain").fake_with("rich", &[RICH], "").start().await;
    let opened = async |path| result_of(&Session::try_open(&gateway, path, json!({})).await);
    let plain = opened("/mcp/plain").await;
    assert_eq!(plain["capabilities"], json!({"tools": {"listChanged": true}}));
    assert_eq!(plain["serverInfo"], json!({"name": "fake", "version": "1"}));
    let mut everything = json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"listChanged": true, "subscribe": true},
        "completions": {},
        "logging": {},
    });
    let all = opened("/mcp").await;
    let mut together = everything.clone();
    let skills = "io.modelcontextprotocol/skills";
    together["extensions"] =
        json!({skills: {"directoryRead": true}, "io.modelcontextprotocol/ui": {}});
    assert_eq!(all["capabilities"], together);
    assert_eq!(all["serverInfo"]["name"], "trunkline");
    everything["experimental"] = json!({"x": {}});
    assert_eq!(opened("/mcp/rich").await["capabilities"], everything);
    gateway.stop().await;
}

#[tokio::test]
async fn a_greeting_that_lacks_something_is_an_error_and_opens_nothing() {
    let gateway = Setup::new().std().start().await;
    for params in [
        json!({}),
        json!({"protocolVersion": "2025-11-25"}),
        json!({"protocolVersion": 1, "capabilities": {}}),
        json!({"protocolVersion": "2025-11-25", "capabilities": []}),
        json!({"protocolVersion": "2025-11-25", "capabilities": {"x": "y".repeat(5000)}}),
    ] {
        let answer = Answer::of(post(&gateway, "/mcp", request(7, "initialize", params))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(
            (&answer.json()["error"]["code"], &answer.json()["id"]),
            (&json!(-32602), &json!(7))
        );
        assert_eq!(answer.header("mcp-session-id"), "");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn the_version_header_may_be_absent_but_not_unknown() {
    let gateway = Setup::new().std().start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let ping = request(1, "ping", json!({}));
    let with = async |version: Option<&str>, message: &Value| {
        let mut post = post(&gateway, "/mcp", message).header("mcp-session-id", &session.id);
        if let Some(version) = version {
            post = post.header("mcp-protocol-version", version);
        }
        Answer::of(post).await
    };
    assert_eq!(result_of(&with(None, &ping).await), json!({}));
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        assert_eq!(result_of(&with(Some(version), &ping).await), json!({}), "{version}");
    }
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for version in ["2030-01-01", "1.0", ""] {
        assert_eq!(with(Some(version), &ping).await.status, 400, "{version:?}");
        assert_eq!(with(Some(version), &told).await.status, 400, "{version:?}");
    }
    gateway.stop().await;
}

/// Some clients give up their whole session at any other status.
#[tokio::test]
async fn whatever_becomes_of_a_request_in_a_session_its_answer_is_a_200() {
    let gateway = Setup::new().fake_with("fake", &[RICH], "").start().await;
    let one = Session::open(&gateway, "/mcp/fake").await;
    let all = Session::open(&gateway, "/mcp").await;
    let call = |tool: &str, arguments: Value| json!({"name": tool, "arguments": arguments});
    for (session, method, params, code) in [
        (&one, "tools/call", call("nothing", json!({})), -32602),
        (&all, "tools/call", call("fake__nothing", json!({})), -32602),
        (&all, "tools/call", call("nobody__raw", json!({})), -32602),
        (&all, "tools/call", call("raw", json!({})), -32602),
        (&one, "tools/call", json!({}), -32602),
        (&one, "tools/call", call("raw", json!([])), -32602),
        (&one, "tools/call", json!({"name": 1, "Name": "raw"}), -32602),
        (&one, "tools/call", call("error", json!({"code": -32099, "message": "x"})), -32099),
        (&one, "tools/call", call("result", json!({"value": [1]})), 502),
        (&one, "resources/read", json!({}), -32602),
        (&one, "no/such/method", json!({}), -32601),
        (&one, "server/nothing", json!({}), -32601),
        (&one, "logging/setLevel", json!({"level": "loud"}), -32602),
        (&one, "logging/setLevel", json!({}), -32602),
        (&one, "resources/subscribe", json!({}), -32602),
        (&all, "resources/subscribe", json!({"uri": "test://x"}), -32602),
        (&one, "tools/list", json!({"cursor": "x"}), -32602),
    ] {
        let error = session.error(method, params.clone()).await;
        assert_eq!(error["code"], code, "{method} {params}: {error}");
        assert!(error["message"].is_string());
    }
    let unknown = one.error("tools/call", call("nothing", json!({}))).await;
    assert_eq!(unknown["data"]["code"], "tool_not_found");
    assert_eq!(unknown["data"]["executed"], "no");
    gateway.stop().await;
}

#[tokio::test]
async fn a_servers_own_error_is_passed_on_as_it_is() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let error = json!({"code": 7, "message": "no luck", "data": {"n": [1]}});
    let params = json!({"name": "error", "arguments": error});
    assert_eq!(session.error("tools/call", params).await, error);
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_no_single_message_is_refused() {
    let gateway = Setup::new().std().start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let ping = request(1, "ping", json!({}));
    for (body, code) in [
        (json!([ping]).to_string(), -32600),
        ("[]".to_owned(), -32600),
        ("{}".to_owned(), -32600),
        ("ping".to_owned(), -32700),
        (json!({"jsonrpc": "1.0", "id": 1, "method": "ping"}).to_string(), -32600),
    ] {
        let answer = session.send(&body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["error"]["code"], code, "{body}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_needs_no_answer_gets_202_and_nothing_else() {
    let gateway = Setup::new().std().start().await;
    let session = Session::open(&gateway, "/mcp").await;
    for message in [
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]}),
        json!({"jsonrpc": "2.0", "method": "notifications/nothing", "params": 5}),
        json!({"jsonrpc": "2.0", "id": 99, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "x", "result": {}}),
        json!({"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}),
    ] {
        let answer = session.send(&message).await;
        assert_eq!((answer.status, answer.body.len()), (202, 0), "{message}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn pings_and_log_levels_are_answered_here() {
    let gateway = Setup::new().fake_with("fake", &[RICH], "").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    assert_eq!(session.result("ping", json!({})).await, json!({}));
    for level in ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"] {
        let params = json!({"level": level});
        assert_eq!(session.result("logging/setLevel", params).await, json!({}), "{level}");
    }
    let fake = gateway.fake("fake");
    assert!(fake.received_of("ping").is_empty() && fake.received_of("logging/setLevel").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn ids_come_back_exactly_as_they_were_sent_and_never_reach_a_server() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    for id in ["0", "-1", "\"x\"", "\"\"", "\"0\"", "null", "1.0", "12345678901234567890123"] {
        for method in ["ping", "tools/list", "nothing"] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#);
            let answer = session.send(&body).await.text();
            assert!(answer.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},")), "{answer}");
        }
        let params = r#"{"name":"raw","arguments":{}}"#;
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{params}}}"#);
        let answer = session.send(&body).await.text();
        assert!(
            answer.starts_with(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\"")),
            "{answer}"
        );
    }
    let sent: Vec<_> = gateway.fake("fake").calls_of("raw");
    assert_eq!(sent.len(), 8);
    assert!(sent.iter().all(|call| call["id"].as_u64().is_some_and(|id| id > 1000)), "{sent:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_servers_result_loses_what_only_modern_clients_know() {
    let gateway = Setup::new().fake_with("fake", &["discover=modern"], "").start().await;
    let session = Session::open(&gateway, "/mcp/fake").await;
    let value = json!({"resultType": "complete", "content": []});
    let params = json!({"name": "result", "arguments": {"value": value}});
    assert_eq!(session.result("tools/call", params).await, json!({"content": []}));
    let value = json!({"resultType": "input_required", "inputRequests": {}});
    let params = json!({"name": "result", "arguments": {"value": value}});
    let error = session.error("tools/call", params).await;
    assert_eq!(error["data"]["code"], "input_required");
    gateway.stop().await;
}
