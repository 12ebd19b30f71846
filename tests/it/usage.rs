//! What tenants use is counted, shown to whom it concerns, and written down.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use trunkline::store::{Actor, KeyOwner};

use crate::support::{Api, Setup, refused, within};

const SOON: Duration = Duration::from_secs(20);
/// What a crash may lose. It is written every two seconds; the rest is for busy machines.
const LOST_MAX: Duration = Duration::from_secs(5);

fn setup() -> Setup {
    Setup::new()
        .without_anonymous()
        .std()
        .with_tenant("acme", "servers = [\"std\"]")
        .with_tenant("other", "servers = [\"std\"]")
}

async fn admin(setup: &Setup, api: &Api) -> Api {
    let (store, actor) = (setup.store().await, Actor::cli("test"));
    let key = store.create_key(&actor, &KeyOwner::Admin, None, None).await.unwrap();
    api.with_key(key.key.expose())
}

/// Waits until so many calls are shown at a path; gives what is shown.
async fn shown(api: &Api, path: &str, calls: u64) -> Vec<Value> {
    within(SOON, "written down", async || {
        let answer = api.get(path).await.json();
        (sum(&answer) == calls).then(|| answer["usage"].as_array().unwrap().clone())
    })
    .await
}

/// All calls of an answer.
fn sum(answer: &Value) -> u64 {
    let usage = answer["usage"].as_array().unwrap_or_else(|| panic!("{answer}"));
    usage.iter().map(|row| row["calls"].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn every_call_is_counted_once_by_tenant_server_and_tool() {
    let gateway = setup().start().await;
    let [acme, other] = [gateway.as_tenant("acme").await, gateway.as_tenant("other").await];
    for _ in 0..3 {
        assert_eq!(acme.call("std", "echo", r#"{"text":"four"}"#).await.status, 200);
    }
    assert_eq!(acme.call("std", "fail", r#"{"message":"x"}"#).await.status, 200);
    assert_eq!(acme.call_within_ms(50, "std", "sleep", r#"{"ms":5000}"#).await.status, 504);
    // What a caller makes up is not kept.
    assert_eq!(acme.call("std", "made-up", "").await.status, 404);
    assert_eq!(other.call("std", "uuid", "").await.status, 200);

    let own = shown(&acme, "/v1/usage", 5).await;
    let of = |tool: &str| own.iter().find(|row| row["tool"] == tool).unwrap().clone();
    assert_eq!(own.len(), 3, "{own:?}");
    assert!(own.iter().all(|row| row["tenant"] == "acme" && row["server"] == "std"), "{own:?}");
    assert_eq!((&of("echo")["calls"], &of("echo")["errors"]), (&json!(3), &json!(0)));
    assert_eq!(of("echo")["bytes_in"], 3 * r#"{"text":"four"}"#.len());
    assert!(of("echo")["backend_ms"].as_f64().unwrap() > 0.0);
    assert_eq!((&of("fail")["tool_errors"], &of("fail")["errors"]), (&json!(1), &json!(0)));
    assert_eq!(of("sleep")["errors"], 1);

    let admin = admin(gateway.setup(), &gateway).await;
    shown(&admin, "/admin/v1/usage", 6).await;
    let one = shown(&admin, "/admin/v1/usage?tenant=other&by=minute", 1).await;
    assert!(one[0]["minute"].as_str().unwrap().ends_with(":00Z"), "{one:?}");
    assert_eq!(shown(&admin, "/admin/v1/usage?to=2020-01-01T00:00:00Z", 0).await.len(), 0);
    for path in ["/v1/usage?tenant=other", "/v1/usage?from=yesterday", "/v1/usage?form=x"] {
        assert_eq!(acme.get(path).await.problem(), refused(400, "invalid_request"), "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_crash_loses_what_was_used_last_and_an_orderly_end_nothing() {
    let mut serving = setup().serve().await;
    let key = serving.setup().new_key("acme").await;
    let acme = Api::new(serving.addr, Some(key));
    for _ in 0..10 {
        assert_eq!(acme.call("std", "uuid", "").await.status, 200);
    }
    // Nobody asks how far it is: that must not matter.
    sleep(LOST_MAX).await;
    serving.signal(rustix::process::Signal::KILL);
    serving.ended().await;

    let mut again = serving.restart().await;
    let acme = Api::new(again.addr, Some(again.setup().new_key("acme").await));
    assert_eq!(sum(&acme.get("/v1/usage").await.json()), 10);
    assert_eq!(acme.call("std", "uuid", "").await.status, 200);
    again.signal(rustix::process::Signal::TERM);
    assert_eq!(again.ended().await, Some(0));
    let last = again.restart().await;
    let acme = Api::new(last.addr, Some(acme_key(&last).await));
    shown(&acme, "/v1/usage", 11).await;
}

/// Two keys may be active; the first is taken back.
async fn acme_key(serving: &crate::support::Serving) -> String {
    let store = serving.setup().store().await;
    let owner = KeyOwner::Tenant(trunkline::ids::TenantId::parse("acme").unwrap());
    let first = store.list_keys(&owner).await.unwrap()[0].id;
    store.revoke_key(&Actor::cli("test"), &first).await.unwrap();
    serving.setup().new_key("acme").await
}
