//! Servers that have a URL instead of a program, used like any other.

use serde_json::{Value, json};
use trunkline::backend::CANCEL_GRACE;

use crate::support::mcp_legacy::{Session, messages, request};
use crate::support::{
    Answer, Gateway, HttpServer, Setup, eventually, failed, in_time, refused, within,
};

async fn gateway(server: &HttpServer) -> Gateway {
    Setup::new().http("web", &server.url("/mcp"), "").start().await
}

/// Tells the tool `answer` how to answer.
fn answer(kind: &str, body: &str) -> Value {
    json!({"type": kind, "body": body})
}

const EVENTS: &str = "text/event-stream";

#[tokio::test]
async fn a_legacy_server_has_one_session_from_handshake_to_goodbye() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    assert_eq!(gateway.call("web", "echo", json!({"text": "hello"})).await.tool_text(), "hello");
    assert_eq!(gateway.server("web").await.json()["protocol_version"], "2025-11-25");
    let seen = server.seen();
    assert_eq!(seen[0].message["method"], "server/discover");
    assert_eq!(seen[1].message["method"], "initialize");
    assert_eq!(
        (seen[1].header("mcp-session-id"), seen[1].header("mcp-protocol-version")),
        ("", "")
    );
    assert_eq!(seen[2].message["method"], "notifications/initialized");
    for seen in &seen[2..] {
        assert!(seen.header("mcp-session-id").starts_with("session-"), "{seen:?}");
        assert_eq!(seen.header("mcp-protocol-version"), "2025-11-25", "{seen:?}");
    }
    gateway.stop().await;
    assert_eq!(server.seen().last().unwrap().verb, "DELETE");
    server.stop().await;
}

#[tokio::test]
async fn a_modern_server_is_told_in_headers_what_the_body_says() {
    let server = HttpServer::modern().await;
    let schema = json!({"type": "object", "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "count": {"type": "integer", "x-mcp-header": "Count"},
    }});
    let invalid = json!({"type": "object", "x-mcp-header": "Root"});
    server.set_tools(json!([
        {"name": "ünï", "inputSchema": schema},
        {"name": "invalid", "inputSchema": invalid},
    ]));
    let gateway = gateway(&server).await;
    assert_eq!(gateway.tools("web").await.json()["tools"].as_array().unwrap().len(), 1);
    let arguments = json!({"region": "Zürich", "count": 3, "other": "x"});
    assert_eq!(gateway.call("web", "%C3%BCn%C3%AF", arguments).await.tool_text(), "ünï");
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.header("mcp-protocol-version") == "2026-07-28"));
    assert!(seen.iter().all(|seen| seen.message["method"] == seen.header("mcp-method")));
    assert!(seen.iter().all(|seen| seen.headers.get("mcp-session-id").is_none()));
    let call = &server.seen_of("tools/call")[0];
    assert_eq!(call.header("accept"), "application/json, text/event-stream");
    assert_eq!(call.header("content-type"), "application/json");
    assert_eq!(call.header("mcp-name"), "=?base64?w7xuw68=?=");
    assert_eq!(call.header("mcp-param-region"), "=?base64?WsO8cmljaA==?=");
    assert_eq!(call.header("mcp-param-count"), "3");
    assert!(call.headers.get("mcp-param-other").is_none());

    // Too long for a header, it would break the connection of all tenants.
    let arguments = json!({"region": "x".repeat(5000), "count": 3});
    let said = gateway.call("web", "%C3%BCn%C3%AF", arguments).await;
    assert_eq!(said.problem(), refused(400, "invalid_request"));
    assert!(said.detail().contains("`mcp-param-region`"), "{}", said.detail());
    assert_eq!(server.seen_of("tools/call").len(), 1);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn nothing_of_the_callers_request_but_its_message_goes_to_the_server() {
    let server = HttpServer::legacy().await;
    let settings = "headers = { X-Server-Key = \"the-operators\" }";
    let setup = Setup::new().with_tenant("acme", "servers = [\"*\"]");
    let gateway = setup.http("web", &server.url("/mcp"), settings).start().await;
    let acme = gateway.as_tenant("acme").await;
    let call = acme.post("web", "echo", json!({"text": "x"}));
    let call =
        call.header("Cookie", "c=1").header("X-Server-Key", "the-tenants").header("X-Mine", "1");
    assert_eq!(Answer::of(call.header("Forwarded", "for=me")).await.tool_text(), "x");
    let known = [
        "accept",
        "content-length",
        "content-type",
        "host",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-protocol-version",
        "mcp-session-id",
        "user-agent",
        "x-server-key",
    ];
    for seen in server.seen() {
        let unknown = seen.headers.keys().find(|name| !known.contains(&name.as_str()));
        assert_eq!(unknown, None, "{seen:?}");
        assert_eq!(seen.header("x-server-key"), "the-operators");
        assert!(seen.header("user-agent").starts_with("trunkline/"));
    }
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn progress_on_the_stream_of_a_call_reaches_its_caller() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    let session = Session::open(&gateway, "/mcp/web").await;
    let body = concat!(
        ": hello\r\n\r\n",
        "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\r\n",
        "data:  \"params\":{\"progressToken\":$id,\"progress\":1}}\r\n\r\n",
        "event: other\r\ndata: nonsense\r\n\r\n",
        "data: {\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":\r\ndata: {\"content\":[]}}\r\n\r\n",
    );
    let params = json!({"name": "answer", "arguments": answer(EVENTS, body),
        "_meta": {"progressToken": "mine"}});
    let said = Answer::of(session.post(request(7, "tools/call", params))).await;
    let messages = messages(&said);
    assert_eq!(messages[0]["params"], json!({"progressToken": "mine", "progress": 1}));
    assert_eq!((&messages[1]["id"], &messages[1]["result"]["content"]), (&json!(7), &json!([])));
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn an_answer_with_line_breaks_does_not_break_the_callers_stream() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    let body = "{\"jsonrpc\":\"2.0\",\n\"id\":$id,\"result\":{\n\n\"content\":[],\
     \r\n\r\n\"resultType\":\"complete\"}}";
    for (kind, body) in [
        ("application/json; charset=utf-8", body.to_owned()),
        (EVENTS, format!("data: {}\n\n", body.replace("\r\n", "\n").replace('\n', "\ndata: "))),
    ] {
        let call = gateway.mcp("/mcp/web").call("answer", answer(kind, &body));
        let said = call.meta("progressToken", 1).send().await;
        assert_eq!(said.result()["content"], json!([]), "{said:?}");
    }
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn an_answer_to_another_call_is_dropped_and_counted() {
    for server in [HttpServer::legacy().await, HttpServer::modern().await] {
        let gateway = gateway(&server).await;
        let hanging = gateway.spawn_call("web", "hang", json!({}));
        let victim = eventually("the call", async || {
            let call = server.seen_of("tools/call").into_iter().next();
            call.map(|call| call.message["id"].to_string())
        })
        .await;
        let forged = format!(r#"{{"jsonrpc":"2.0","id":{victim},"result":{{"content":[]}}}}"#);
        let right =
            r#"{"jsonrpc":"2.0","id":$id,"result":{"content":[{"type":"text","text":"mine"}]}}"#;
        let body = format!("data: {forged}\n\ndata: {right}\n\n");
        assert_eq!(gateway.call("web", "answer", answer(EVENTS, &body)).await.tool_text(), "mine");
        let said = gateway.call("web", "answer", answer("application/json", &forged)).await;
        assert_eq!(said.problem(), failed(502, "backend_protocol"));
        assert!(!hanging.is_finished());
        let counted =
            gateway.metrics().await.value("trunkline_unknown_answers_total{server=\"web\"}");
        assert_eq!(counted, Some(2.0));
        hanging.abort();
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_deadline_ends_the_stream_and_others_are_served() {
    for (server, is_modern) in
        [(HttpServer::legacy().await, false), (HttpServer::modern().await, true)]
    {
        let gateway = gateway(&server).await;
        let said = gateway.call_within_ms(300, "web", "hang", json!({})).await;
        assert_eq!(said.problem(), failed(504, "deadline_exceeded"));
        assert_eq!(gateway.call("web", "echo", json!({"text": "on"})).await.tool_text(), "on");
        if is_modern {
            // A modern server learns of it that way, so it must not take as long as the grace.
            let closed = async || (server.open_streams() == 0).then_some(());
            within(CANCEL_GRACE / 2, "closed", closed).await;
        } else {
            let id = server.seen_of("tools/call")[0].message["id"].clone();
            let told = eventually("told", async || server.seen_of("notifications/cancelled").pop());
            assert_eq!(told.await.message["params"]["requestId"], id);
            // It may still answer, for a while. What is left is the stream of notifications.
            eventually("closed", async || (server.open_streams() == 1).then_some(())).await;
        }
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_legacy_stream_that_ends_early_is_resumed_where_it_ended() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    let said = in_time("resumed", gateway.call("web", "resume", json!({}))).await;
    assert_eq!(said.tool_text(), "resumed");
    let resumed = server.seen().into_iter().find(|seen| !seen.header("last-event-id").is_empty());
    let resumed = resumed.unwrap();
    assert_eq!((resumed.verb.as_str(), resumed.header("last-event-id")), ("GET", "mark-1"));
    assert_eq!(resumed.header("accept"), EVENTS);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_legacy_server_tells_that_its_tools_have_changed() {
    // It has no time now, or has not noticed that the last stream is cut, and then it has.
    for code in [429, 409] {
        let server = HttpServer::legacy().await;
        server.refuse_stream(code);
        let gateway = gateway(&server).await;
        server.notify("notifications/tools/list_changed").await;
        // Twice: once since something may have been missed, and once since it says so.
        eventually("lists", async || (server.seen_of("tools/list").len() > 1).then_some(())).await;
        server.set_tools(json!([{"name": "new", "inputSchema": {"type": "object"}}]));
        server.notify("notifications/tools/list_changed").await;
        eventually("the new list", async || {
            let tools = gateway.tools("web").await.json();
            (tools["tools"][0]["name"] == "new").then_some(())
        })
        .await;
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn what_a_legacy_server_has_changed_while_its_stream_was_cut_is_noticed() {
    let server = HttpServer::legacy().await;
    let gateway = Setup::new().http("web", &server.url("/mcp"), "pin = true").start().await;
    assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    eventually("a stream", async || (server.open_streams() == 1).then_some(())).await;
    let schema = json!({"type": "object"});
    server.set_tools(json!([{"name": "echo", "description": "other", "inputSchema": schema}]));
    server.cut_stream();
    eventually("held back", async || {
        let said = gateway.call("web", "echo", json!({"text": "b"})).await;
        (said.status != 200).then(|| assert_eq!(said.json()["code"], "tool_held"))
    })
    .await;
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_tool_that_fails_by_itself_is_a_result() {
    for server in [HttpServer::legacy().await, HttpServer::modern().await] {
        let gateway = gateway(&server).await;
        let result = concat!(
            r#"{"content":[{"type":"text","text":"no such row"}],"#,
            r#""isError":true,"resultType":"complete"}"#
        );
        let body = format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{result}}}"#);
        for (kind, body) in
            [("application/json", body.clone()), (EVENTS, format!("data: {body}\n\n"))]
        {
            let said = gateway.call("web", "answer", answer(kind, &body)).await;
            assert_eq!((said.status, said.header("trunkline-outcome")), (200, "tool_error"));
            assert_eq!(said.json(), serde_json::from_str::<Value>(result).unwrap());
        }
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn answers_over_the_limit_fail_their_own_call() {
    for server in [HttpServer::legacy().await, HttpServer::modern().await] {
        let setup = Setup::new().set("max_response = \"64KiB\"");
        let gateway = setup.http("web", &server.url("/mcp"), "").start().await;
        let text = "x".repeat(70_000);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":$id,"result":{{"content":[],"x":"{text}"}}}}"#);
        for (kind, body) in
            [("application/json", body.clone()), (EVENTS, format!("data: {body}\n\n"))]
        {
            let said = gateway.call("web", "answer", answer(kind, &body)).await;
            assert_eq!(said.problem(), failed(502, "backend_too_large"));
        }
        assert_eq!(gateway.call("web", "echo", json!({"text": "on"})).await.tool_text(), "on");
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn what_is_no_answer_may_have_been_done_all_the_same() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    for arguments in
        [answer("text/html", "<p>"), answer("application/json", "[]"), answer(EVENTS, "")]
    {
        let said = gateway.call("web", "answer", arguments).await;
        assert_eq!(said.problem(), failed(502, "backend_protocol"));
    }
    let said = gateway.call("web", "cut", json!({})).await;
    assert_eq!(said.problem(), failed(502, "backend_protocol"));
    let flood = format!(
        "{}data: {}\n\n",
        "data: x\n\n".repeat(10_001),
        r#"{"jsonrpc":"2.0","id":$id,"result":{}}"#
    );
    let said = gateway.call("web", "answer", answer(EVENTS, &flood)).await;
    assert_eq!(said.problem(), failed(502, "backend_protocol"));
    assert!(said.detail().contains("floods"), "{}", said.detail());
    let said = gateway.call("web", "status", json!({"status": 202})).await;
    assert_eq!(said.problem(), failed(502, "backend_protocol"));
    assert_ne!(said.problem(), refused(502, "backend_protocol"));
    gateway.stop().await;
    server.stop().await;
}
