//! The answer to each message.

use serde_json::{Value, json};

use super::super::LINE_LEN_MAX;
use super::Client;
use crate::protocol::mcp::meta;

fn modern(version: &str) -> Value {
    json!({meta::PROTOCOL_VERSION: version, meta::CLIENT_CAPABILITIES: {}})
}

/// Checks and removes the members that every modern result has.
fn assert_modern(result: &mut Value) {
    let result = result.as_object_mut().unwrap();
    assert_eq!(result.remove("resultType").unwrap(), "complete");
    let meta = result.remove("_meta").unwrap();
    assert_eq!(meta["io.modelcontextprotocol/serverInfo"]["name"], "trunkline-std");
}

#[tokio::test]
async fn ids_are_echoed_as_written() {
    let mut client = Client::new(2);
    for id in ["0", "1.10", "12345678901234567890123", "-1", "\"a\\u0062\"", "\"\"", "null"] {
        for (method, rest) in [("ping", "result"), ("nope", "error")] {
            client
                .send_line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#))
                .await;
            let line = client.output.next_line().await.unwrap().unwrap();
            let start = format!(r#"{{"jsonrpc":"2.0","id":{id},"{rest}":"#);
            assert!(line.starts_with(&start), "{line}");
        }
    }
    let sleep = r#""method":"tools/call","params":{"name":"sleep","arguments":{"ms":0}}}"#;
    client.send_line(&format!(r#"{{"jsonrpc":"2.0","id":1.0e1,{sleep}"#)).await;
    let line = client.output.next_line().await.unwrap().unwrap();
    assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":1.0e1,"result":"#), "{line}");
}

#[tokio::test]
async fn a_message_that_is_no_request_is_refused_and_the_server_continues() {
    let mut client = Client::new(1);
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(LINE_LEN_MAX));
    for (line, code, message) in [
        ("hello", -32700, "the line is not JSON"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600, "Batch requests not supported"),
        ("[]", -32600, "Batch requests not supported"),
        (
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            -32600,
            "`id` must be a string, a number or null",
        ),
        (
            r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
            -32600,
            "`id` must be a string, a number or null",
        ),
        (&long, -32600, "the message is longer than 16777216 bytes"),
    ] {
        client.send_line(line).await;
        let error = json!({"code": code, "message": message});
        let expected = json!({"jsonrpc": "2.0", "id": null, "error": error});
        assert_eq!(client.receive().await, expected);
    }
    client.send_line(r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#).await;
    let refused = client.receive().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(-32600)));
    assert_eq!(client.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn notifications_and_answers_are_never_answered_and_do_no_harm() {
    let mut client = Client::new(1);
    client.notify("notifications/initialized", json!({})).await;
    client.notify("notifications/unheard_of", json!({})).await;
    client.notify("tools/call", json!({"name": "echo"})).await;
    for params in [json!({}), json!([1]), json!(null), json!({"requestId": {}})] {
        client.notify("notifications/cancelled", params).await;
    }
    client.notify("notifications/cancelled", json!({"requestId": "unknown"})).await;
    client.send(json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await;
    client.send(json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}})).await;
    assert_eq!(client.ask("ping", json!({})).await["id"], 1);
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test]
async fn the_handshake_agrees_on_a_legacy_version() {
    let mut client = Client::new(1);
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1900-01-01", "2025-11-25"),
    ] {
        let params = json!({"protocolVersion": asked, "capabilities": {}, "clientInfo": {}});
        let answer = client.ask("initialize", params).await;
        let info = json!({"name": "trunkline-std", "version": env!("CARGO_PKG_VERSION")});
        assert_eq!(
            answer["result"],
            json!({"protocolVersion": agreed, "capabilities": {"tools": {}}, "serverInfo": info})
        );
    }
}

#[tokio::test]
async fn a_modern_client_discovers_lists_and_calls() {
    let mut client = Client::new(1);
    let meta = modern("2026-07-28");
    let mut discovered = client.ask("server/discover", json!({"_meta": meta})).await;
    assert_modern(&mut discovered["result"]);
    assert_eq!(
        discovered["result"],
        json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "ttlMs": 3_600_000,
            "cacheScope": "public",
        })
    );
    let mut listed = client.ask("tools/list", json!({"_meta": meta})).await;
    assert_modern(&mut listed["result"]);
    assert_eq!(listed["result"]["cacheScope"], "public");
    assert!(listed["result"]["ttlMs"].is_u64());
    let legacy = client.ask("tools/list", json!({})).await;
    assert_eq!(legacy["result"], json!({"tools": listed["result"]["tools"]}));

    for (tool, arguments, text) in
        [("echo", json!({"text": "hi"}), "hi"), ("sleep", json!({"ms": 0}), "slept 0 ms")]
    {
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        let mut called = client.ask("tools/call", params).await;
        assert_modern(&mut called["result"]);
        let content = json!([{"type": "text", "text": text}]);
        assert_eq!(called["result"], json!({"content": content, "isError": false}));
        let called = client.ask("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert_eq!(called["result"], json!({"content": content, "isError": false}));
    }
}

#[tokio::test]
async fn modern_requests_must_be_complete_and_of_a_known_version() {
    let mut client = Client::new(1);
    for version in ["2030-01-01", "2025-11-25"] {
        let answer = client.ask("tools/list", json!({"_meta": modern(version)})).await;
        assert_eq!(answer["error"]["code"], -32022);
        let data = json!({"supported": ["2026-07-28"], "requested": version});
        assert_eq!(answer["error"]["data"], data);
    }
    let mut incomplete = modern("2026-07-28");
    incomplete.as_object_mut().unwrap().remove(meta::CLIENT_CAPABILITIES);
    let answer = client.ask("tools/list", json!({"_meta": incomplete})).await;
    assert_eq!(answer["error"]["code"], -32602);
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("clientCapabilities"), "{message}");
    for method in ["server/discover", "subscriptions/listen"] {
        assert_eq!(client.ask(method, json!({})).await["error"]["code"], -32602);
    }
    // The modern era has no `ping`.
    let answer = client.ask("ping", json!({"_meta": modern("2026-07-28")})).await;
    assert_eq!(answer["error"]["code"], -32601);
}

#[tokio::test]
async fn a_subscription_is_acknowledged_takes_no_slot_and_stays_unanswered() {
    let mut client = Client::new(1);
    let params =
        json!({"_meta": modern("2026-07-28"), "notifications": {"toolsListChanged": true}});
    client.request("s", "subscriptions/listen", params).await;
    let acknowledged = client.receive().await;
    assert_eq!(
        acknowledged,
        json!({
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {
                "_meta": {"io.modelcontextprotocol/subscriptionId": "s"},
                "notifications": {},
            },
        })
    );
    client.call(1, "sleep", json!({"ms": 0})).await;
    assert_eq!(client.ids(1).await, [1]);
    client.notify("notifications/cancelled", json!({"requestId": "s"})).await;
    assert_eq!(client.close().await, Vec::<Value>::new());
}

#[tokio::test]
async fn methods_it_does_not_have_are_not_found() {
    let mut client = Client::new(1);
    for method in ["prompts/list", "resources/list", "resources/read", "logging/setLevel", "x"] {
        let error = client.ask(method, json!({})).await["error"].clone();
        assert_eq!(error["code"], -32601);
        assert!(error["message"].as_str().unwrap().contains(method), "{error}");
    }
}

#[tokio::test]
async fn calls_that_cannot_be_made_are_protocol_errors() {
    let mut client = Client::new(1);
    for (params, message) in [
        (json!({"name": "nope"}), "there is no tool `nope`"),
        (json!({"name": 7}), "`name` must be a string, the name of the tool"),
        (json!({}), "`name` must be a string, the name of the tool"),
        (json!([1]), "`params` must be an object, and it is an array"),
        (json!({"name": "echo", "_meta": 1}), "`_meta` must be an object, and it is a number"),
    ] {
        let error = client.ask("tools/call", params).await["error"].clone();
        assert_eq!(error, json!({"code": -32602, "message": message}));
    }
    let error = client.ask("tools/list", json!({"cursor": "2"})).await["error"].clone();
    assert_eq!(error["code"], -32602);
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_tool_errors_that_say_why() {
    let mut client = Client::new(1);
    for (tool, arguments, why) in [
        ("echo", json!({}), "`text` is missing"),
        ("echo", json!({"text": 1}), "`text` must be a string of Unicode text, and it is 1"),
        ("echo", json!({"text": "", "x": 1}), "`x` is unknown; the known ones are: `text`"),
        ("uuid", json!({"x": 1}), "`x` is unknown; the known ones are: none"),
        ("sleep", json!({"ms": -1}), "`ms` must be an integer from 0 to 3600000, and it is -1"),
        ("sleep", json!(5), "`arguments` must be an object, and it is 5"),
    ] {
        client.call(1, tool, arguments).await;
        let text = format!("the arguments do not fit `{tool}`: {why}");
        assert_eq!(
            client.receive().await["result"],
            json!({"content": [{"type": "text", "text": text}], "isError": true})
        );
    }
}

#[tokio::test]
async fn the_tools_are_listed_in_order_and_describe_themselves() {
    let mut client = Client::new(1);
    let answer = client.ask("tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "sleep", "time", "hash", "uuid", "json_query", "fail"]);
    for tool in tools {
        assert!(tool["title"].is_string() && tool["description"].is_string());
        assert_eq!(tool["inputSchema"]["type"], "object");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{hint}");
        }
    }
}
