//! A tenant meets its own limits, and learns where it stands.

use std::time::Duration;

use serde_json::json;
use trunkline::ids::TenantId;
use trunkline::policy::Policy;
use trunkline::store::Actor;

use crate::support::{Answer, Api, Setup, refused, within};

const SOON: Duration = Duration::from_secs(10);

fn setup() -> Setup {
    Setup::new().without_anonymous().std()
}

async fn echo(api: &Api) -> Answer {
    api.call("std", "echo", r#"{"text":"x"}"#).await
}

#[tokio::test]
async fn a_rate_is_kept_and_its_state_is_told() {
    let policy = "rate = \"2/h\"\nservers = [\"std\"]\nlimits.\"std/echo\" = { rate = \"1/h\" }";
    let gateway = setup().with_tenant("acme", policy).with_tenant("other", "servers = [\"std\"]");
    let gateway = gateway.start().await;
    let acme = gateway.as_tenant("acme").await;
    let first = echo(&acme).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("ratelimit-policy"), r#""std/echo";q=1;w=3600, "tenant";q=2;w=3600"#);
    assert_eq!(first.header("ratelimit"), r#""std/echo";r=0;t=3600, "tenant";r=1;t=1800"#);

    let refusal = echo(&acme).await;
    assert_eq!(refusal.problem(), refused(429, "rate_limited").for_now());
    assert_eq!(refusal.header("ratelimit"), r#""std/echo";r=0;t=3600"#);
    assert!(refusal.retry_after().is_some_and(|after| (3500..=3600).contains(&after)));
    assert!(refusal.detail().contains("`std/echo`"), "{}", refusal.detail());
    // The narrower limit refused first: nothing was taken from the wider one.
    assert_eq!(acme.call("std", "uuid", "").await.header("ratelimit"), r#""tenant";r=0;t=1800"#);
    assert_eq!(
        acme.call("std", "uuid", "").await.problem(),
        refused(429, "rate_limited").for_now()
    );

    // Over MCP the same limit says the same.
    let over_mcp = acme.mcp("/mcp/std").call("uuid", json!({})).send().await;
    let error = over_mcp.error();
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(429), &json!("rate_limited")));
    assert!(error["data"]["retryAfterMs"].as_u64().is_some_and(|ms| ms > 1_000_000), "{error}");

    let other = echo(&gateway.as_tenant("other").await).await;
    assert_eq!((other.status, other.header("ratelimit")), (200, ""));
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
    assert_eq!(other.call("fake", "pid", "").await.status, 200);
    within(SOON, "free again", async || {
        (acme.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_change_of_limits_is_felt_while_the_gateway_runs() {
    let gateway = setup().start().await;
    let (store, actor) = (gateway.setup().store().await, Actor::cli("test"));
    let id = TenantId::parse("acme").unwrap();
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
    let id = trunkline::keys::ApiKey::parse(&key).unwrap().id();
    gateway.setup().store().await.revoke_key(&Actor::cli("test"), &id).await.unwrap();
    let last = stream.next().await;
    assert_eq!(last["result"]["resultType"], "complete", "{last}");
    assert_eq!(stream.next_or_end().await, None);
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
    let warnings =
        |log: Vec<String>| log.iter().filter(|line| line.contains("is shared by")).count();
    assert_eq!(warnings(serving.log()), 1, "{:?}", serving.log());
    serving.signal(rustix::process::Signal::TERM);
    assert_eq!(serving.ended().await, Some(0));
}
