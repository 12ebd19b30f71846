//! Web pages that call: which may, and what their browsers are told.

use std::net::SocketAddr;

use reqwest::{Method, RequestBuilder};

use crate::support::{Answer, Api, Gateway, Setup, refused};

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

/// Returns the status of a page that is asked for under another name.
async fn named(addr: SocketAddr, path: &str, host: &str) -> u16 {
    let api = Api::new(addr, None);
    Answer::of(api.client.get(api.url(path)).header("host", host)).await.status
}

#[tokio::test]
async fn a_page_that_rebinds_its_name_reads_nothing_at_a_loopback_listener() {
    const REBOUND: &str = "page.example";
    let gateway = Setup::new().std().start().await;
    for path in ["/metrics", "/readyz", "/healthz", "/admin/v1/tenants"] {
        assert_eq!(named(gateway.addr, path, REBOUND).await, 403, "{path}");
        assert_ne!(named(gateway.addr, path, "localhost").await, 403, "{path}");
        let page = gateway.client.get(gateway.url(path)).header("origin", "https://page.example");
        assert_eq!(Answer::of(page).await.status, 403, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn each_listener_is_guarded_by_its_own_address() {
    let ops = |address: &str| format!("ops_listen = \"{address}:0\"");
    let operators = ["/metrics", "/readyz", "/admin/v1/tenants"];
    let callers = ["/healthz", "/readyz", "/v1/servers"];

    let setup = Setup::new().listening_everywhere().set(&ops("127.0.0.1"));
    let gateway = setup.std().start_at_once().await;
    for path in operators {
        assert_eq!(named(gateway.ops_addr.unwrap(), path, "page.example").await, 403, "{path}");
    }
    for path in callers {
        assert_ne!(named(gateway.addr, path, "pod-1.internal").await, 403, "{path}");
    }
    gateway.stop().await;

    let gateway = Setup::new().set(&ops("0.0.0.0")).std().start_at_once().await;
    for path in operators {
        assert_ne!(named(gateway.ops_addr.unwrap(), path, "10.0.0.7").await, 403, "{path}");
    }
    for path in callers {
        assert_eq!(named(gateway.addr, path, "page.example").await, 403, "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn load_balancers_name_a_gateway_as_they_like() {
    let setup = Setup::new().listening_everywhere().set("allowed_hosts = [\"gateway.example\"]");
    let gateway = setup.std().start_at_once().await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_ne!(named(gateway.addr, path, "10.0.0.7:8080").await, 403, "{path}");
    }
    assert_eq!(named(gateway.addr, "/v1/servers", "10.0.0.7:8080").await, 403);
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
