//! A secret's value appears nowhere: not in the log at its most talkative, the database or metrics.

use std::fs;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use trunkline::store::{Actor, KeyOwner};

use crate::secrets::{KEY, put, send, set, setup, token};
use crate::support::{Api, Database, Serving, Setup, eventually, on_both, python};

#[tokio::test]
async fn a_value_is_in_no_log_no_database_and_no_metric() {
    on_both(async |database: &Database| {
        let setup = setup("").with_store(&database.url);
        let key = setup.new_key("acme").await;
        let serving = setup.serve_with(&[("RUST_LOG", "trace")]).await;
        let acme = Api::new(serving.addr, Some(key));
        let values = ["swordfish-first", "swordfish-second", "swordfish-\"third\"\u{e9}"];
        for value in values {
            set(&acme, value).await;
            assert_eq!(token(&acme).await, format!("<{value}>"));
        }
        // Refused ones, too.
        assert_eq!(put(&acme, "swordfish\0").await.status, 400);
        let path = "/v1/servers/own/secrets/TOKEN";
        assert_eq!(send(&acme, Method::PUT, path, r#"["swordfish"]"#).await.status, 400);
        assert_eq!(
            send(&acme, Method::PUT, path, r#"{"value": {"swordfish": 1}}"#).await.status,
            400
        );
        let listed = acme.get("/v1/servers/own/secrets").await.text();
        assert!(!listed.contains("swordfish"), "{listed}");
        // The server's end tells what it last wrote; a call that fails, why.
        assert_eq!(acme.call("own", "exit", json!({"code": 3})).await.status, 502);
        serving.logged("ended").await;
        assert!(!acme.get("/metrics").await.text().contains("swordfish"));
        assert_eq!(send(&acme, Method::DELETE, path, "").await.status, 200);

        let store = database.open().await;
        let audit = format!("{:?}", store.audit(100, None).await.unwrap());
        assert!(audit.contains("secret.set") && !audit.contains("swordfish"), "{audit}");
        set(&acme, "swordfish-last").await;
        let (_, sealed) = store.secrets().await.unwrap();
        assert!(sealed.iter().all(|it| !it.sealed.contains("swordfish")));
        let log = serving.log();
        let is_talkative = |line: &String| line.contains("\"level\":\"DEBUG\"");
        assert!(log.iter().any(is_talkative), "the log is not at its most talkative");
        let told: Vec<_> = log.iter().filter(|line| line.contains("swordfish")).collect();
        assert_eq!(told, [] as [&String; 0]);
        if let Some(dir) = database.dir() {
            let files: Vec<_> = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect();
            assert!(!files.is_empty());
            for file in files {
                let bytes = fs::read(&file).unwrap();
                let found = memchr::memmem::find(&bytes, b"swordfish");
                assert_eq!(found, None, "{}", file.display());
            }
        }
    })
    .await;
}

const TELLING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/telling_server.py");

/// A gateway with the server `own` of these settings, which tells what it is given; the tenant that
/// has given it something has called it.
async fn with_a_telling_server(settings: &str) -> Serving {
    let setup = Setup::new()
        .without_anonymous()
        .set(&format!("[secrets]\nkeys = [{KEY:?}]"))
        .with_tenant("acme", "servers = [\"own\"]")
        .raw_server("own", &format!("sharing = \"tenant\"\n{settings}"));
    let key = setup.new_key("acme").await;
    let serving = setup.serve_with(&[("RUST_LOG", "trace")]).await;
    let acme = Api::new(serving.addr, Some(key));
    set(&acme, "swordfish-of-acme").await;
    let answer = acme.call("own", "any", "").await;
    assert!(answer.status != 200 && !answer.text().contains("swordfish"), "{answer:?}");
    serving
}

/// Returns the administrators' view of all servers.
async fn told_to_administrators(serving: &Serving) -> String {
    let store = serving.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    let admin = Api::new(serving.addr, Some(key.key.expose().to_owned()));
    eventually("told", async || {
        let text = admin.get("/admin/v1/servers").await.text();
        text.contains("[secret]").then_some(text)
    })
    .await
}

/// Every line of the log that has these words; none has the secret.
fn lines_with(serving: &Serving, words: &str) -> Vec<String> {
    let log = serving.log();
    let told: Vec<_> = log.iter().filter(|line| line.contains("swordfish")).collect();
    assert_eq!(told, [] as [&String; 0]);
    log.into_iter().filter(|line| line.contains(words)).collect()
}

fn program(how: &str) -> String {
    let args = [TELLING, how];
    format!("command = {:?}\nargs = {args:?}\nenv.TOKEN = \"<${{secret:TOKEN}}>\"", python())
}

#[tokio::test]
async fn a_server_that_repeats_it_has_it_hidden_from_log_and_administrators() {
    let serving = with_a_telling_server(&program("refuse")).await;
    serving.logged("did not start").await;
    let lines = lines_with(&serving, "did not start");
    assert!(lines[0].contains("no such token: <[secret]>"), "{lines:?}");
    assert!(lines[0].contains("this is <[secret]>"), "{lines:?}");
    assert!(!lines_with(&serving, "standard error of a server").is_empty());
    let told = told_to_administrators(&serving).await;
    assert!(told.contains("no such token: <[secret]>"), "{told}");
    assert!(told.contains("this is <[secret]>") && !told.contains("swordfish"), "{told}");
}

#[tokio::test]
async fn a_server_that_repeats_it_later_has_it_hidden_too() {
    let serving = with_a_telling_server(&program("change")).await;
    serving.logged("could not be listed").await;
    let lines = lines_with(&serving, "could not be listed");
    assert!(lines[0].contains("no such token: <[secret]>"), "{lines:?}");
    assert!(!told_to_administrators(&serving).await.contains("swordfish"));
}

#[tokio::test]
async fn an_upstream_that_repeats_it_has_it_hidden_too() {
    let repeat = async |headers: HeaderMap, body: String| {
        let message: Value = serde_json::from_str(&body).unwrap();
        let token = headers["authorization"].to_str().unwrap();
        let error = json!({"code": -32000, "message": format!("no such token: {token}")});
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
        ([(CONTENT_TYPE, "application/json")], answer.to_string())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(repeat)).await });
    let header = "headers.Authorization = \"Bearer ${secret:TOKEN}\"";
    let serving = with_a_telling_server(&format!("url = {url:?}\n{header}")).await;
    serving.logged("did not start").await;
    let lines = lines_with(&serving, "did not start");
    assert!(lines[0].contains("no such token: Bearer [secret]"), "{lines:?}");
    assert!(!told_to_administrators(&serving).await.contains("swordfish"));
}
