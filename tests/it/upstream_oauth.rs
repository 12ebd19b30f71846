//! Servers that want OAuth: the gateway gets tokens by its own credentials.

use std::time::Duration;

use serde_json::json;

use crate::support::{Answer, Gateway, HttpServer, Setup, TokenEndpoint, eventually, refused};

const CREDENTIALS: &str = "client_id = \"gate way\"\nclient_secret = \"s&cret\"\n";
/// Allows metadata to lead to this machine.
const HERE: &str = "networks = [\"127.0.0.0/8\"]\n";

fn setup(server: &HttpServer, oauth: &str) -> Setup {
    let settings = format!("[servers.web.oauth]\n{CREDENTIALS}{oauth}");
    Setup::new().http("web", &server.url("/mcp"), &settings)
}

/// A server that accepts these tokens, and names its authorization server.
async fn server(endpoint: &TokenEndpoint, accepted: &[&str]) -> HttpServer {
    let server = HttpServer::modern().await;
    let accepted = accepted.iter().map(|token| format!("Bearer {token}")).collect();
    let metadata = json!({"resource": server.url("/mcp"),
        "authorization_servers": [endpoint.url()]});
    server.protect(accepted, 401, "Bearer", metadata);
    server
}

async fn echo(gateway: &Gateway) -> Answer {
    gateway.call("web", "echo", json!({"text": "a"})).await
}

/// Returns the reason why a server does not start.
async fn reason(gateway: &Gateway) -> String {
    let admin = crate::pins::admin(gateway).await;
    eventually("a reason", async || {
        let servers = admin.get("/admin/v1/servers").await.json();
        let failure = &servers["servers"][0]["instances"][0]["last_failure"]["detail"];
        failure.as_str().map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn the_token_endpoint_is_found_and_one_token_serves_all_calls() {
    let endpoint = TokenEndpoint::start().await;
    let server = server(&endpoint, &["token-1"]).await;
    let scopes = format!("{HERE}scopes = [\"b\", \"a\"]\n");
    let setup = setup(&server, &scopes);
    let gateway = setup.start().await;
    for _ in 0..20 {
        assert_eq!(echo(&gateway).await.tool_text(), "a");
    }
    let asked = endpoint.asked();
    assert_eq!(asked.len(), 1);
    // `gate way` and `s&cret`, encoded as in a form.
    assert_eq!(asked[0].authorization, "Basic Z2F0ZSUyMHdheTpzJTI2Y3JldA==");
    assert_eq!(asked[0].get("grant_type"), "client_credentials");
    assert_eq!(asked[0].get("scope"), "a b");
    assert_eq!(asked[0].get("resource"), server.url("/mcp"));
    let calls = server.seen_of("tools/call");
    assert!(calls.iter().all(|seen| seen.header("authorization") == "Bearer token-1"));
    gateway.stop().await;
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_by_one_request_for_all() {
    let endpoint = TokenEndpoint::start().await;
    endpoint.set_answer(json!({"expires_in": 1}));
    let all: Vec<String> = (1..100).map(|n| format!("token-{n}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let server = server(&endpoint, &all).await;
    let gateway = setup(&server, HERE).start().await;
    assert_eq!(echo(&gateway).await.tool_text(), "a");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // It has ended, and all callers wait for one request.
    endpoint.set_answer(json!({"expires_in": 3600}));
    let before = endpoint.asked().len();
    endpoint.hold();
    let calls = [(); 30].map(|()| gateway.spawn_call("web", "echo", json!({"text": "a"})));
    eventually("asked", async || (endpoint.asked().len() > before).then_some(())).await;
    gateway.has_in_flight("web", 30.0).await;
    endpoint.release();
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "a");
    }
    assert_eq!(endpoint.asked().len(), before + 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_refusal_steps_up_and_the_call_is_made_again_once() {
    let endpoint = TokenEndpoint::start().await;
    for (status, challenge) in [
        (401, "Bearer error=\"invalid_token\", scope=\"write\""),
        (403, "Bearer error=\"insufficient_scope\", scope=\"write read\""),
    ] {
        let before = endpoint.asked().len();
        let [old, new] = [before + 1, before + 2].map(|number| format!("token-{number}"));
        let server = server(&endpoint, &[&old]).await;
        let oauth = format!("{HERE}scopes = [\"read\"]\n");
        let gateway = setup(&server, &oauth).start().await;
        assert_eq!(echo(&gateway).await.tool_text(), "a");
        let metadata = json!({"resource": server.url("/mcp"),
            "authorization_servers": [endpoint.url()]});
        server.protect(vec![format!("Bearer {new}")], status, challenge, metadata);
        assert_eq!(echo(&gateway).await.tool_text(), "a");
        let asked = endpoint.asked();
        assert_eq!((asked.len(), asked[before + 1].get("scope")), (before + 2, "read write"));
        // A refusal that no token mends is the caller's to see, and costs few further requests.
        server.protect(vec![], status, challenge, json!({}));
        assert!(echo(&gateway).await.status >= 500);
        assert!(endpoint.asked().len() <= before + 3, "{:?}", endpoint.asked());
        gateway.stop().await;
    }
}

#[tokio::test]
async fn metadata_lead_to_no_private_address_and_redirects_are_not_followed() {
    let endpoint = TokenEndpoint::start().await;
    let server = server(&endpoint, &["token-1"]).await;
    let gateway = setup(&server, "").start().await;
    let why = reason(&gateway).await;
    assert!(why.contains("the address of `127.0.0.1` is private"), "{why}");
    assert_eq!(endpoint.asked().len(), 0);
    gateway.stop().await;

    // An address that the operator wrote may lead there, and what its metadata name elsewhere not.
    let issuer = format!("issuer = {:?}\n", endpoint.url());
    endpoint.set_metadata(json!({"token_endpoint": "http://169.254.169.254/token"}));
    let gateway = setup(&server, &issuer).start().await;
    let why = reason(&gateway).await;
    assert!(why.contains("the address of `169.254.169.254` is private"), "{why}");
    gateway.stop().await;

    endpoint.set_metadata(json!({}));
    endpoint.redirect_to(&format!("{}/token2", endpoint.url()));
    let gateway = setup(&server, &issuer).start().await;
    let why = reason(&gateway).await;
    assert!(why.contains("answered with the HTTP status 307"), "{why}");
    gateway.stop().await;
}

#[tokio::test]
async fn metadata_of_another_are_refused() {
    let endpoint = TokenEndpoint::start().await;
    let server = server(&endpoint, &["token-1"]).await;
    let servers = json!([endpoint.url()]);
    for (resource, issuer, part) in [
        ("https://other.example/mcp", endpoint.url(), "those of another resource"),
        (&server.url("/mcp") as &str, "https://other.example", "those of another one"),
    ] {
        endpoint.set_metadata(json!({"issuer": issuer}));
        let metadata = json!({"resource": resource, "authorization_servers": servers});
        server.protect(vec![], 401, "Bearer", metadata);
        let gateway = setup(&server, HERE).start().await;
        let why = reason(&gateway).await;
        assert!(why.contains(part), "{why}");
        gateway.stop().await;
    }
    assert_eq!(endpoint.asked().len(), 0);
}

#[tokio::test]
async fn a_handshake_that_wants_more_than_can_be_had_is_named() {
    let endpoint = TokenEndpoint::start().await;
    let server = server(&endpoint, &[]).await;
    for (status, challenge, code) in [
        (403, "Bearer error=\"insufficient_scope\", scope=\"admin\"", "insufficient_scope"),
        (401, "Bearer error=\"invalid_token\"", "invalid_token"),
    ] {
        let metadata = json!({"resource": server.url("/mcp"),
            "authorization_servers": [endpoint.url()]});
        server.protect(vec![], status, challenge, metadata);
        let gateway = setup(&server, HERE).start().await;
        let refusal = echo(&gateway).await;
        assert_eq!(refusal.problem(), refused(503, "server_unavailable").for_now());
        let expected = format!("it refuses the gateway's access token (`{code}`)");
        assert!(refusal.detail().ends_with(&expected), "{refusal:?}");
        let why = reason(&gateway).await;
        assert_eq!(why.contains("it wants the scopes `admin`"), status == 403, "{why}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn no_token_and_no_secret_is_told_to_anyone() {
    let endpoint = TokenEndpoint::start().await;
    let server = server(&endpoint, &["token-1"]).await;
    let setup = setup(&server, &format!("{HERE}scopes = [\"read\"]\n"));
    let serving = setup.serve().await;
    assert_eq!(serving.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    endpoint.refuse(401);
    server.protect(vec![], 401, "Bearer scope=\"more\"", json!({}));
    let refusal = serving.call("web", "echo", json!({"text": "a"})).await;
    assert_eq!(refusal.problem(), refused(503, "server_unavailable").for_now());
    serving.logged("`invalid_client`").await;
    let mut said = refusal.text() + &serving.get("/metrics").await.text();
    said += &serving.get("/v1/servers").await.text();
    said += &serving.log().join("\n");
    assert!(said.contains("no access token") && said.contains("`invalid_client`"), "{said}");
    for secret in ["token-1", "s&cret", "s%26cret", "Z2F0ZSUyMHdheTpz", "token-secret"] {
        assert!(!said.contains(secret), "{secret} is in {said}");
    }
}
