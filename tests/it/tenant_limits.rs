//! A tenant meets its own limits, and learns where it stands.

use std::time::Duration;

use serde_json::{Value, json};
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::store::{Actor, KeyOwner};

use crate::support::mcp_legacy::Session;
use crate::support::{Answer, Api, Setup, refused, within};

const SOON: Duration = Duration::from_secs(10);

fn setup() -> Setup {
    Setup::new().without_anonymous().std()
}

async fn echo(api: &Api) -> Answer {
    api.call("std", "echo", r#"{"text":"x"}"#).await
}

/// Returns what is left of the rates, with times rounded up to a minute: a busy machine takes a
/// while.
fn left(answer: &Answer) -> String {
    let mut parts = answer.header("ratelimit").split(";t=");
    let mut rounded = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let seconds: u64 = part[..end].parse().unwrap();
        rounded += &format!(";t={}{}", seconds.div_ceil(60) * 60, &part[end..]);
    }
    rounded
}

#[tokio::test]
async fn a_rate_is_kept_and_its_state_is_told() {
    let policy = "rate = \"4/h\"\nservers = [\"std\"]\nlimits.\"std/echo\" = { rate = \"1/h\" }";
    let gateway = setup().with_tenant("acme", policy).with_tenant("other", "servers = [\"std\"]");
    let gateway = gateway.start().await;
    let acme = gateway.as_tenant("acme").await;
    let first = echo(&acme).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("ratelimit-policy"), r#""std/echo";q=1;w=3600, "tenant";q=4;w=3600"#);
    assert_eq!(left(&first), r#""std/echo";r=0;t=3600, "tenant";r=3;t=900"#);

    let refusal = echo(&acme).await;
    assert_eq!(refusal.problem(), refused(429, "rate_limited").for_now());
    // The tenant was charged before the tool was looked for.
    assert_eq!(left(&refusal), r#""std/echo";r=0;t=3600, "tenant";r=2;t=1800"#);
    assert!(refusal.retry_after().is_some_and(|after| (3500..=3600).contains(&after)));
    assert!(refusal.detail().contains("`std/echo`"), "{}", refusal.detail());
    let (limit, wait) = (&refusal.json()["limit"], refusal.json()["retry_after_ms"].clone());
    assert_eq!(without_reset(limit), rate("std/echo", 1, 1, "1/h"));
    assert_eq!(limit["reset_ms"], wait);
    assert!(wait.as_u64().is_some_and(|ms| (3_500_000..=3_600_000).contains(&ms)), "{wait}");
    // So is what turns out to be a mistake.
    let unknown = acme.call("std", "nothing", "").await;
    assert_eq!((unknown.status, left(&unknown)), (404, r#""tenant";r=1;t=2700"#.to_owned()));
    let broken = acme.call("std", "echo", "{").await;
    assert_eq!((broken.status, left(&broken)), (400, r#""tenant";r=0;t=900"#.to_owned()));
    assert_eq!(
        acme.call("std", "uuid", "").await.problem(),
        refused(429, "rate_limited").for_now()
    );

    // Over MCP the same limit says the same.
    let over_mcp = acme.mcp("/mcp/std").call("uuid", json!({})).send().await;
    let error = over_mcp.error();
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(429), &json!("rate_limited")));
    assert!(error["data"]["retryAfterMs"].as_u64().is_some_and(|ms| ms > 100_000), "{error}");
    assert_eq!(without_reset(&error["data"]["limit"]), rate("tenant", 4, 4, "4/h"));

    let other = echo(&gateway.as_tenant("other").await).await;
    assert_eq!((other.status, other.header("ratelimit")), (200, ""));
    gateway.stop().await;
}

/// Returns a rate as refusals and `GET /v1/limits` show it.
fn rate(scope: &str, value: u64, used: u64, rate: &str) -> Value {
    json!({"name": "rate", "scope": scope, "value": value, "used": used, "rate": rate})
}

/// Returns a limit without the time that passes.
fn without_reset(limit: &Value) -> Value {
    let mut limit = limit.clone();
    limit.as_object_mut().unwrap().remove("reset_ms");
    limit
}

#[tokio::test]
async fn a_caller_sees_all_its_limits_and_what_it_uses_of_them() {
    let policy = "rate = \"9/h\"\nservers = [\"std\", \"own\"]\n\
                  limits.\"std/echo\" = { rate = \"2/min\", burst = 5, max_in_flight = 3 }";
    let setup = setup().fake_with("own", &[], "sharing = \"session\"");
    let gateway = setup.with_tenant("acme", policy).start().await;
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(echo(&acme).await.status, 200);
    let key = "kept-1";
    let kept = acme.post("std", "echo", r#"{"text":"x"}"#).header("idempotency-key", key);
    assert_eq!(Answer::of(kept).await.status, 200);

    let answer = acme.get("/v1/limits").await;
    assert_eq!((answer.status, answer.json()["tenant"].clone()), (200, json!("acme")));
    let named = |name: &str, scope: &str| {
        let limits = answer.json()["limits"].as_array().unwrap().clone();
        let is_it = |limit: &&Value| {
            limit["name"] == name && limit["scope"].as_str().unwrap_or_default() == scope
        };
        let found = limits.iter().find(is_it).unwrap_or_else(|| panic!("no {name}: {answer:?}"));
        without_reset(found)
    };
    assert_eq!(named("rate", "tenant"), rate("tenant", 9, 2, "9/h"));
    assert_eq!(named("rate", "std/echo"), rate("std/echo", 5, 2, "2/min"));
    for (name, scope, value, used) in [
        ("in_flight", "tenant", json!(256), 0),
        ("in_flight", "std/echo", json!(3), 0),
        ("list_rate", "tenant", json!(90), 1),
        ("accepted_calls", "", json!(1000), 0),
        ("accepted_batches", "", json!(100), 0),
        ("records", "", json!(1_000_000), 1),
        ("streams", "", json!(1024), 0),
        ("request_bytes", "", json!(32 * 1024 * 1024), 0),
        ("sessions", "own", json!(75), 0),
    ] {
        let limit = named(name, scope);
        assert_eq!((&limit["value"], &limit["used"]), (&value, &json!(used)), "{limit}");
    }
    assert_eq!(named("unsent_bytes", "")["value"], json!(32 * 1024 * 1024));
    gateway.stop().await;
}

#[tokio::test]
async fn calls_in_flight_are_counted_until_the_server_is_done_with_them() {
    let gateway = Setup::new()
        .without_anonymous()
        .fake("fake")
        .with_tenant("acme", "max_in_flight = 1\nservers = [\"fake\"]")
        .with_tenant("other", "servers = [\"fake\"]")
        .start()
        .await;
    let [acme, other] = [gateway.as_tenant("acme").await, gateway.as_tenant("other").await];
    // It is given up by its caller, and the server goes on with it.
    let given_up = acme.call_within_ms(50, "fake", "hold", "").await;
    assert_eq!(given_up.status, 504);
    let refusal = acme.call("fake", "pid", "").await;
    assert_eq!(refusal.problem(), refused(429, "tenant_busy").for_now());
    assert_eq!(refusal.retry_after(), Some(1));
    let in_flight = json!({"name": "in_flight", "scope": "tenant", "value": 1, "used": 1});
    assert_eq!(
        (&refusal.json()["limit"], &refusal.json()["retry_after_ms"]),
        (&in_flight, &json!(1000))
    );
    let limits = acme.get("/v1/limits").await.json();
    assert_eq!(limits["limits"][0], in_flight, "{limits}");
    assert_eq!(other.call("fake", "pid", "").await.status, 200);
    within(SOON, "free again", async || {
        (acme.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn whoever_is_busy_or_failed_learns_where_it_stands_and_pays_nothing_for_a_refusal() {
    let policy = "max_in_flight = 1\nrate = \"9/h\"\nservers = [\"fake\"]";
    let setup = Setup::new().without_anonymous().fake("fake").with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    let session = Session::open(&acme, "/mcp/fake").await;
    let given_up = acme.call_within_ms(50, "fake", "hold", "").await;
    assert_eq!((given_up.status, left(&given_up)), (504, r#""tenant";r=8;t=420"#.to_owned()));

    // The server goes on with it for a while.
    for _ in 0..3 {
        let refusal = acme.call("fake", "pid", "").await;
        assert_eq!(refusal.problem(), refused(429, "tenant_busy").for_now());
        assert_eq!(refusal.header("ratelimit-policy"), r#""tenant";q=9;w=3600"#);
        assert_eq!(left(&refusal), r#""tenant";r=8;t=420"#);
    }
    let modern = acme.mcp("/mcp/fake").call("pid", json!({})).send().await;
    let legacy = Answer::of(session.call(1, "pid", json!({}))).await;
    for (error, headers) in
        [(modern.error(), &modern.headers), (legacy.json()["error"].clone(), &legacy.headers)]
    {
        assert_eq!(error["data"]["code"], "tenant_busy", "{error}");
        let left = headers["ratelimit"].to_str().unwrap();
        assert!(left.starts_with(r#""tenant";r=8;t="#), "{left}");
    }
    let free = within(SOON, "free again", async || {
        Some(acme.call("fake", "pid", "").await).filter(|answer| answer.status == 200)
    });
    assert_eq!(left(&free.await), r#""tenant";r=7;t=840"#);
    // What the server itself says, too.
    let failed = acme.call("fake", "error", r#"{"code":5}"#).await;
    assert_eq!((failed.status, left(&failed)), (502, r#""tenant";r=6;t=1200"#.to_owned()));
    gateway.stop().await;
}

#[tokio::test]
async fn a_change_of_limits_is_felt_while_the_gateway_runs() {
    let gateway = setup().start().await;
    let (store, actor) = (gateway.setup().store().await, Actor::cli("test"));
    let id = TenantName::parse("acme").unwrap();
    let policy = |text: &str| serde_json::from_str::<Policy>(text).unwrap();
    store.add_tenant(&actor, &id, &policy(r#"{"servers":["std"]}"#)).await.unwrap();
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(echo(&acme).await.status, 200);

    store.set_tenant(&actor, &id, &policy(r#"{"servers":["std"],"rate":"1/h"}"#)).await.unwrap();
    within(SOON, "limited", async || (echo(&acme).await.status == 429).then_some(())).await;
    store.set_tenant(&actor, &id, &policy(r#"{"servers":["std/uuid"]}"#)).await.unwrap();
    within(SOON, "not granted", async || (echo(&acme).await.status == 404).then_some(())).await;
    assert_eq!(acme.call("std", "uuid", "").await.status, 200);
    store.remove_tenant(&actor, &id).await.unwrap();
    within(SOON, "unknown", async || (echo(&acme).await.status == 401).then_some(())).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_stream_ends_when_the_rights_that_opened_it_do() {
    let gateway = setup().with_tenant("acme", "servers = [\"std\"]").start().await;
    let key = gateway.new_key("acme").await;
    let mcp = gateway.with_key(&key).mcp("/mcp");
    let (mut stream, _) = mcp.listen("1", json!({"toolsListChanged": true})).await;
    let id = trunkline::common::keys::ApiKey::parse(&key).unwrap().id();
    gateway.setup().store().await.revoke_key(&Actor::cli("test"), &id).await.unwrap();
    let last = stream.next().await;
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
    assert_eq!(stream.next_or_end().await, None);

    let owner = KeyOwner::Tenant(TenantName::parse("acme").unwrap());
    let soon = jiff::Timestamp::now().as_millisecond() + 2000;
    let (store, actor) = (gateway.setup().store().await, Actor::cli("test"));
    let key = store.create_key(&actor, &owner, None, Some(soon)).await.unwrap().key;
    let mcp = gateway.with_key(key.expose()).mcp("/mcp");
    let (mut stream, _) = mcp.listen("1", json!({"toolsListChanged": true})).await;
    assert_eq!(stream.next().await["result"]["resultType"], "complete");
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_hears_no_more_of_what_is_no_longer_granted() {
    let setup = Setup::new().without_anonymous().talker("talk", "legacy").talker("more", "legacy");
    let gateway = setup.with_tenant("other", "servers = [\"*\"]").start().await;
    let (store, actor) = (gateway.setup().store().await, Actor::cli("test"));
    let id = TenantName::parse("acme").unwrap();
    let policy = |text: &str| serde_json::from_str::<Policy>(text).unwrap();
    let both = policy(r#"{"servers":["talk", "more"]}"#);
    store.add_tenant(&actor, &id, &both).await.unwrap();
    let acme = gateway.as_tenant("acme").await;
    let session = Session::open(&acme, "/mcp").await;
    for server in ["talk", "more"] {
        let uri = format!("trunkline:{server}/mem:///a");
        session.result("resources/subscribe", json!({"uri": uri})).await;
    }
    let mut stream = session.listen().await;
    store.set_tenant(&actor, &id, &policy(r#"{"servers":["more"]}"#)).await.unwrap();
    while stream.next().await.is_some() {}

    // A new stream of the same session: of the two, only one is still heard of.
    let other = gateway.as_tenant("other").await;
    let mut stream = session.listen().await;
    for server in ["talk", "more"] {
        let touch = other.call(server, "touch", r#"{"uri":"mem:///a"}"#).await;
        assert_eq!(touch.status, 200);
    }
    let news = stream.message().await;
    assert_eq!(news["params"]["uri"], "trunkline:more/mem:///a", "{news}");
    gateway.stop().await;
}

#[tokio::test]
async fn an_operator_is_warned_of_a_legacy_server_that_several_tenants_share() {
    let setup = Setup::new()
        .without_anonymous()
        .talker("unsaid", "legacy")
        .talker_with("said", "legacy", &[], "sharing = \"shared\"")
        .talker("modern", "modern")
        .talker("alone", "legacy")
        .with_tenant("one", "servers = [\"*\"]")
        .with_tenant("two", "servers = [\"unsaid\", \"said\", \"modern\"]");
    let mut serving = setup.serve().await;
    serving.logged("server `unsaid` is shared by 2 tenants").await;
    serving.signal(rustix::process::Signal::TERM);
    assert_eq!(serving.ended().await, Some(0));
    let log = serving.log();
    assert_eq!(log.iter().filter(|line| line.contains("is shared by")).count(), 1, "{log:?}");
}
