//! Tenants' secrets, as tenants and administrators set them over HTTP.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use trunkline::common::ids::ServerId;
use trunkline::config::Secret;
use trunkline::store::{Actor, KeyOwner};
use trunkline::tenants;
use trunkline::tenants::secrets::{Keyring, Label};

use crate::store::{root, tenant as tenant_id};
use crate::support::{Answer, Api, Database, Gateway, Setup, eventually, on_both, refused, within};

pub const KEY: &str = "0123456789abcdef0123456789abcdef";
const NEW_KEY: &str = "fedcba9876543210fedcba9876543210";
/// All replicas follow within two seconds; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(10);

/// A server `own` that has `<${secret:TOKEN}>` as its variable TOKEN, and two tenants that may use
/// it.
pub fn setup(settings: &str) -> Setup {
    setup_with(&[KEY], settings)
}

fn setup_with(keys: &[&str], settings: &str) -> Setup {
    let settings = format!("sharing = \"tenant\"\nenv.TOKEN = \"<${{secret:TOKEN}}>\"\n{settings}");
    Setup::new()
        .without_anonymous()
        .set(&format!("[secrets]\nkeys = {keys:?}"))
        .with_tenant("acme", "servers = [\"own\"]")
        .with_tenant("globex", "servers = [\"own\"]")
        .with_tenant("stranger", "servers = [\"std\"]")
        .std()
        .fake_with("own", &[], &settings)
}

pub async fn send(api: &Api, method: Method, path: &str, body: &str) -> Answer {
    Answer::of(api.client.request(method, api.url(path)).body(body.to_owned())).await
}

pub async fn put(api: &Api, value: &str) -> Answer {
    let body = json!({"value": value}).to_string();
    send(api, Method::PUT, "/v1/servers/own/secrets/TOKEN", &body).await
}

pub async fn set(api: &Api, value: &str) {
    let answer = put(api, value).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.text().contains(value), "{answer:?}");
}

/// Returns the value that the tenant's process sees.
pub async fn token(api: &Api) -> String {
    api.call("own", "env", json!({"name": "TOKEN"})).await.tool_text()
}

async fn administrator(gateway: &Gateway) -> Api {
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    gateway.with_key(key.key.expose())
}

#[tokio::test]
async fn each_tenant_has_its_own_value_whatever_becomes_of_keys_and_gateways() {
    on_both(async |database: &Database| {
        let gateway = setup_with(&[KEY], "").with_store(&database.url).start().await;
        let keys = [gateway.new_key("acme").await, gateway.new_key("globex").await];
        let both = |gateway: &Gateway| keys.clone().map(|key| gateway.with_key(&key));
        let [acme, globex] = both(&gateway);
        set(&acme, "of-acme").await;
        set(&globex, "of-globex").await;
        let tokens = async |gateway: &Gateway| {
            let [acme, globex] = both(gateway);
            [token(&acme).await, token(&globex).await]
        };
        assert_eq!(tokens(&gateway).await, ["<of-acme>", "<of-globex>"]);
        set(&acme, "of-acme-2").await;
        assert_eq!(tokens(&gateway).await, ["<of-acme-2>", "<of-globex>"]);
        gateway.stop().await;

        // A new key before the old one: what the old one has sealed opens.
        let gateway = setup_with(&[NEW_KEY, KEY], "").with_store(&database.url).start().await;
        assert_eq!(tokens(&gateway).await, ["<of-acme-2>", "<of-globex>"]);
        let pids = gateway.fake("own").pids();
        let store = database.open().await;
        let keyring = Keyring::new(&[NEW_KEY, KEY].map(|key| Secret::new(key.to_owned())));
        let rotated = tenants::secrets::by_tenant::rotate(&store, &keyring, &root()).await.unwrap();
        assert_eq!((rotated.0.resealed, rotated.1.len()), (2, 0));
        assert_eq!(tokens(&gateway).await, ["<of-acme-2>", "<of-globex>"]);
        let [_, globex] = both(&gateway);
        set(&globex, "of-globex-2").await;
        assert_eq!(tokens(&gateway).await, ["<of-acme-2>", "<of-globex-2>"]);
        // The values were the same: no process was replaced for that.
        assert_eq!(gateway.fake("own").pids().len(), pids.len() + 1);
        gateway.stop().await;

        let gateway = setup_with(&[NEW_KEY], "").with_store(&database.url).start().await;
        assert_eq!(tokens(&gateway).await, ["<of-acme-2>", "<of-globex-2>"]);
        gateway.stop().await;
        let gateway = setup_with(&[KEY], "").with_store(&database.url).start().await;
        let [acme, _] = both(&gateway);
        let answer = acme.call("own", "pid", "").await;
        assert_eq!(answer.problem(), refused(409, "secret_missing"), "the old key opens nothing");
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_sealed_value_in_another_tenants_row_is_of_no_use() {
    let gateway = setup("").start().await;
    let (acme, globex) = (gateway.as_tenant("acme").await, gateway.as_tenant("globex").await);
    set(&acme, "of-acme").await;
    set(&globex, "of-globex").await;
    assert_eq!(token(&globex).await, "<of-globex>");
    let store = gateway.setup().store().await;
    let (_, stored) = store.secrets().await.unwrap();
    let of_acme = stored.iter().find(|it| it.tenant.name().as_str() == "acme").unwrap();
    let (own, globex_id) = (ServerId::parse("own").unwrap(), tenant_id("globex"));
    let label = Label { tenant: &globex_id, server: &own, name: "TOKEN" };
    store.set_secret(&root(), label, &of_acme.sealed).await.unwrap();
    let refusal = within(SOON, "refused", async || {
        let answer = globex.call("own", "env", json!({"name": "TOKEN"})).await;
        assert!(!answer.text().contains("of-acme"), "{answer:?}");
        (answer.status != 200).then_some(answer)
    });
    assert_eq!(refusal.await.problem(), refused(409, "secret_missing"));
    assert_eq!(token(&acme).await, "<of-acme>");
    gateway.stop().await;
}

#[tokio::test]
async fn all_gateways_of_a_store_follow_a_change() {
    on_both(async |database: &Database| {
        let one = setup("").with_store(&database.url).start().await;
        let two = setup("").with_store(&database.url).start().await;
        let key = one.new_key("acme").await;
        let (at_one, at_two) = (one.with_key(&key), two.with_key(&key));
        for value in ["first", "second"] {
            set(&at_one, value).await;
            let expected = format!("<{value}>");
            assert_eq!(token(&at_one).await, expected);
            within(SOON, "followed", async || {
                let answer = at_two.call("own", "env", json!({"name": "TOKEN"})).await;
                (answer.status == 200 && answer.tool_text() == expected).then_some(())
            })
            .await;
        }
        one.stop().await;
        two.stop().await;
    })
    .await;
}

#[tokio::test]
async fn names_are_listed_and_values_are_not() {
    let gateway = setup("env.OTHER = \"${secret:OTHER}\"").start().await;
    let acme = gateway.as_tenant("acme").await;
    let list = async || acme.get("/v1/servers/own/secrets").await.json()["secrets"].clone();
    let unset = |name: &str| {
        json!({"server": "own", "name": name, "needed": true,
        "set": false, "updated_at": null})
    };
    assert_eq!(list().await, json!([unset("OTHER"), unset("TOKEN")]));
    set(&acme, "hunter2").await;
    let mut listed = list().await;
    assert!(listed[1]["updated_at"].take().is_string());
    let set =
        json!({"server": "own", "name": "TOKEN", "needed": true, "set": true, "updated_at": null});
    assert_eq!(listed, json!([unset("OTHER"), set]));

    let refusal = acme.call("own", "pid", "").await;
    assert_eq!(refusal.problem(), refused(409, "secret_missing"));
    assert!(refusal.detail().contains("`OTHER`") && !refusal.detail().contains("`TOKEN`"));
    assert!(refusal.detail().contains("PUT /v1/servers/own/secrets/"), "{}", refusal.detail());
    let over_mcp = acme.mcp("/mcp/own").call("pid", json!({})).send().await.error();
    assert_eq!(
        (&over_mcp["code"], &over_mcp["data"]["code"]),
        (&json!(409), &json!("secret_missing"))
    );
    assert!(gateway.fake("own").pids().is_empty(), "nothing is started");

    let path = "/v1/servers/own/secrets/TOKEN";
    assert_eq!(send(&acme, Method::DELETE, path, "").await.status, 200);
    assert_eq!(send(&acme, Method::DELETE, path, "").await.problem(), refused(404, "not_found"));
    assert_eq!(list().await, json!([unset("OTHER"), unset("TOKEN")]));
    gateway.stop().await;
}

#[tokio::test]
async fn only_secrets_of_servers_that_a_tenant_sees_can_be_set() {
    let gateway = setup("").start().await;
    let (acme, stranger) = (gateway.as_tenant("acme").await, gateway.as_tenant("stranger").await);
    let one = "/v1/servers/own/secrets/TOKEN";
    for (method, path) in
        [(Method::GET, "/v1/servers/own/secrets"), (Method::PUT, one), (Method::DELETE, one)]
    {
        let answer = send(&stranger, method, path, r#"{"value": "x"}"#).await;
        assert_eq!(answer.problem(), refused(404, "server_not_found"));
    }
    for (path, body, said) in [
        ("/v1/servers/own/secrets/OTHER", r#"{"value": "hunter2"}"#, "it has `TOKEN`"),
        (one, "hunter2", "{\"value\": \"…\"}"),
        (one, r#"{"value": ""}"#, "empty"),
        (one, r#"{"value": "hunter2\u0000"}"#, "zero byte"),
        (one, &json!({"value": "hunter2".repeat(4096)}).to_string(), "16384"),
    ] {
        let answer = send(&acme, Method::PUT, path, body).await;
        assert_eq!(answer.problem(), refused(400, "invalid_request"), "{path}");
        assert!(answer.detail().contains(said), "{}", answer.detail());
        assert!(!answer.text().contains("hunter2"), "{answer:?}");
    }
    let none = send(&stranger, Method::PUT, "/v1/servers/std/secrets/A", r#"{"value": "x"}"#).await;
    assert!(none.detail().contains("it has none"), "{}", none.detail());
    let longest = "é".repeat(8192);
    set(&acme, &longest).await;
    assert_eq!(token(&acme).await, format!("<{longest}>"));
    gateway.stop().await;
}

#[tokio::test]
async fn callers_without_a_key_use_what_the_operator_has_set() {
    let gateway = setup("").tenant("acme").start().await;
    assert_eq!(put(&gateway, "x").await.problem(), refused(403, "forbidden"));
    let path = "/admin/v1/tenants/acme/servers/own/secrets/TOKEN";
    let admin = administrator(&gateway).await;
    assert_eq!(send(&admin, Method::PUT, path, r#"{"value": "given"}"#).await.status, 200);
    assert_eq!(token(&gateway).await, "<given>");
    let removal = send(&gateway, Method::DELETE, "/v1/servers/own/secrets/TOKEN", "").await;
    assert_eq!(removal.problem(), refused(403, "forbidden"));
    gateway.stop().await;
}

#[tokio::test]
async fn administrators_set_them_for_tenants_and_all_is_noted() {
    let gateway = setup("").start().await;
    let (admin, acme) = (administrator(&gateway).await, gateway.as_tenant("acme").await);
    let secrets = "/admin/v1/tenants/acme/servers/own/secrets";
    let one = format!("{secrets}/TOKEN");
    assert_eq!(send(&admin, Method::PUT, &one, r#"{"value": "hunter2"}"#).await.status, 200);
    assert_eq!(token(&acme).await, "<hunter2>");
    let listed = admin.get(secrets).await;
    assert_eq!(listed.json()["secrets"][0]["set"], true);
    assert_eq!(acme.get(secrets).await.problem(), refused(403, "forbidden"));
    for (path, code) in [
        ("/admin/v1/tenants/nobody/servers/own/secrets/TOKEN", "not_found"),
        ("/admin/v1/tenants/acme/servers/none/secrets/TOKEN", "not_found"),
        (&format!("{secrets}/OTHER"), "invalid_request"),
    ] {
        let answer = send(&admin, Method::PUT, path, r#"{"value": "x"}"#).await;
        assert_eq!(answer.json()["code"], code, "{path}");
    }
    set(&acme, "hunter2-too").await;
    assert_eq!(send(&admin, Method::DELETE, &one, "").await.status, 200);

    let audit = admin.get("/admin/v1/audit?limit=3").await;
    assert!(!audit.text().contains("hunter2"), "{}", audit.text());
    let entries = audit.json()["entries"].as_array().unwrap().clone();
    let noted: Vec<_> = entries.iter().map(|it| (&it["action"], &it["target"])).collect();
    let target = json!("tenant:acme");
    let (set, remove) = (json!("secret.set"), json!("secret.remove"));
    assert_eq!(noted, [(&remove, &target), (&set, &target), (&set, &target)]);
    assert_eq!(entries[1]["actor"], "tenant:acme");
    assert!(entries[0]["actor"].as_str().unwrap().starts_with("key:"));
    let generation = &entries[0]["detail"]["generation"];
    let detail = json!({"server": "own", "name": "TOKEN", "generation": generation});
    assert!(generation.is_string() && entries[0]["detail"] == detail, "{entries:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_change_is_taken_from_the_tenants_rate() {
    let gateway =
        setup("").with_tenant("slow", "servers = [\"own\"]\nrate = \"2/h\"").start().await;
    let slow = gateway.as_tenant("slow").await;
    let statuses = [put(&slow, "a").await.status, put(&slow, "b").await.status];
    assert_eq!(statuses, [200, 200]);
    let third = put(&slow, "c").await;
    assert_eq!(third.problem(), refused(429, "rate_limited").for_now());
    gateway.stop().await;
}

#[tokio::test]
async fn the_end_of_a_tenant_is_the_end_of_its_secrets() {
    let gateway = setup("").start().await;
    let admin = administrator(&gateway).await;
    let added = json!({"id": "brief", "servers": ["own"]}).to_string();
    let path = "/admin/v1/tenants/brief/servers/own/secrets";
    let add = async || send(&admin, Method::POST, "/admin/v1/tenants", &added).await;
    assert_eq!(add().await.status, 201);
    let one = format!("{path}/TOKEN");
    assert_eq!(send(&admin, Method::PUT, &one, r#"{"value": "x"}"#).await.status, 200);
    let key = gateway.new_key("brief").await;
    let brief = gateway.with_key(&key);
    assert_eq!(token(&brief).await, "<x>");
    let pid = gateway.fake("own").pids()[0];
    assert_eq!(send(&admin, Method::DELETE, "/admin/v1/tenants/brief", "").await.status, 200);
    eventually("its process gone", async || (!crate::support::is_alive(pid)).then_some(())).await;
    assert_eq!(add().await.status, 201);
    let listed: Value = admin.get(path).await.json();
    assert_eq!(listed["secrets"][0]["set"], false, "{listed}");
    gateway.stop().await;
}
