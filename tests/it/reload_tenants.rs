//! Tenants of the file that come, change and go while the gateway runs.

use serde_json::json;
use trunkline::common::ids::TenantName;
use trunkline::common::policy::Policy;
use trunkline::store::Actor;

use crate::support::{Api, Setup, eventually};

async fn status(api: &Api) -> u16 {
    api.call("std", "echo", json!({"text": "x"})).await.status
}

async fn becomes(api: &Api, expected: u16) {
    eventually("in force", async || (status(api).await == expected).then_some(())).await;
}

#[tokio::test]
async fn tenants_of_the_file_come_change_and_go() {
    let none = Setup::new().without_anonymous().std();
    let gateway = none.clone().with_tenant("a", "servers = [\"std\"]").start().await;
    let a = gateway.as_tenant("a").await;
    assert_eq!(status(&a).await, 200);
    // Its rights are others now, and there is one more.
    let changed = none.clone().with_tenant("a", "servers = []");
    assert!(gateway.apply(&changed.with_tenant("b", "servers = [\"std\"]")).await);
    becomes(&a, 404).await;
    let b = gateway.as_tenant("b").await;
    becomes(&b, 200).await;
    // Both are gone, and one of them is in the store from now on.
    let store = none.store().await;
    let id = TenantName::parse("b").unwrap();
    let policy = Policy::unlimited();
    store.add_tenant(&Actor::cli("test"), &id, &policy).await.unwrap();
    assert!(gateway.apply(&none).await);
    becomes(&a, 401).await;
    // A tenant that is made does not inherit the keys of another of its name.
    becomes(&b, 401).await;
    let b = gateway.as_tenant("b").await;
    becomes(&b, 200).await;
    // And back in the file, which has the first word.
    assert!(gateway.apply(&none.clone().with_tenant("b", "servers = []")).await);
    becomes(&b, 404).await;
    gateway.stop().await;
}

#[tokio::test]
async fn calls_in_flight_stay_counted_when_a_tenant_changes() {
    let none = Setup::new().without_anonymous().fake("fake");
    let policy = |max| format!("servers = [\"fake\"]\nmax_in_flight = {max}");
    let gateway = none.clone().with_tenant("a", &policy(5)).start().await;
    let a = gateway.as_tenant("a").await;
    let calls: Vec<_> =
        (0..2).map(|_| a.spawn_call("fake", "later", json!({"ms": 2000}))).collect();
    gateway.has_in_flight("fake", 2.0).await;
    assert!(gateway.apply(&none.with_tenant("a", &policy(2))).await);
    eventually("in force", async || {
        (a.call("fake", "raw", "{}").await.status == 429).then_some(())
    })
    .await;
    for call in calls {
        assert_eq!(call.await.unwrap().tool_text(), "later");
    }
    assert_eq!(a.call("fake", "raw", "{}").await.tool_text(), "{}");
    gateway.stop().await;
}

#[tokio::test]
async fn whether_callers_need_a_key_can_change_too() {
    let std = Setup::new().std();
    let gateway = std.clone().start().await;
    assert_eq!(status(&gateway).await, 200);
    assert!(gateway.apply(&std.clone().without_anonymous()).await);
    assert_eq!(status(&gateway).await, 401);
    assert!(gateway.apply(&std).await);
    becomes(&gateway, 200).await;
    gateway.stop().await;
}
