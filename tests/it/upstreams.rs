//! Servers that have a URL: encryption, many calls on one connection, instances, and what goes with
//! tenants' own requests.

use std::collections::BTreeSet;

use axum::http::Version;
use serde_json::json;

use crate::secrets::{KEY, set};
use crate::support::{
    Answer, Api, HttpServer, Serving, Setup, eventually, failed, refused, tls, trunkline_with,
};

/// A gateway that trusts the CA of the tests.
async fn trusting(server: &HttpServer) -> Serving {
    let setup = Setup::new().http("web", &server.url("/mcp"), "");
    setup.serve_with(&[("SSL_CERT_FILE", &tls::ca())]).await
}

#[tokio::test]
async fn many_calls_share_one_connection_and_one_that_is_late_ends_alone() {
    let server = HttpServer::encrypted(&["h2", "http/1.1"]).await;
    let serving = trusting(&server).await;
    let api = Api::new(serving.addr, None);
    let hanging: Vec<_> = (0..32).map(|_| api.spawn_call("web", "hang", "{}")).collect();
    let open = async |streams: usize| {
        eventually("open", async || (server.open_streams() == streams).then_some(())).await;
    };
    open(32).await;
    let late = api.post("web", "hang", "{}").header("trunkline-timeout-ms", "1000");
    let late = tokio::spawn(Answer::of(late));
    open(33).await;
    assert_eq!(late.await.unwrap().problem(), failed(504, "deadline_exceeded"));
    // Its stream was reset; those of the others go on, and there is no other connection.
    open(32).await;
    assert_eq!(api.call("web", "echo", json!({"text": "on"})).await.tool_text(), "on");
    assert!(hanging.iter().all(|call| !call.is_finished()));
    assert!(
        server.seen().iter().all(|seen| seen.version == Version::HTTP_2),
        "{:?}",
        server.seen()
    );
    assert_eq!(server.connections(), 1);
    hanging.iter().for_each(|call| call.abort());
    open(0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_speaks_no_http_2_is_spoken_to_all_the_same() {
    let server = HttpServer::encrypted(&["http/1.1"]).await;
    let serving = trusting(&server).await;
    assert_eq!(serving.call("web", "echo", json!({"text": "a"})).await.tool_text(), "a");
    assert!(server.seen().iter().all(|seen| seen.version == Version::HTTP_11));
    server.stop().await;
}

#[tokio::test]
async fn a_server_of_an_unknown_ca_is_sent_nothing_and_the_reason_is_told() {
    let server = HttpServer::encrypted(&["h2", "http/1.1"]).await;
    let setup = Setup::new().http("web", &server.url("/mcp"), "");
    setup.write();
    let output = trunkline_with(&setup, &["check"], &[("SSL_CERT_FILE", &tls::other_ca())]).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("web did not start") && said.contains("UnknownIssuer"), "{said}");
    assert!(server.seen().is_empty() && server.connections() > 0);
    server.stop().await;
}

#[tokio::test]
async fn instances_of_a_server_that_has_a_url_are_connections_with_calls_of_their_own() {
    let server = HttpServer::legacy().await;
    let settings = "instances = 2\nmax_in_flight = 1";
    let gateway = Setup::new().http("web", &server.url("/mcp"), settings).start().await;
    eventually("both", async || (gateway.server("web").await.json()["ready"] == 2).then_some(()))
        .await;
    let hanging = [(); 2].map(|()| gateway.spawn_call("web", "hang", "{}"));
    eventually("both", async || (server.seen_of("tools/call").len() == 2).then_some(())).await;
    let seen = server.seen_of("tools/call");
    let sessions: BTreeSet<_> = seen.iter().map(|seen| seen.header("mcp-session-id")).collect();
    assert_eq!(sessions.len(), 2, "{sessions:?}");
    // Each takes one at a time.
    let said = gateway.call_within_ms(300, "web", "echo", json!({"text": "a"})).await;
    assert_eq!(said.problem(), refused(504, "deadline_exceeded").for_now());
    hanging.iter().for_each(|call| call.abort());
    gateway.stop().await;
    server.stop().await;
}

const SECRET_HEADER: &str =
    "sharing = \"tenant\"\nheaders.Authorization = \"Bearer ${secret:TOKEN}\"";

#[tokio::test]
async fn a_secret_that_no_header_can_have_is_told_to_its_tenant() {
    let server = HttpServer::modern().await;
    let setup = Setup::new()
        .without_anonymous()
        .set(&format!("[secrets]\nkeys = [{KEY:?}]"))
        .with_tenant("acme", "servers = [\"own\"]")
        .http("own", &server.url("/mcp"), SECRET_HEADER);
    let key = setup.new_key("acme").await;
    let serving = setup.serve_with(&[]).await;
    let acme = Api::new(serving.addr, Some(key));
    set(&acme, "swordfish\nand more").await;
    let said = acme.call("own", "echo", json!({"text": "a"})).await;
    assert_eq!(said.problem(), refused(503, "server_unavailable").for_now());
    let reason = "a secret has characters that no header can have";
    assert!(said.detail().contains(reason), "{}", said.detail());
    assert!(server.seen().is_empty());
    // With another one the server is connected to anew.
    set(&acme, "swordfish").await;
    assert_eq!(acme.call("own", "echo", json!({"text": "a"})).await.tool_text(), "a");
    server.stop().await;
}

#[tokio::test]
async fn a_header_has_the_secret_of_whoever_calls_and_the_log_has_none() {
    let server = HttpServer::modern().await;
    let setup = Setup::new()
        .without_anonymous()
        .set(&format!("[secrets]\nkeys = [{KEY:?}]"))
        .with_tenant("acme", "servers = [\"own\"]")
        .with_tenant("globex", "servers = [\"own\"]")
        .http("own", &server.url("/mcp"), SECRET_HEADER);
    let keys = [setup.new_key("acme").await, setup.new_key("globex").await];
    let serving = setup.serve_with(&[("RUST_LOG", "trace")]).await;
    let tenants = keys.map(|key| Api::new(serving.addr, Some(key)));
    for (tenant, name) in tenants.iter().zip(["acme", "globex"]) {
        set(tenant, &format!("swordfish-of-{name}")).await;
        assert_eq!(tenant.call("own", "echo", json!({"text": name})).await.tool_text(), name);
        assert_eq!(tenant.call("own", "status", json!({"status": 401})).await.status, 502);
    }
    let mut callers = vec![];
    for seen in server.seen_of("tools/call") {
        let header = seen.header("authorization").to_owned();
        if let Some(name) = seen.message["params"]["arguments"]["text"].as_str() {
            assert_eq!(header, format!("Bearer swordfish-of-{name}"));
            callers.push(name.to_owned());
        }
    }
    assert_eq!(callers, ["acme", "globex"]);
    assert!(server.seen().iter().all(|seen| seen.header("authorization").contains("swordfish")));
    let log = serving.log();
    assert!(log.iter().any(|line| line.contains("\"level\":\"DEBUG\"")));
    let told: Vec<_> = log.iter().filter(|line| line.contains("swordfish")).collect();
    assert_eq!(told, [] as [&String; 0]);
    server.stop().await;
}
