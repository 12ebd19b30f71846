//! Calls that the gateway refuses itself. None of them reaches a server.

use serde_json::json;

use crate::support::{Answer, Setup, refused};

#[tokio::test]
async fn arguments_that_are_no_object_are_refused() {
    let gateway = Setup::new().fake("fake").start().await;
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (body, word) in [
        ("{\"a\":", "not valid JSON"),
        ("{\"a\":1} {}", "not valid JSON"),
        ("{\"a\":\"\n\"}", "not valid JSON"),
        ("[1, 2]", "an array"),
        ("null", "null"),
        (deep.as_str(), "nested deeper than 64 levels"),
    ] {
        let answer = gateway.call("fake", "raw", body).await;
        assert_eq!(answer.problem(), refused(400, "invalid_arguments"));
        assert!(answer.detail().contains(word), "{}", answer.detail());
        assert_eq!(answer.header("trunkline-outcome"), "error");
    }
    let not_utf8 = gateway.post("fake", "raw", "").body(&b"{\"a\":\"\xff\"}"[..]);
    assert_eq!(Answer::of(not_utf8).await.problem(), refused(400, "invalid_arguments"));
    assert!(gateway.fake("fake").received_of("tools/call").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn headers_that_cannot_be_honoured_are_refused() {
    let gateway = Setup::new().fake("fake").start().await;
    for bad in ["0", "-1", "abc", "1.5", "", " ", "86400001", "99999999999999999999"] {
        let answer = gateway.call_within_ms(bad, "fake", "raw", "{}").await;
        assert_eq!(answer.problem(), refused(400, "invalid_request"), "{bad}");
        assert!(answer.detail().contains("from 1 to 86400000"), "{}", answer.detail());
    }
    let answer = gateway.call_within_ms(300_001, "fake", "raw", "{}").await;
    assert_eq!(answer.problem(), refused(400, "invalid_request"));
    assert!(answer.detail().contains("at most 300000 for server `fake`"), "{}", answer.detail());
    gateway.call_within_ms(300_000, "fake", "raw", "{}").await.tool_text();

    for bad in ["", "a b", "\"a"] {
        let keyed = gateway.post("fake", "raw", "{}").header("Idempotency-Key", bad);
        assert_eq!(Answer::of(keyed).await.problem(), refused(400, "invalid_request"), "{bad}");
    }
    assert_eq!(gateway.fake("fake").received_of("tools/call").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_without_asking_the_server() {
    let gateway = Setup::new().fake("fake").start().await;
    let answer = gateway.call("nobody", "raw", "{}").await;
    assert_eq!(answer.problem(), refused(404, "server_not_found"));
    assert!(answer.detail().contains("`nobody`"));
    let answer = gateway.call("fake", "nothing", "{}").await;
    assert_eq!(answer.problem(), refused(404, "tool_not_found"));
    assert!(answer.detail().contains("`nothing`"));
    assert!(gateway.fake("fake").received_of("tools/call").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn other_paths_and_methods_are_answered_as_problems() {
    let gateway = Setup::new().std().start().await;
    for path in ["/v1", "/v1/servers/std/tools/echo/more", "/v2/servers"] {
        assert_eq!(gateway.get(path).await.problem(), refused(404, "not_found"), "{path}");
    }
    let answer = gateway.get("/v1/servers/std/tools/echo").await;
    assert_eq!(answer.problem(), refused(405, "method_not_allowed"));
    assert_eq!(answer.header("allow"), "POST");
    let post = gateway.client.post(gateway.url("/v1/servers"));
    assert_eq!(Answer::of(post).await.problem(), refused(405, "method_not_allowed"));
    // A path that is no text.
    let answer = gateway.call("std", "%FF", "{}").await;
    assert_eq!(answer.problem(), refused(400, "invalid_request"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_sent() {
    let gateway = Setup::new().set("max_body = \"64KiB\"").std().start().await;
    let mut connection = gateway.connect().await;
    let path = "/v1/servers/std/tools/echo";
    connection.send_head(path, "content-length: 65537\r\nexpect: 100-continue\r\n").await;
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert!(response.contains("\"code\":\"payload_too_large\""), "{response}");
    // What is left of the body must not be taken for the next request.
    assert_eq!(connection.rest().await, "");

    let padding = |len: usize| " ".repeat(len - "{\"text\":\"x\"}".len()) + "{\"text\":\"x\"}";
    let answer = gateway.call("std", "echo", padding(65_537)).await;
    assert_eq!(answer.problem(), refused(413, "payload_too_large"));
    assert_eq!(gateway.call("std", "echo", padding(65_536)).await.tool_text(), "x");
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_of_undeclared_length_is_refused_when_it_passes_the_limit() {
    let gateway = Setup::new().set("max_body = \"1KiB\"").std().start().await;
    let mut connection = gateway.connect().await;
    connection.send_head("/v1/servers/std/tools/echo", "transfer-encoding: chunked\r\n").await;
    for _ in 0..2 {
        connection.send(&format!("300\r\n{}\r\n", " ".repeat(0x300))).await;
    }
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    gateway.stop().await;
}

#[tokio::test]
async fn without_an_anonymous_tenant_nobody_is_served() {
    let gateway = Setup::new().without_anonymous().fake("fake").start().await;
    for answer in [
        gateway.call("fake", "raw", "{}").await,
        gateway.call("nobody", "raw", "no JSON").await,
        gateway.servers().await,
        gateway.server("fake").await,
        gateway.tools("fake").await,
    ] {
        assert_eq!(answer.problem(), refused(401, "unauthenticated"));
        assert_eq!(answer.header("www-authenticate"), "Bearer");
    }
    assert!(gateway.fake("fake").received_of("tools/call").is_empty());
    // Load balancers have no key.
    assert_eq!(gateway.readyz().await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_cannot_start_is_unavailable_and_says_until_when() {
    let gateway = Setup::new()
        .fake_with("failing", &["start=fail"], "")
        .server("missing", "/no/such/program", &[], "")
        .std()
        .start()
        .await;
    for (server, reason, is_permanent) in [
        ("failing", "it ended with exit code 3", false),
        ("missing", "its program cannot be started", true),
    ] {
        let answer = gateway.call(server, "raw", "{}").await;
        let problem = refused(503, "server_unavailable");
        assert_eq!(answer.problem(), if is_permanent { problem } else { problem.for_now() });
        let is_told = answer.retry_after().is_some_and(|seconds| (1..=33).contains(&seconds));
        assert_eq!(is_told, !is_permanent);
        assert_eq!(answer.detail(), format!("the server is not running: {reason}"));
        // Neither paths nor what the server wrote to standard error are for callers.
        assert!(!answer.text().contains("/no/such") && !answer.text().contains("bearings"));
    }
    assert_eq!(gateway.call("std", "echo", json!({"text": "x"})).await.tool_text(), "x");
    gateway.stop().await;
}

#[tokio::test]
async fn more_waiting_calls_than_fit_in_memory_are_refused() {
    let gateway = Setup::new()
        .set("max_body = \"32MiB\"")
        .fake_with("fake", &[], "max_in_flight = 1")
        .start()
        .await;
    let fake = gateway.fake("fake");
    let holding = gateway.spawn_call("fake", "hold", "{}");
    crate::support::eventually("held", async || fake.calls_of("hold").pop()).await;
    // Two of these may wait, not three.
    let body = format!("{{\"a\":\"{}\"}}", "x".repeat(24 << 20));
    let waiting: Vec<_> = (0..3).map(|_| gateway.spawn_call("fake", "raw", &body)).collect();
    let refused_one = crate::support::eventually("one refused", async || {
        waiting.iter().position(tokio::task::JoinHandle::is_finished)
    })
    .await;
    for (n, call) in waiting.into_iter().enumerate() {
        if n == refused_one {
            let answer = call.await.unwrap();
            assert_eq!(answer.problem(), refused(503, "overloaded").for_now());
            assert_eq!(answer.retry_after(), Some(1));
        } else {
            assert!(!call.is_finished());
            call.abort();
        }
    }
    holding.abort();
    gateway.stop().await;
}
