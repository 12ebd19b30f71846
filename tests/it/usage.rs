//! Usage is counted, shown to its tenant and to administrators, and stored.

use std::time::Duration;

use futures_util::future::select;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use trunkline::store::{Actor, KeyOwner};

use crate::support::{Api, Postgres, Setup, refused, within};

const SOON: Duration = Duration::from_secs(20);
/// The most that a crash may lose: two seconds, and time for busy machines.
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
async fn what_the_tenants_own_limits_refuse_is_no_call() {
    let gateway = Setup::new()
        .without_anonymous()
        .fake("fake")
        .with_tenant("all", "servers = [\"fake\"]\nmax_in_flight = 1")
        .with_tenant("some", "servers = [\"fake\"]\nlimits.\"fake/*\" = { max_in_flight = 1 }")
        .with_tenant("slow", "servers = [\"fake\"]\nrate = \"1/h\"")
        .start()
        .await;
    let names = ["all", "some", "slow"];
    for name in names {
        let api = gateway.as_tenant(name).await;
        assert_eq!(api.call_within_ms(50, "fake", "hold", "").await.status, 504, "{name}");
        for _ in 0..3 {
            assert_eq!(api.call("fake", "pid", "").await.status, 429, "{name}");
        }
    }
    // All is written down together: when this is, the rest is too.
    let all = gateway.as_tenant("all").await;
    within(SOON, "free again", async || {
        (all.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;
    let admin = admin(gateway.setup(), &gateway).await;
    shown(&admin, "/admin/v1/usage?tenant=all", 2).await;
    for name in &names[1..] {
        let usage = shown(&admin, &format!("/admin/v1/usage?tenant={name}"), 1).await;
        assert_eq!((&usage[0]["tool"], &usage[0]["errors"]), (&json!("hold"), &json!(1)), "{name}");
    }
    let refused = gateway
        .metrics()
        .await
        .value("trunkline_calls_total{outcome=\"rate_limited\",server=\"\",tool=\"\"}");
    assert_eq!(refused, Some(3.0), "monitoring sees them");
    gateway.stop().await;
}

#[tokio::test]
async fn a_report_is_taken_from_the_tenants_rate() {
    let setup = Setup::new().without_anonymous().with_tenant("slow", "rate = \"2/h\"");
    let gateway = setup.start().await;
    let slow = gateway.as_tenant("slow").await;
    for _ in 0..2 {
        assert_eq!(slow.get("/v1/usage").await.status, 200);
    }
    let refusal = slow.get("/v1/usage").await;
    assert_eq!(refusal.problem(), refused(429, "rate_limited").for_now());
    assert!(refusal.header("ratelimit").starts_with("\"tenant\";r=0"), "{refusal:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn tenants_that_have_reports_made_keep_neither_each_other_nor_the_operator_waiting() {
    let Some(postgres) = Postgres::shared() else { return };
    let database = postgres.database().await;
    let gateway = setup().with_tenant("third", "servers = []").with_store(&database).start().await;
    let mut tenants = vec![];
    for name in ["acme", "other", "third"] {
        tenants.push(gateway.as_tenant(name).await);
    }
    let admin = admin(gateway.setup(), &gateway).await;
    for tenant in &tenants {
        assert_eq!(tenant.get("/v1/usage").await.status, 200);
    }
    assert_eq!(admin.get("/admin/v1/usage").await.status, 200);
    let mut lock = PgConnection::connect(database.expose()).await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE tenant_usage IN ACCESS EXCLUSIVE MODE")
        .execute(&mut lock)
        .await
        .unwrap();

    let report = |api: &Api, path: &'static str| {
        let api = api.clone();
        tokio::spawn(async move { api.get(path).await })
    };
    let own = |tenant: usize| report(&tenants[tenant], "/v1/usage");
    // Each has one at a time; two of all are made at once, and the operator's besides.
    let (one, others) = (select(own(0), own(0)), select(own(1), own(2)));
    let operators = report(&admin, "/admin/v1/usage");
    let (refusal, one) = one.await.factor_first();
    assert_eq!(refusal.unwrap().problem(), refused(429, "tenant_busy").for_now());
    let (refusal, other) = others.await.factor_first();
    assert_eq!(refusal.unwrap().problem(), refused(503, "overloaded").for_now());
    lock.close().await.unwrap();
    for made in [one.await, other.await, operators.await] {
        assert_eq!(made.unwrap().status, 200);
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
    let owner = KeyOwner::Tenant(trunkline::common::ids::TenantName::parse("acme").unwrap());
    let first = store.list_keys(&owner).await.unwrap()[0].id;
    store.revoke_key(&Actor::cli("test"), &first).await.unwrap();
    serving.setup().new_key("acme").await
}
