//! The modern era: headers and body must say the same, and must be there.

use serde_json::{Value, json};

use crate::support::mcp_modern::{
    Ask, CLIENT_CAPABILITIES, LOG_LEVEL, PROTOCOL_VERSION, VERSION, encoded,
};
use crate::support::{Gateway, Mcp, Setup};

const MISMATCH: (u16, i64) = (400, -32020);
const INVALID_PARAMS: (u16, i64) = (400, -32602);
const INVALID_REQUEST: (u16, i64) = (400, -32600);

async fn talker() -> (Gateway, Mcp) {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    (gateway, mcp)
}

fn echo(mcp: &Mcp) -> Ask {
    mcp.call("echo", json!({})).id("\"r\\u0031\"")
}

/// Every one of them is refused in the same way, with its id, and none reaches the server.
async fn all_refused(gateway: Gateway, asks: Vec<Ask>, refusal: (u16, i64)) {
    for ask in asks {
        let shown = format!("{ask:?}");
        let said = ask.send().await;
        assert_eq!(said.refusal(), refusal, "{shown} gave {said:?}");
        assert!(said.echoes("\"r\\u0031\""), "{said:?}");
    }
    assert!(gateway.fake("talker").received_of("tools/call").is_empty());
    assert!(gateway.fake("talker").received_of("prompts/get").is_empty());
    assert!(gateway.fake("talker").received_of("resources/read").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn headers_that_are_missing_or_differ_from_the_body_are_refused() {
    let (gateway, mcp) = talker().await;
    let echo = || echo(&mcp);
    let read = |uri| mcp.ask("resources/read", json!({"uri": uri})).id("\"r\\u0031\"");
    let get = |name| mcp.ask("prompts/get", json!({"name": name})).id("\"r\\u0031\"");
    let asks = vec![
        echo().without_header("mcp-protocol-version"),
        echo().header("mcp-protocol-version", "2025-11-25"),
        echo().header("mcp-protocol-version", "=?base64?MjAyNi0wNy0yOA==?="),
        echo().without_header("mcp-method"),
        echo().header("mcp-method", "tools/list"),
        echo().header("mcp-method", "Tools/call"),
        echo().without_header("mcp-name"),
        echo().header("mcp-name", "hold"),
        echo().header("mcp-name", ""),
        echo().header("mcp-name", "Echo"),
        // Encoded, but something else; not base64; base64 of no text; a header's bytes that are no
        // text.
        echo().header("mcp-name", "=?base64?aG9sZA==?="),
        echo().header("mcp-name", "=?base64?ZWNobw?="),
        echo().header("mcp-name", "=?base64?/w==?="),
        echo().header("mcp-name", b"ech\xc3\xb6"),
        read("mem:///a").without_header("mcp-name"),
        read("mem:///a").header("mcp-name", "mem:///b"),
        get("greet").without_header("mcp-name"),
        get("greet").header("mcp-name", "ask"),
    ];
    all_refused(gateway, asks, MISMATCH).await;
}

#[tokio::test]
async fn a_header_that_comes_twice_is_refused_whatever_it_says() {
    let (gateway, mcp) = talker().await;
    let echo = || echo(&mcp);
    let deploy = || mcp.call("deploy", json!({"region": "eu"})).id("\"r\\u0031\"");
    let asks = vec![
        echo().another_header("mcp-name", "hold"),
        echo().header("mcp-name", "hold").another_header("mcp-name", "echo"),
        echo().another_header("mcp-name", "echo"),
        echo().another_header("mcp-method", "tools/list"),
        echo().another_header("mcp-protocol-version", "2025-11-25"),
        echo().another_header("mcp-param-any", "a").another_header("mcp-param-any", "b"),
        deploy().header("mcp-param-region", "eu").another_header("mcp-param-region", "us"),
        deploy().header("mcp-param-region", "us").another_header("mcp-param-region", "eu"),
    ];
    all_refused(gateway, asks, MISMATCH).await;
}

#[tokio::test]
async fn arguments_that_a_tool_wants_repeated_in_headers_must_agree_with_them() {
    let (gateway, mcp) = talker().await;
    let deploy = |arguments: Value| mcp.call("deploy", arguments).id("\"r\\u0031\"");
    let both = || deploy(json!({"region": "eu", "count": 42}));
    for ask in [
        deploy(json!({})),
        deploy(json!({"region": null})),
        deploy(json!({"region": "eu"})).header("mcp-param-region", "eu"),
        deploy(json!({"region": "ü"})).header("mcp-param-region", encoded("ü")),
        both().header("mcp-param-region", "eu").header("Mcp-Param-Count", "42"),
        both().header("mcp-param-region", "eu").header("mcp-param-count", "42.0"),
        echo(&mcp).header("mcp-param-region", "whatever"),
    ] {
        ask.send().await.tool_text();
    }
    let reached = gateway.fake("talker").received_of("tools/call").len();
    assert_eq!(reached, 7);
    for ask in [
        deploy(json!({"region": "eu"})),
        deploy(json!({"region": "eu"})).header("mcp-param-region", "us"),
        deploy(json!({"region": "eu"})).header("mcp-param-region", "=?base64?ZXU?="),
        deploy(json!({})).header("mcp-param-region", "eu"),
        both().header("mcp-param-region", "eu"),
        both().header("mcp-param-region", "eu").header("mcp-param-count", "43"),
    ] {
        let shown = format!("{ask:?}");
        let said = ask.send().await;
        assert_eq!(said.refusal(), MISMATCH, "{shown} gave {said:?}");
        assert!(said.echoes("\"r\\u0031\""), "{said:?}");
    }
    assert_eq!(gateway.fake("talker").received_of("tools/call").len(), reached);
    gateway.stop().await;
}

#[tokio::test]
async fn names_may_be_encoded_in_headers() {
    let (gateway, mcp) = talker().await;
    let said = echo(&mcp).header("mcp-name", "=?base64?ZWNobw==?=").send().await;
    assert_eq!(said.tool_text(), "{}");
    let said = mcp.call("größe", json!({})).send().await;
    assert_eq!(said.tool_text(), "this is größe");
    gateway.stop().await;
}

#[tokio::test]
async fn what_every_request_must_say_of_itself_is_asked_for() {
    let (gateway, mcp) = talker().await;
    let echo = || echo(&mcp);
    let asks = vec![
        echo().without_meta(PROTOCOL_VERSION),
        echo().without_meta(CLIENT_CAPABILITIES),
        echo().meta(PROTOCOL_VERSION, 7),
        echo().meta(CLIENT_CAPABILITIES, json!([])),
        echo().meta(CLIENT_CAPABILITIES, Value::Null),
        echo().meta(LOG_LEVEL, "loud"),
        echo().meta("progressToken", json!({})),
        echo().raw_params("{}"),
        echo().raw_params("[]"),
        echo().raw_params(r#"{"name":"echo","_meta":[]}"#),
        echo().raw_params(r#"{"name":7,"_meta":{$meta}}"#),
        echo().raw_params(r#"{"name":"echo","arguments":[],"_meta":{$meta}}"#),
    ];
    all_refused(gateway, asks, INVALID_PARAMS).await;
}

#[tokio::test]
async fn who_the_client_is_need_not_be_said() {
    let (gateway, mcp) = talker().await;
    let said = echo(&mcp).meta("io.modelcontextprotocol/clientInfo", json!({"name": "x"}));
    said.send().await.tool_text();
    echo(&mcp).send().await.tool_text();
    gateway.stop().await;
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_answered_with_those_that_are() {
    let (gateway, mcp) = talker().await;
    for version in ["2025-11-25", "2030-01-01", "x"] {
        let ask = echo(&mcp).meta(PROTOCOL_VERSION, version);
        let said = ask.header("mcp-protocol-version", version).send().await;
        assert_eq!(said.refusal(), (400, -32022));
        assert!(said.echoes("\"r\\u0031\""), "{said:?}");
        let data = json!({"supported": [VERSION], "requested": version});
        assert_eq!(said.error()["data"], data);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn methods_that_are_not_there_or_no_longer_are_not_found() {
    let (gateway, mcp) = talker().await;
    let mut methods = vec!["no/such", "tools", "TOOLS/LIST", ""];
    methods.extend(["initialize", "ping", "logging/setLevel", "resources/subscribe"]);
    methods.extend(["resources/unsubscribe", "tasks/list", "sampling/createMessage"]);
    for endpoint in [mcp, gateway.mcp("/mcp")] {
        for method in &methods {
            let said = endpoint.ask(method, json!({})).id("\"é\"").send().await;
            assert_eq!(said.refusal(), (404, -32601), "{method}");
            assert!(said.echoes("\"é\""), "{said:?}");
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn ids_are_echoed_byte_for_byte_and_must_be_ids() {
    let (gateway, mcp) = talker().await;
    let ids = ["1", "0", "-1", "1.0", "1e3", "\"é\"", "\"\\u00e9\"", "\"\"", "null"];
    for id in ids.into_iter().chain(["12345678901234567890", "123456789012345678901234567890"]) {
        for ask in [
            mcp.call("echo", json!({})),
            mcp.call("progress", json!({"n": 1})).meta("progressToken", 1),
            mcp.ask("tools/list", json!({})),
            mcp.ask("server/discover", json!({})),
        ] {
            let said = ask.id(id).send().await;
            said.result();
            assert!(said.echoes(id), "{id} came back in {said:?}");
        }
        let said = mcp.call("no such tool", json!({})).id(id).send().await;
        assert!(said.echoes(id), "{id} came back in {said:?}");
    }
    for id in ["true", "[1]", "{}"] {
        let said = mcp.call("echo", json!({})).id(id).send().await;
        assert_eq!(said.refusal(), INVALID_REQUEST);
        assert!(said.echoes("null"), "{said:?}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_request_are_told_what_they_are() {
    let (gateway, mcp) = talker().await;
    let body = |body: &str| mcp.call("echo", json!({})).body(body).send();
    let batch = body(r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#).await;
    assert_eq!(batch.refusal(), INVALID_REQUEST);
    assert_eq!(batch.error()["message"], "Batch requests not supported");
    for text in ["", "{", "nonsense", r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#] {
        assert_eq!(body(text).await.refusal(), (400, -32700), "{text}");
    }
    for text in [
        "7",
        "{}",
        r#"{"id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}"#,
    ] {
        assert_eq!(body(text).await.refusal(), INVALID_REQUEST, "{text}");
    }
    assert_eq!(gateway.fake("talker").received_of("tools/call").len(), 0);
    gateway.stop().await;
}

#[tokio::test]
async fn notifications_and_answers_are_taken_and_not_answered() {
    let (gateway, mcp) = talker().await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
        r#"{"jsonrpc":"2.0","method":"no/such"}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
    ] {
        let said = mcp.call("echo", json!({})).body(body).send().await;
        assert_eq!((said.status, said.body.as_str()), (202, ""), "{body}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn only_post_is_for_modern_clients() {
    let (gateway, _) = talker().await;
    for path in ["/mcp", "/mcp/talker"] {
        for method in [reqwest::Method::GET, reqwest::Method::DELETE, reqwest::Method::PUT] {
            let request = gateway.client.request(method.clone(), gateway.url(path));
            let accept = request.header("accept", "text/event-stream");
            let said = accept.header("mcp-protocol-version", VERSION).send().await.unwrap();
            assert_eq!(said.status(), 405, "{method} {path}");
            assert!(said.headers()["allow"].to_str().unwrap().contains("POST"));
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn types_and_sizes_are_looked_at_first() {
    let gateway = Setup::new().set("max_body = \"2KiB\"").talker("talker", "modern").start().await;
    let mcp = gateway.mcp("/mcp/talker");
    for kind in ["text/plain", "application/jsonp", "application/json-seq", "text/json", ""] {
        let said = echo(&mcp).header("content-type", kind).send().await;
        assert_eq!(said.status, 415, "{kind}");
    }
    assert_eq!(echo(&mcp).without_header("content-type").send().await.status, 415);
    for kind in ["application/json;charset=utf-8", "Application/JSON ; x=y"] {
        echo(&mcp).header("content-type", kind).send().await.tool_text();
    }
    for accept in
        ["application/json", "text/event-stream", "text/html", "application/jsonp, text/*"]
    {
        let said = echo(&mcp).header("accept", accept).send().await;
        assert_eq!(said.status, 406, "{accept}");
    }
    for accept in ["*/*", "text/*, application/*", "text/event-stream;q=0.5,application/json"] {
        echo(&mcp).header("accept", accept).send().await.tool_text();
    }
    let big = json!({"text": "x".repeat(2048)});
    assert_eq!(mcp.call("echo", big).send().await.status, 413);
    gateway.stop().await;
}
