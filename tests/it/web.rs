//! Web pages that call: which may, and what their browsers are told.

use reqwest::{Method, RequestBuilder};

use crate::support::{Answer, Gateway, Setup, refused};

const APP: &str = "https://app.example";

#[tokio::test]
async fn web_pages_cannot_call_tools() {
    let gateway = Setup::new().fake("fake").start().await;
    let page = gateway.post("fake", "raw", "{}").header("origin", "https://page.example");
    let page = Answer::of(page).await;
    assert_eq!(page.problem(), refused(403, "forbidden"));
    assert_eq!(cors_headers(&page), [""; 0]);
    let rebound = gateway.post("fake", "raw", "{}").header("host", "page.example");
    assert_eq!(Answer::of(rebound).await.problem(), refused(403, "forbidden"));
    assert!(gateway.fake("fake").calls_of("raw").is_empty());
    let own = gateway.post("fake", "raw", "{}").header("origin", "http://localhost:3000");
    assert_eq!(Answer::of(own).await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn pages_of_allowed_sites_call_and_read_the_answer() {
    let gateway =
        Setup::new().set("allowed_origins = [\"https://app.example\"]").std().start().await;
    let call = gateway.post("std", "echo", "{\"text\":\"x\"}").header("origin", APP);
    let answer = Answer::of(call).await;
    assert_eq!(answer.tool_text(), "x");
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    assert!(answer.header("vary").contains("origin"), "{answer:?}");
    let exposed = answer.header("access-control-expose-headers");
    for name in [
        "mcp-session-id",
        "mcp-protocol-version",
        "trunkline-call-id",
        "trunkline-outcome",
        "trunkline-attempts",
    ] {
        assert!(exposed.split(',').any(|exposed| exposed == name), "{name} is not in {exposed}");
    }
    // Errors too: a page that cannot read them learns nothing but that something went wrong.
    for path in ["/v1/servers/nope/tools/echo", "/nope", "/v1/servers"] {
        let answer = Answer::of(gateway.client.post(gateway.url(path)).header("origin", APP)).await;
        assert!(matches!(answer.status, 404 | 405), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), APP);
    }
    let other = gateway.post("std", "echo", "{}").header("origin", "https://app.example:8443");
    let other = Answer::of(other).await;
    assert_eq!(other.problem(), refused(403, "forbidden"));
    assert_eq!(cors_headers(&other), [""; 0]);
    gateway.stop().await;
}

#[tokio::test]
async fn browsers_may_ask_first_without_a_key() {
    let gateway = Setup::new()
        .set("allowed_origins = [\"https://app.example\"]")
        .without_anonymous()
        .std()
        .start()
        .await;
    let answer = Answer::of(preflight(&gateway, "/v1/servers/std/tools/echo", APP)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    assert_eq!(answer.header("access-control-allow-methods"), "GET,POST,PUT,DELETE");
    assert_eq!(answer.header("access-control-allow-headers"), "authorization,content-type");
    assert_eq!(answer.header("access-control-max-age"), "600");
    assert_eq!(answer.header("access-control-allow-credentials"), "");

    let call = gateway.post("std", "echo", "{\"text\":\"x\"}").header("origin", APP);
    let answer = Answer::of(call).await;
    assert_eq!(answer.problem(), refused(401, "unauthenticated"));
    assert_eq!(answer.header("access-control-allow-origin"), APP);
    gateway.stop().await;
}

#[tokio::test]
async fn other_sites_are_told_nothing() {
    let gateway =
        Setup::new().set("allowed_origins = [\"https://app.example\"]").std().start().await;
    for (path, origin) in [
        ("/v1/servers/std/tools/echo", "https://evil.example"),
        ("/v1/servers/std/tools/echo", "null"),
        // What is for operators is for no page.
        ("/metrics", APP),
    ] {
        let answer = Answer::of(preflight(&gateway, path, origin)).await;
        assert_eq!(answer.problem(), refused(405, "method_not_allowed"));
        assert_eq!(cors_headers(&answer), [""; 0], "{path} for {origin}");
    }
    let metrics = gateway.client.get(gateway.url("/metrics")).header("origin", APP);
    assert_eq!(cors_headers(&Answer::of(metrics).await), [""; 0]);
    let call = gateway.call("std", "echo", "{\"text\":\"x\"}").await;
    assert_eq!((call.status, cors_headers(&call)), (200, vec![]));
    gateway.stop().await;
}

#[tokio::test]
async fn the_gateway_answers_to_its_configured_names() {
    let gateway = Setup::new().set("allowed_hosts = [\"gateway.example\"]").std().start().await;
    let list = |host| gateway.client.get(gateway.url("/v1/servers")).header("host", host);
    for host in ["gateway.example", "Gateway.Example:8443", "localhost"] {
        assert_eq!(Answer::of(list(host)).await.status, 200, "{host}");
    }
    let answer = Answer::of(list("other.example")).await;
    assert_eq!(answer.problem(), refused(403, "forbidden"));
    assert!(answer.detail().contains("`allowed_hosts`"), "{answer:?}");
    gateway.stop().await;
}

/// Sends a browser's preflight request.
fn preflight(gateway: &Gateway, path: &str, origin: &str) -> RequestBuilder {
    let request = gateway.client.request(Method::OPTIONS, gateway.url(path));
    request
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type")
}

fn cors_headers(answer: &Answer) -> Vec<&str> {
    let names = answer.headers.keys().map(reqwest::header::HeaderName::as_str);
    names.filter(|name| name.starts_with("access-control-") || *name == "vary").collect()
}
