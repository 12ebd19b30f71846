//! The errors of callers when a server with a URL refuses, moves or goes away.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Gateway, HttpServer, Setup, eventually, failed, refused, trunkline};

async fn gateway(server: &HttpServer) -> Gateway {
    Setup::new().http("web", &server.url("/mcp"), "").start().await
}

/// Tells the tool `status` how to answer.
fn status(status: u16, headers: Value, body: &str) -> Value {
    json!({"status": status, "headers": headers, "body": body})
}

#[tokio::test]
async fn a_status_is_told_with_what_it_says_about_the_call() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    for code in [400, 401, 403, 404, 405, 413, 415] {
        let said = gateway.call("web", "status", status(code, json!({}), "no")).await;
        assert_eq!(said.problem(), refused(502, "backend_http"), "{code}");
        assert!(said.detail().contains(&code.to_string()), "{}", said.detail());
    }
    for code in [303, 408, 500, 502, 503, 504] {
        let said = gateway.call("web", "status", status(code, json!({}), "no")).await;
        assert_eq!(said.problem(), failed(502, "backend_http"), "{code}");
    }
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_asks_to_be_left_alone_is_and_its_callers_wait() {
    let server = HttpServer::modern().await;
    for code in [429, 503] {
        let gateway = gateway(&server).await;
        // A call that has no time to wait is told when to come back; others wait.
        let asks = status(code, json!({"retry-after": "2"}), "");
        let said = gateway.call_within_ms(1000, "web", "status", asks).await;
        assert_eq!(said.problem(), refused(502, "backend_http").for_now(), "{code}");
        assert_eq!(said.retry_after(), Some(2));
        let began = Instant::now();
        assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
        assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
        gateway.stop().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_whose_call_is_refused_keeps_nobody_else_waiting() {
    let server = HttpServer::modern().await;
    let setup = Setup::new().http("web", &server.url("/mcp"), "");
    let gateway = setup.with_tenant("globex", "servers = [\"*\"]").start().await;
    let neighbour = gateway.as_tenant("globex").await;
    assert_eq!(neighbour.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    let asks = status(429, json!({"retry-after": "2"}), "");
    let began = Instant::now();
    let quota = gateway.spawn_call("web", "status", asks.to_string());
    while !quota.is_finished() {
        let now = Instant::now();
        assert_eq!(neighbour.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
        assert!(now.elapsed() < Duration::from_secs(1), "{:?}", now.elapsed());
    }
    // Tried twice, with one pause between the two.
    let said = quota.await.unwrap();
    assert_eq!(said.problem(), refused(502, "backend_http").for_now());
    assert_eq!((said.header("trunkline-attempts"), said.retry_after()), ("2", Some(2)));
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    // Refused twice now, so that the server has its pause from all.
    let said = neighbour.call_within_ms(500, "web", "status", asks).await;
    assert_eq!(said.problem(), refused(502, "backend_http").for_now());
    let third = gateway.call_within_ms(300, "web", "echo", json!({"text": "a"})).await;
    assert_eq!(third.problem(), refused(504, "deadline_exceeded").for_now());
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_is_asked_too_much_has_a_moment_even_if_it_does_not_ask_for_it() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    let error = r#"{"jsonrpc":"2.0","id":$id,"error":{"code":-32000,"message":"too many"}}"#;
    for body in ["", error] {
        let asks = status(429, json!({}), body);
        let said = gateway.call_within_ms(500, "web", "status", asks).await;
        assert_eq!(said.problem(), refused(502, "backend_http").for_now(), "{body}");
        assert_eq!(said.retry_after(), Some(1));
        let began = Instant::now();
        assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
        assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
    }
    // With time to wait, the call itself is made again.
    let said = gateway.call_within_ms(1500, "web", "status", status(429, json!({}), error)).await;
    assert_eq!((said.status, said.header("trunkline-attempts")), (502, "2"));
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_asks_to_be_left_alone_is_before_it_has_said_everything() {
    for code in [429, 503] {
        let server = HttpServer::modern().await;
        let gateway = gateway(&server).await;
        let mut asks = status(code, json!({"retry-after": "5"}), "");
        asks["endless"] = json!(true);
        let said = gateway.call_within_ms(2000, "web", "status", asks).await;
        assert_eq!(said.problem(), refused(502, "backend_http").for_now(), "{code}");
        assert_eq!(said.retry_after(), Some(5));
        let said = gateway.call_within_ms(300, "web", "echo", json!({"text": "a"})).await;
        assert_eq!(said.problem(), refused(504, "deadline_exceeded").for_now(), "{code}");
        assert_eq!(server.seen_of("tools/call").len(), 1);
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_is_one_however_long_its_words_take() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    let asks = json!({"status": 401, "endless": true});
    let said = gateway.call_within_ms(15_000, "web", "status", asks).await;
    assert_eq!(said.problem(), refused(502, "backend_http"));
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_status_with_an_error_for_the_call_is_that_error() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    let body = r#"{"jsonrpc":"2.0","id":$id,"error":{"code":-32602,"message":"no such thing"}}"#;
    let said = gateway.call("web", "status", status(400, json!({}), body)).await;
    assert_eq!(said.problem(), refused(502, "backend_error"));
    assert_eq!(said.json()["backend"]["code"], -32602);
    let body = body.replace("$id", "null");
    let said = gateway.call("web", "status", status(400, json!({}), &body)).await;
    assert_eq!(said.problem(), refused(502, "backend_http"));
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_session_that_is_gone_is_renewed_and_the_call_is_made_there() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    server.forget_sessions();
    let said = gateway.call("web", "echo", json!({"text": "b"})).await;
    assert_eq!((said.tool_text().as_str(), said.header("trunkline-attempts")), ("b", "2"));
    let mut sessions: Vec<_> = server
        .seen_of("tools/call")
        .iter()
        .map(|seen| seen.header("mcp-session-id").to_owned())
        .collect();
    sessions.dedup();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_tool_whose_error_is_about_a_session_is_run_once() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    let body =
        r#"{"jsonrpc":"2.0","id":$id,"error":{"code":-32000,"message":"Session not found"}}"#;
    for code in [400, 500] {
        let before = server.seen_of("tools/call").len();
        let said = gateway.call("web", "status", status(code, json!({}), body)).await;
        assert_eq!(said.problem(), failed(502, "backend_error"), "{code}");
        assert_eq!(server.seen_of("tools/call").len(), before + 1);
    }
    assert_eq!(server.seen_of("initialize").len(), 1);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_tool_that_is_not_found_costs_nobody_the_session() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    for body in ["", "<p>not here</p>", r#"{"error":"no such file"}"#] {
        let before = server.seen_of("tools/call").len();
        let said = gateway.call("web", "status", status(404, json!({}), body)).await;
        assert_eq!(said.problem(), refused(502, "backend_http"), "{body}");
        assert_eq!(server.seen_of("tools/call").len(), before + 1);
    }
    assert_eq!(server.seen_of("initialize").len(), 1);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_session_of_which_nothing_is_found_is_renewed() {
    let server = HttpServer::legacy().await;
    let gateway = gateway(&server).await;
    server.forget_sessions_silently();
    let said = gateway.call("web", "echo", json!({"text": "b"})).await;
    assert_eq!((said.tool_text().as_str(), said.header("trunkline-attempts")), ("b", "2"));
    assert_eq!(server.seen_of("initialize").len(), 2);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_restarts_is_connected_to_again() {
    for is_modern in [false, true] {
        let addr = "127.0.0.1:0".parse().unwrap();
        let server = HttpServer::start(is_modern, addr).await;
        let addr = server.addr;
        let gateway = gateway(&server).await;
        let hanging = gateway.spawn_call("web", "hang", json!({}));
        eventually("the call", async || server.seen_of("tools/call").pop()).await;
        server.stop().await;
        // It was under way: nobody knows.
        assert_eq!(hanging.await.unwrap().problem(), failed(502, "backend_exited"));
        let said = gateway.call("web", "echo", json!({"text": "b"})).await;
        assert_eq!(said.problem(), refused(503, "server_unavailable").for_now());
        let server = HttpServer::start(is_modern, addr).await;
        eventually("the server", async || {
            let said = gateway.call("web", "echo", json!({"text": "c"})).await;
            (said.status == 200).then_some(())
        })
        .await;
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_redirect_is_followed_within_the_server_and_no_further() {
    let (server, other) = (HttpServer::modern().await, HttpServer::modern().await);
    server.redirect_to("/mcp".to_owned());
    let setup = Setup::new().http("web", &server.url("/redirect"), "");
    let gateway = setup.start().await;
    assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    server.redirect_to(other.url("/mcp"));
    let said = gateway.call("web", "echo", json!({"text": "b"})).await;
    assert_eq!(said.problem(), refused(503, "server_unavailable").for_now());
    assert!(!said.text().contains(&other.addr.to_string()), "{}", said.text());
    assert!(other.seen().is_empty());
    gateway.stop().await;

    let setup = Setup::new().http("web", &server.url("/redirect"), "");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains(&format!("it redirects to `{}`", other.addr)), "{table}");
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_call_that_may_have_run_is_not_sent_where_a_redirect_points() {
    let server = HttpServer::modern().await;
    for code in [301, 302, 303] {
        server.redirect_to("/mcp".to_owned());
        let setup = Setup::new().http("web", &server.url("/redirect"), "");
        let gateway = setup.start().await;
        server.redirect_with(code, "/mcp?token=hidden".to_owned());
        let before = server.seen_of("tools/call").len();
        let said = gateway.call("web", "echo", json!({"text": "a"})).await;
        assert_eq!(said.problem(), failed(502, "backend_http"), "{code}");
        let seen = &server.seen_of("tools/call")[before..];
        let paths: Vec<_> = seen.iter().map(|seen| &*seen.path).collect();
        assert_eq!(paths, ["/redirect"], "{code}");
        gateway.stop().await;

        let setup = Setup::new().http("web", &server.url("/redirect"), "");
        setup.write();
        let output = trunkline(&setup, &["check"]).await;
        let table = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1), "{table}");
        assert!(table.contains(&format!("status {code}")), "{table}");
        assert!(table.contains(&server.url("/mcp")) && !table.contains("hidden"), "{table}");
    }
    server.stop().await;
}

#[tokio::test]
async fn redirects_that_keep_the_request_are_followed_and_none_for_ever() {
    let server = HttpServer::modern().await;
    server.redirect_to("/mcp".to_owned());
    let gateway = Setup::new().http("web", &server.url("/redirect"), "").start().await;
    for code in [307, 308] {
        server.redirect_with(code, "/mcp".to_owned());
        let before = server.seen_of("tools/call").len();
        let said = gateway.call("web", "echo", json!({"text": "a"})).await;
        assert_eq!(said.tool_text(), "a", "{code}");
        let seen = &server.seen_of("tools/call")[before..];
        let paths: Vec<_> = seen.iter().map(|seen| (seen.verb.as_str(), &*seen.path)).collect();
        assert_eq!(paths, [("POST", "/redirect"), ("POST", "/mcp")], "{code}");
    }
    gateway.stop().await;

    server.redirect_to("/mcp".to_owned());
    let gateway = Setup::new().http("web", &server.url("/redirect"), "").start().await;
    server.redirect_with(308, "/redirect".to_owned());
    let before = server.seen_of("tools/call").len();
    let said = gateway.call("web", "echo", json!({"text": "c"})).await;
    assert_eq!(said.problem(), refused(503, "server_unavailable").for_now());
    // It is followed five times. An attempt or two.
    assert_eq!((server.seen_of("tools/call").len() - before) % 6, 0);
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_closed_as_it_is_used_has_no_call_made_twice_and_none_lost_in_silence()
{
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    let (mut answered, calls) = (0, 50);
    for call in 1..=calls {
        server.cut_connections();
        let said = gateway.call("web", "echo", json!({"text": "a"})).await;
        match said.status {
            200 => answered += 1,
            // It was being written when the server closed.
            _ => assert_eq!(said.problem(), failed(502, "backend_exited")),
        }
        assert!(server.seen_of("tools/call").len() <= call);
    }
    // To close what is not in use harms nobody.
    assert!(answered > calls / 2, "{answered}");
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_named_host_may_be_redirected_to_without_the_operators_headers() {
    let (server, other) = (HttpServer::modern().await, HttpServer::modern().await);
    server.redirect_to(other.url("/mcp"));
    let settings = format!(
        "headers = {{ Authorization = \"Bearer secret\", X-Key = \"secret\" \
         }}\nredirect_hosts = [\"{}\"]",
        other.addr
    );
    let gateway = Setup::new().http("web", &server.url("/redirect"), &settings).start().await;
    assert_eq!(gateway.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    assert!(server.seen().iter().all(|seen| seen.header("x-key") == "secret"));
    assert!(server.seen().iter().all(|seen| seen.header("authorization") == "Bearer secret"));
    assert!(!other.seen().is_empty());
    for seen in other.seen() {
        assert!(!format!("{:?}", seen.headers).contains("secret"), "{seen:?}");
    }
    gateway.stop().await;
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_be_used_says_why_to_the_operator() {
    let server = HttpServer::modern().await;
    let gone = server.url("/mcp");
    server.stop().await;
    let setup = Setup::new().http("web", &gone, "");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    assert!(table.contains("cannot be reached: nothing listens on port"), "{table}");
}

#[tokio::test]
async fn a_server_that_is_too_slow_is_told_with_the_setting_that_says_so() {
    let server = HttpServer::modern().await;
    server.set_tools(Value::Null);
    let setup = Setup::new().http("web", &server.url("/mcp"), "timeout = \"300ms\"");
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("it did not answer in time (`timeout`)"), "{table}");
    server.stop().await;
}
