//! Servers that have a URL and are there, but refuse everything: what is wrong is seen, and they
//! are used again when nothing is.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::secrets::{KEY, set};
use crate::support::{
    Answer, Api, Gateway, HttpServer, Setup, eventually, failed, in_time, refused, within,
};

/// A probe every 5 s, and time for a busy machine.
const SOME_PROBES: Duration = Duration::from_secs(15);

async fn gateway(server: &HttpServer) -> Gateway {
    Setup::new().http("web", &server.url("/mcp"), "").start().await
}

async fn echo(gateway: &Gateway) -> Answer {
    gateway.call("web", "echo", json!({"text": "hello"})).await
}

/// The server as callers see it, as soon as it is down.
async fn down(gateway: &Gateway) -> Value {
    eventually("down", async || {
        let server = gateway.server("web").await.json();
        server["down_since"].is_string().then_some(server)
    })
    .await
}

async fn is_back(gateway: &Gateway) {
    within(SOME_PROBES, "back", async || (echo(gateway).await.status == 200).then_some(())).await;
    let server = gateway.server("web").await.json();
    assert_eq!((&server["state"], &server["down_since"]), (&json!("ready"), &Value::Null));
}

#[tokio::test]
async fn a_server_that_goes_back_to_the_legacy_era_is_spoken_to_in_it_at_once() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    assert_eq!(echo(&gateway).await.tool_text(), "hello");
    server.become_modern(false);
    let said = echo(&gateway).await;
    assert_eq!((said.tool_text().as_str(), said.header("trunkline-attempts")), ("hello", "2"));
    assert_eq!(gateway.server("web").await.json()["era"], "legacy");
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_leaves_the_legacy_era_is_spoken_to_in_the_modern_one() {
    for code in [-32602, -32020, -32022] {
        let server = HttpServer::legacy().await;
        let gateway = gateway(&server).await;
        assert_eq!(echo(&gateway).await.tool_text(), "hello");
        server.refuse_unversioned(code);
        server.become_modern(true);
        is_back(&gateway).await;
        assert_eq!(gateway.server("web").await.json()["era"], "modern", "{code}");
        assert_eq!(server.seen_of("server/discover").len(), 2, "{code}");
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_is_revoked_is_seen_and_so_is_that_it_is_valid_again() {
    let server = HttpServer::modern().await;
    let gateway = gateway(&server).await;
    assert_eq!(echo(&gateway).await.tool_text(), "hello");
    let before = Timestamp::now();
    server.refuse_everything(Some(401));
    assert_eq!(echo(&gateway).await.problem(), refused(503, "server_unavailable").for_now());
    let seen = down(&gateway).await;
    let since: Timestamp = seen["down_since"].as_str().unwrap().parse().unwrap();
    assert!(since >= before, "{seen}");
    assert!(seen["reason"].as_str().unwrap().ends_with("HTTP status 401"), "{seen}");
    // It is not asked for every call: those are told when to come back.
    let asked = server.seen().len();
    let said = echo(&gateway).await;
    assert!((1..=6).contains(&said.retry_after().unwrap()), "{said:?}");
    assert!(said.detail().contains("401") && server.seen().len() <= asked + 1, "{said:?}");
    server.refuse_everything(None);
    is_back(&gateway).await;
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn a_tenants_revoked_token_is_its_own_trouble() {
    let server = HttpServer::modern().await;
    let settings = "sharing = \"tenant\"\nheaders.Authorization = \"Bearer ${secret:TOKEN}\"";
    let setup = Setup::new()
        .set(&format!("[secrets]\nkeys = [{KEY:?}]"))
        .with_tenant("acme", "servers = [\"own\"]")
        .with_tenant("globex", "servers = [\"own\"]")
        .http("own", &server.url("/mcp"), settings);
    let gateway = setup.start().await;
    let (acme, globex) = (gateway.as_tenant("acme").await, gateway.as_tenant("globex").await);
    let call = async |tenant: &Api| tenant.call("own", "echo", json!({"text": "hello"})).await;
    for (tenant, token) in [(&acme, "acmes"), (&globex, "globexs")] {
        set(tenant, token).await;
        assert_eq!(call(tenant).await.tool_text(), "hello");
    }
    server.revoke(Some("Bearer acmes"));
    assert_eq!(call(&acme).await.problem(), refused(503, "server_unavailable").for_now());
    assert!(acme.server("own").await.json()["down_since"].is_string());
    assert_eq!(call(&globex).await.tool_text(), "hello");
    assert!(globex.server("own").await.json()["down_since"].is_null());
    server.revoke(None);
    within(SOME_PROBES, "back", async || (call(&acme).await.status == 200).then_some(())).await;
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn whatever_a_server_answers_everything_with_is_seen() {
    for (status, told) in [
        (400, refused(503, "server_unavailable").for_now()),
        (404, refused(503, "server_unavailable").for_now()),
        // The tool may have run.
        (500, failed(502, "backend_http")),
        (503, failed(502, "backend_http")),
    ] {
        let server = HttpServer::legacy().await;
        let gateway = gateway(&server).await;
        server.refuse_everything(Some(status));
        assert_eq!(echo(&gateway).await.problem(), told, "{status}");
        let seen = down(&gateway).await;
        let reason = seen["reason"].as_str().unwrap();
        // The session of a legacy server may be what is not found.
        assert!(reason.contains(&status.to_string()) || status == 404, "{seen}");
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_has_moved_to_where_it_must_not_is_seen_and_so_is_its_return() {
    let (server, other) = (HttpServer::modern().await, HttpServer::modern().await);
    server.redirect_to("/mcp".to_owned());
    let gateway = Setup::new().http("web", &server.url("/redirect"), "").start().await;
    assert_eq!(echo(&gateway).await.tool_text(), "hello");
    server.redirect_to(other.url("/mcp"));
    assert_eq!(echo(&gateway).await.problem(), refused(503, "server_unavailable").for_now());
    assert_eq!(down(&gateway).await["reason"], "it redirects to a host that is not allowed");
    server.redirect_to("/mcp".to_owned());
    is_back(&gateway).await;
    assert!(other.seen().is_empty());
    gateway.stop().await;
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn one_tool_that_refuses_harms_nobody_else() {
    for server in [HttpServer::modern().await, HttpServer::legacy().await] {
        let gateway = gateway(&server).await;
        let since = gateway.server("web").await.json()["since"].clone();
        let began = Instant::now();
        for code in [400, 401, 403, 404, 405, 406, 410, 500, 502, 503] {
            let said = gateway.call("web", "status", json!({"status": code})).await;
            assert_eq!((said.status, &said.json()["code"]), (502, &json!("backend_http")));
            assert!(said.detail().contains(&code.to_string()), "{}", said.detail());
            assert_eq!(echo(&gateway).await.tool_text(), "hello");
        }
        let seen = gateway.server("web").await.json();
        assert_eq!((&seen["state"], &seen["since"]), (&json!("ready"), &since), "{seen}");
        assert_eq!(server.seen_of("server/discover").len(), 1);
        // Once when it was connected to, and then once in three seconds.
        let questions = server.seen_of("tools/list").len() - 1;
        assert!((1..=1 + began.elapsed().as_secs() as usize / 3).contains(&questions));
        gateway.stop().await;
        server.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_in_quarantine_and_back_soon_after_it_is_there() {
    let server = HttpServer::modern().await;
    let (url, addr) = (server.url("/mcp"), server.addr);
    server.stop().await;
    let gateway = Setup::new().http("web", &url, "").start().await;
    let seen = eventually("in quarantine", async || {
        let server = gateway.server("web").await.json();
        (server["state"] == "quarantined").then_some(server)
    })
    .await;
    assert_eq!(seen["reason"], "it cannot be reached");
    let began = Instant::now();
    let said = echo(&gateway).await;
    assert_eq!(said.problem(), refused(503, "server_unavailable").for_now());
    assert!((1..=6).contains(&said.retry_after().unwrap()), "{said:?}");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let server = HttpServer::start(true, addr).await;
    is_back(&gateway).await;
    gateway.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn each_step_of_the_handshake_has_its_own_time() {
    let server = HttpServer::legacy().await;
    // It takes all the time of the first step.
    server.ignore("server/discover");
    let began = Instant::now();
    let setup = Setup::new().http("web", &server.url("/mcp"), "init_timeout = \"1s\"");
    let gateway = in_time("started", setup.start()).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(echo(&gateway).await.tool_text(), "hello");
    assert_eq!(server.seen_of("server/discover").len(), 1);
    gateway.stop().await;
    server.stop().await;
}
