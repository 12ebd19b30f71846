//! `/admin/v1`, as an administrator uses it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use trunkline::store::{Actor, KeyOwner};

use crate::support::{Answer, Api, Gateway, Setup, refused, trunkline, within};

const SOON: Duration = Duration::from_secs(10);

async fn start() -> (Gateway, Api) {
    let setup = Setup::new()
        .without_anonymous()
        .std()
        .with_tenant("filed", "servers = [\"std\"]\nrate = \"5/s\"");
    let gateway = setup.start().await;
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    let admin = gateway.with_key(key.key.expose());
    (gateway, admin)
}

async fn send(api: &Api, method: Method, path: &str, body: Value) -> Answer {
    let request = api.client.request(method, api.url(&format!("/admin/v1{path}")));
    Answer::of(request.body(body.to_string())).await
}

#[tokio::test]
async fn tenants_are_added_changed_and_removed() {
    let (gateway, admin) = start().await;
    let tenant = json!({"id": "acme", "rate": "100/s", "burst": 200, "servers": ["std"],
        "limits": {"std/echo": {"rate": "5/s"}, "std/uuid": {"max_in_flight": 1}}});
    let added = send(&admin, Method::POST, "/tenants", tenant.clone()).await;
    assert_eq!(added.status, 201, "{added:?}");
    let conflict = send(&admin, Method::POST, "/tenants", tenant).await;
    assert_eq!(conflict.problem(), refused(409, "already_exists"));

    let hosts = json!(["hooks.example"]);
    let change = json!({"burst": null, "weight": 3, "limits": {"std/uuid": null},
        "callback_hosts": hosts});
    let changed = send(&admin, Method::PATCH, "/tenants/acme", change).await.json();
    let since = &changed["since"];
    assert!(since.is_string());
    let expected = json!({"id": "acme", "source": "store", "since": since,
        "rate": "100/s", "burst": null,
        "max_in_flight": 256, "weight": 3, "servers": ["std"], "callback_hosts": hosts,
        "limits": {"std/echo": {"rate": "5/s", "burst": null, "max_in_flight": null}}});
    assert_eq!(changed, expected);
    assert_eq!(admin.get("/admin/v1/tenants/acme").await.json(), expected);
    let all = admin.get("/admin/v1/tenants").await.json();
    assert_eq!(
        (&all["tenants"][0]["id"], &all["tenants"][1]["id"]),
        (&json!("acme"), &json!("filed"))
    );
    assert_eq!(all["tenants"][1]["source"], "file");

    let key = send(&admin, Method::POST, "/tenants/acme/keys", json!({})).await.json();
    let acme = gateway.with_key(key["key"].as_str().unwrap());
    assert_eq!(acme.call("std", "uuid", "").await.status, 200);
    let removed = send(&admin, Method::DELETE, "/tenants/acme", json!({})).await;
    assert_eq!(removed.json(), json!({"id": "acme", "revoked_keys": 1}));
    within(SOON, "gone", async || (acme.call("std", "uuid", "").await.status == 401).then_some(()))
        .await;
    let gone = admin.get("/admin/v1/tenants/acme").await;
    assert_eq!(gone.problem(), refused(404, "not_found"));

    let audit = admin.get("/admin/v1/audit").await.json();
    let actions: Vec<_> =
        audit["entries"].as_array().unwrap().iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(actions, ["tenant.remove", "key.create", "tenant.set", "tenant.add", "key.create"]);
    assert!(audit["entries"][0]["actor"].as_str().unwrap().starts_with("key:"), "{audit}");
    gateway.stop().await;
}

#[tokio::test]
async fn of_many_changes_at_once_none_is_lost() {
    let (gateway, admin) = start().await;
    send(&admin, Method::POST, "/tenants", json!({"id": "acme"})).await;
    let change = async |at: u32| {
        let limits = json!({"limits": {format!("server-{at}"): {"rate": "1/s"}}});
        send(&admin, Method::PATCH, "/tenants/acme", limits).await.status
    };
    let statuses = futures_util::future::join_all((0..20).map(change)).await;
    assert_eq!(statuses, [200; 20]);
    let acme = admin.get("/admin/v1/tenants/acme").await.json();
    assert_eq!(acme["limits"].as_object().unwrap().len(), 20, "{acme}");
    gateway.stop().await;
}

#[tokio::test]
async fn keys_are_made_shown_once_and_taken_back() {
    let (gateway, admin) = start().await;
    let wish = json!({"name": "ci", "expires": "2999-01-01T00:00:00Z"});
    let made = send(&admin, Method::POST, "/tenants/filed/keys", wish).await;
    assert_eq!(made.status, 201, "{made:?}");
    let (id, key) = (made.json()["id"].clone(), made.json()["key"].clone());
    let filed = gateway.with_key(key.as_str().unwrap());
    assert_eq!(filed.call("std", "uuid", "").await.status, 200);
    let list = admin.get("/admin/v1/tenants/filed/keys").await;
    assert_eq!(
        (&list.json()["keys"][0]["id"], &list.json()["keys"][0]["state"]),
        (&id, &json!("active"))
    );
    assert!(!list.text().contains(key.as_str().unwrap()));

    send(&admin, Method::POST, "/tenants/filed/keys", json!({})).await;
    let third = send(&admin, Method::POST, "/tenants/filed/keys", json!({})).await;
    assert_eq!(third.problem(), refused(409, "too_many_keys"));
    let path = format!("/keys/{}", id.as_str().unwrap());
    assert_eq!(send(&admin, Method::DELETE, &path, json!({})).await.status, 200);
    assert_eq!(send(&admin, Method::POST, "/tenants/filed/keys", json!({})).await.status, 201);
    assert_eq!(send(&admin, Method::POST, "/admin-keys", json!({})).await.status, 201);
    let admins = admin.get("/admin/v1/admin-keys").await.json();
    assert_eq!(admins["keys"].as_array().unwrap().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn the_command_line_shows_what_administrators_see() {
    let setup = Setup::new().std().with_tenant("filed", "servers = [\"std\"]");
    let gateway = setup.start().await;
    gateway.setup().write();
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    let admin = gateway.with_key(key.key.expose());
    let shown = async |args: &[&str]| {
        let output = trunkline(gateway.setup(), args).await;
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    assert_eq!(send(&admin, Method::POST, "/tenants", json!({"id": "acme"})).await.status, 201);
    let all = admin.get("/admin/v1/tenants").await.json();
    assert_eq!(all, shown(&["tenant", "list", "--json"]).await);
    let sources = all["tenants"].as_array().unwrap().iter().map(|tenant| &tenant["source"]);
    assert_eq!(sources.collect::<Vec<_>>(), ["store", "file", "anonymous"]);
    let local = admin.get("/admin/v1/tenants/local").await.json();
    assert_eq!(local, shown(&["tenant", "show", "local", "--json"]).await);

    let made = send(&admin, Method::POST, "/tenants/local/keys", json!({})).await;
    assert_eq!(made.status, 201);
    let keys = admin.get("/admin/v1/tenants/local/keys").await.json();
    assert_eq!(keys["keys"][0]["id"], made.json()["id"]);
    assert_eq!(keys, shown(&["key", "list", "local", "--json"]).await);
    gateway.stop().await;
}

#[tokio::test]
async fn what_was_shown_can_be_sent_back() {
    let (gateway, admin) = start().await;
    send(&admin, Method::POST, "/tenants", json!({"id": "acme", "rate": "5/s"})).await;
    let mut acme = admin.get("/admin/v1/tenants/acme").await.json();
    acme["weight"] = json!(7);
    let changed = send(&admin, Method::PATCH, "/tenants/acme", acme.clone()).await;
    assert_eq!((changed.status, changed.json()), (200, acme));
    let unlimited = json!({"rate": null, "max_in_flight": null});
    let changed = send(&admin, Method::PATCH, "/tenants/acme", unlimited).await.json();
    assert_eq!((&changed["rate"], &changed["max_in_flight"]), (&Value::Null, &Value::Null));
    let changed = send(&admin, Method::PATCH, "/tenants/acme", json!({"weight": 2})).await.json();
    assert_eq!((&changed["weight"], &changed["max_in_flight"]), (&json!(2), &Value::Null));
    for (name, value) in [("id", "other"), ("source", "file")] {
        let refusal = send(&admin, Method::PATCH, "/tenants/acme", json!({name: value})).await;
        assert_eq!(refusal.problem(), refused(400, "invalid_request"));
        assert!(refusal.detail().contains("cannot be changed"), "{}", refusal.detail());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let (gateway, admin) = start().await;
    assert_eq!(send(&admin, Method::POST, "/tenants", json!({"id": "acme"})).await.status, 201);
    for (method, path, body, code, part) in [
        (Method::POST, "/tenants", json!({"id": "a b"}), (400, "invalid_request"), "`a b`"),
        (Method::POST, "/tenants", json!({}), (400, "invalid_request"), "`id`"),
        (Method::POST, "/tenants", json!({"id": "x", "rat": 1}), (400, "invalid_request"), "`rat`"),
        (
            Method::POST,
            "/tenants",
            json!({"id": "filed"}),
            (409, "in_configuration_file"),
            "`filed`",
        ),
        (Method::PATCH, "/tenants/filed", json!({}), (409, "in_configuration_file"), "`filed`"),
        (Method::DELETE, "/tenants/filed", json!({}), (409, "in_configuration_file"), "`filed`"),
        (Method::PATCH, "/tenants/none", json!({}), (404, "not_found"), "`none`"),
        // Nothing would be removed.
        (Method::PATCH, "/tenants/acme", json!({"rat": null}), (400, "invalid_request"), "`rat`"),
        (Method::POST, "/tenants/none/keys", json!({}), (404, "not_found"), "`none`"),
        (
            Method::POST,
            "/tenants/filed/keys",
            json!({"nam": "x"}),
            (400, "invalid_request"),
            "`nam`",
        ),
        (
            Method::POST,
            "/tenants/filed/keys",
            json!({"expires": "2001-01-01T00:00:00Z"}),
            (400, "invalid_request"),
            "future",
        ),
        (Method::DELETE, "/keys/none", json!({}), (404, "not_found"), "`none`"),
        (Method::POST, "/tenants", json!([]), (400, "invalid_request"), "JSON object"),
    ] {
        let answer = send(&admin, method.clone(), path, body).await;
        assert_eq!(answer.problem(), refused(code.0, code.1), "{method} {path}: {answer:?}");
        assert!(answer.detail().contains(part), "{}", answer.detail());
    }
    // No text at all.
    for (method, path) in [
        (Method::GET, "/tenants/%FF"),
        (Method::DELETE, "/keys/%FF"),
        (Method::GET, "/servers/%FF/pins"),
        (Method::GET, "/tenants/acme/servers/%FF/secrets"),
    ] {
        let answer = send(&admin, method, path, json!({})).await;
        assert_eq!(answer.problem(), refused(400, "invalid_request"), "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn with_a_port_for_operators_administrators_are_served_there_only() {
    let setup = Setup::new().without_anonymous().std().set("ops_listen = \"127.0.0.1:0\"");
    let gateway = setup.start().await;
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    let admin = gateway.with_key(key.key.expose());
    assert_eq!(admin.get("/admin/v1/servers").await.status, 404);
    let ops = Api::new(gateway.ops_addr.unwrap(), Some(key.key.expose().to_owned()));
    let servers = ops.get("/admin/v1/servers").await.json();
    assert_eq!(
        (&servers["servers"][0]["id"], &servers["servers"][0]["tools"]),
        (&json!("std"), &json!(7))
    );
    gateway.stop().await;
}
