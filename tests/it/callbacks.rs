//! Callbacks of asynchronous calls, to a receiver over TLS.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use reqwest::RequestBuilder;
use rustix::process::Signal;
use serde_json::{Value, json};
use trunkline::calls::callback::signature::{SigningKey, signatures};

use crate::async_calls::{accepted, id_of};
use crate::support::{
    Answer, Api, Database, Delivery, Receiver, Serving, Setup, eventually, on_both, refused, tls,
    trunkline,
};

const HOSTS: &str = "servers = [\"*\"]\ncallback_hosts = [\"localhost\", \"127.0.0.1\"]";
const KEYS: &str = "secrets.keys = [\"0123456789abcdef0123456789abcdef\"]";
const OPEN: &str = "calls.callback_networks = [\"127.0.0.0/8\", \"::1/128\"]";

fn env() -> [(&'static str, String); 1] {
    [("SSL_CERT_FILE", tls::ca())]
}

fn setup(database: &Database) -> Setup {
    let setup = Setup::new().with_store(&database.url).fake("fake").tenant("acme");
    setup.with_tenant("acme", HOSTS).set(KEYS)
}

/// A gateway that trusts the CA of the tests.
async fn trusting(setup: Setup) -> Serving {
    let env = env();
    setup.serve_with(&env.each_ref().map(|(name, value)| (*name, value.as_str()))).await
}

/// Runs `trunkline callback-secret`. Returns the key that it prints.
async fn key(setup: &Setup, args: &[&str]) -> SigningKey {
    setup.write();
    let output = trunkline(setup, &[&["callback-secret"], args].concat()).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    SigningKey::parse(String::from_utf8(output.stdout).unwrap().trim_end()).unwrap()
}

/// A gateway with a secret for callbacks, which may reach this machine.
async fn ready(database: &Database) -> (Serving, SigningKey) {
    let setup = setup(database).set(OPEN);
    let key = key(&setup, &["create", "acme", "--create"]).await;
    (trusting(setup).await, key)
}

fn api(serving: &Serving) -> Api {
    Api::new(serving.addr, None)
}

fn called(serving: &Serving, url: &str, tool: &str, arguments: Value) -> RequestBuilder {
    accepted(&api(serving), tool, arguments).header("Trunkline-Callback", url)
}

async fn call(serving: &Serving, url: &str, arguments: Value) -> String {
    id_of(&Answer::of(called(serving, url, "raw", arguments)).await)
}

async fn callback(serving: &Serving, id: &str) -> Value {
    serving.get(&format!("/v1/calls/{id}")).await.json()["callback"].clone()
}

async fn until(serving: &Serving, id: &str, state: &str) -> Value {
    eventually(state, async || {
        Some(callback(serving, id).await).filter(|callback| callback["state"] == state)
    })
    .await
}

/// Waits until an attempt has failed. Returns why.
async fn failed(serving: &Serving, id: &str) -> String {
    eventually("an attempt", async || {
        let callback = callback(serving, id).await;
        callback["problem"].as_str().map(str::to_owned)
    })
    .await
}

fn is_signed(delivery: &Delivery, keys: &[SigningKey]) -> bool {
    let Delivery { id, timestamp, signature, body } = delivery;
    *signature == signatures(keys, id, *timestamp, body.as_bytes())
}

#[tokio::test]
async fn the_end_of_a_call_is_told_once_signed_and_without_its_result() {
    on_both(async |database| {
        let (serving, key) = ready(database).await;
        let receiver = Receiver::start().await;
        let request = called(&serving, &receiver.url(), "raw", json!({"secret": "argument"}));
        let request = request.header("Trunkline-Labels", "run=7").header("X-Request-Id", "r-1");
        let id = id_of(&Answer::of(request).await);
        let got = receiver.has_got(1).await;
        assert_eq!(got[0].id, id);
        assert!(is_signed(&got[0], &[key]), "{got:?}");
        let body = got[0].json();
        assert_eq!(body["type"], "call.ended");
        let data = &body["data"];
        assert_eq!((&data["id"], &data["outcome"]), (&json!(id), &json!("ok")));
        assert_eq!((&data["server"], &data["tool"]), (&json!("fake"), &json!("raw")));
        assert_eq!((&data["executed"], &data["attempts"]), (&json!("yes"), &json!(1)));
        assert_eq!((&data["labels"], &data["request_id"]), (&json!(["run=7"]), &json!("r-1")));
        assert!(body["timestamp"].is_string() && data["ended"] == body["timestamp"]);
        assert!(!got[0].body.contains("argument"), "{}", got[0].body);
        let status = until(&serving, &id, "delivered").await;
        assert_eq!((&status["attempts"], &status["problem"]), (&json!(1), &Value::Null));
        // A call that does not run, and one that is cancelled, end too.
        let failing = called(&serving, &receiver.url(), "nothing", json!({}));
        let failing = id_of(&Answer::of(failing).await);
        let got = receiver.has_got(2).await;
        assert_eq!(got[1].id, failing);
        assert_eq!(got[1].json()["data"]["code"], "tool_not_found");
        let held = called(&serving, &receiver.url(), "hold", json!({}));
        let held = id_of(&Answer::of(held).await);
        let url = api(&serving).url(&format!("/v1/calls/{held}"));
        Answer::of(serving.client.delete(url)).await;
        let got = receiver.has_got(3).await;
        assert_eq!(got[2].json()["data"]["code"], "cancelled");
        receiver.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_receiver_that_was_down_gets_each_callback_once_also_after_a_kill() {
    on_both(async |database| {
        let (mut serving, _) = ready(database).await;
        let receiver = Receiver::start().await;
        let (addr, url): (SocketAddr, _) = (receiver.addr, receiver.url());
        receiver.stop().await;
        let mut ids = BTreeSet::new();
        for number in 0..12 {
            ids.insert(call(&serving, &url, json!({"number": number})).await);
        }
        for id in &ids {
            assert!(failed(&serving, id).await.contains("error"), "{id}");
        }
        // Begun by the gateway that is killed: nobody knows its outcome.
        let held = called(&serving, &url, "hold", json!({}));
        let held = id_of(&Answer::of(held).await);
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        ids.insert(held.clone());
        serving.signal(Signal::KILL);
        serving.ended().await;
        let receiver = Receiver::start_at(addr).await;
        let env = env();
        let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
        let serving = serving.restart_with(&env).await;
        for id in &ids {
            until(&serving, id, "delivered").await;
        }
        let got = receiver.got();
        assert_eq!(got.len(), ids.len());
        assert_eq!(got.iter().map(|delivery| delivery.id.clone()).collect::<BTreeSet<_>>(), ids);
        let unknown = got.iter().find(|delivery| delivery.id == held).unwrap().json();
        assert_eq!(unknown["data"]["code"], "outcome_unknown");
        assert_eq!(unknown["data"]["executed"], "unknown");
        receiver.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_attempt_that_fails_is_repeated_with_the_same_id_and_a_refusal_ends_it() {
    let database = Database::sqlite();
    let (serving, _) = ready(&database).await;
    let receiver = Receiver::start().await;
    receiver.answer_next(503, "retry-after", "6");
    let id = call(&serving, &receiver.url(), json!({})).await;
    assert_eq!(failed(&serving, &id).await, "it answered with the HTTP status 503");
    let got = receiver.has_got(2).await;
    assert_eq!((&got[0].id, &got[1].id), (&id, &id));
    assert_eq!(got[0].body, got[1].body);
    assert!(got[1].timestamp >= got[0].timestamp + 6, "{got:?}");
    assert_eq!(until(&serving, &id, "delivered").await["attempts"], 2);
    receiver.answer_next(410, "x-end", "");
    let id = call(&serving, &receiver.url(), json!({})).await;
    let over = until(&serving, &id, "given_up").await;
    assert!(over["problem"].as_str().unwrap().contains("410"), "{over}");
    receiver.stop().await;
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let database = Database::sqlite();
    let (serving, _) = ready(&database).await;
    let (receiver, other) = (Receiver::start().await, Receiver::start().await);
    receiver.answer_next(307, "location", &other.url());
    let id = call(&serving, &receiver.url(), json!({})).await;
    assert_eq!(failed(&serving, &id).await, "it answered with the HTTP status 307");
    assert_eq!((receiver.got().len(), other.got().len()), (1, 0));
    receiver.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_private_address_is_refused_however_it_is_named() {
    let database = Database::sqlite();
    let setup = setup(&database);
    key(&setup, &["create", "acme", "--create"]).await;
    let serving = trusting(setup).await;
    let receiver = Receiver::start().await;
    // An address that is written out is refused at once, a name when it is dialled.
    let port = receiver.addr.port();
    let direct = format!("https://127.0.0.1:{port}/hook");
    let answer = Answer::of(called(&serving, &direct, "raw", json!({}))).await;
    assert_eq!(answer.problem(), refused(400, "invalid_request"));
    let id = call(&serving, &receiver.url(), json!({})).await;
    let problem = failed(&serving, &id).await;
    assert!(problem.contains("no address that may be reached"), "{problem}");
    assert!(receiver.got().is_empty());
    receiver.stop().await;
}

#[tokio::test]
async fn a_callback_needs_a_permitted_host_a_secret_and_an_asynchronous_call() {
    let database = Database::sqlite();
    let setup = setup(&database);
    let serving = trusting(setup.clone()).await;
    let refusal =
        async |url: &str| Answer::of(called(&serving, url, "raw", json!({}))).await.problem();
    assert_eq!(refusal("https://localhost/").await, refused(409, "secret_missing"));
    key(&setup, &["create", "acme"]).await;
    assert_eq!(refusal("https://hooks.example/").await, refused(403, "forbidden"));
    for url in ["http://localhost/", "https://a:b@localhost/", "localhost", "https://"] {
        assert_eq!(refusal(url).await, refused(400, "invalid_request"), "{url}");
    }
    let waiting = api(&serving).post("fake", "raw", "{}");
    let waiting = Answer::of(waiting.header("Trunkline-Callback", "https://localhost/")).await;
    assert_eq!(waiting.problem(), refused(400, "invalid_request"));
    // None of them was accepted.
    assert!(serving.get("/v1/calls").await.json()["calls"].as_array().unwrap().is_empty());
    assert!(serving.fake("fake").calls_of("raw").is_empty());
}

#[tokio::test]
async fn two_secrets_sign_for_a_while_after_a_rotation() {
    let database = Database::sqlite();
    let (serving, first) = ready(&database).await;
    let receiver = Receiver::start().await;
    let setup = serving.setup().clone();
    let second = key(&setup, &["rotate", "acme"]).await;
    call(&serving, &receiver.url(), json!({})).await;
    let both = [second, first];
    assert!(is_signed(&receiver.has_got(1).await[0], &both));
    let third = key(&setup, &["rotate", "acme", "--now"]).await;
    call(&serving, &receiver.url(), json!({})).await;
    let alone = [third];
    assert!(is_signed(&receiver.has_got(2).await[1], &alone));
    // The same secrets, sealed by another key.
    let new = "secrets.keys = [\"ffffffffffffffffffffffffffffffff\", ";
    let path = setup.dir.path().join("trunkline.toml");
    let text = setup.text().replace("secrets.keys = [", new);
    std::fs::write(&path, text).unwrap();
    let args = ["secret", "rotate", "--config", path.to_str().unwrap()];
    let output = trunkline(&setup, &args).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("encrypted 2 of 2 secrets again"), "{said}");
    receiver.stop().await;
}

#[tokio::test]
async fn callbacks_and_secrets_go_with_their_tenant() {
    on_both(async |database| {
        let setup = setup(database).without_tenants().set(OPEN);
        setup.write();
        let add = ["tenant", "add", "acme", "--create", "--callback-hosts", "localhost"];
        let add = [&add[..], &["--servers", "*"]].concat();
        assert_eq!(trunkline(&setup, &add).await.status.code(), Some(0));
        key(&setup, &["create", "acme"]).await;
        let serving = trusting(setup.clone()).await;
        let receiver = Receiver::start().await;
        receiver.answer_next(503, "x-end", "");
        let id = call(&serving, &receiver.url(), json!({})).await;
        failed(&serving, &id).await;
        let shown = trunkline(&setup, &["tenant", "show", "acme", "--json"]).await;
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["callback_hosts"], json!(["localhost"]));
        let remove = ["tenant", "remove", "acme"];
        assert_eq!(trunkline(&setup, &remove).await.status.code(), Some(0));
        let store = setup.store().await;
        let id = trunkline::common::ids::CallId::parse(&id).unwrap();
        eventually("deleted", async || {
            store.callback_status(id).await.unwrap().is_none().then_some(())
        })
        .await;
        assert_eq!(trunkline(&setup, &add).await.status.code(), Some(0));
        let output = trunkline(&setup, &["callback-secret", "rotate", "acme"]).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("there is no callback secret of tenant `acme`"), "{said}");
        assert_eq!(receiver.got().len(), 1);
        receiver.stop().await;
    })
    .await;
}
