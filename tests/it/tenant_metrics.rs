//! Metrics by tenant, and of what waits or is dropped.

use serde_json::json;

use crate::support::{Api, Gateway, Setup, eventually};

/// Waits until operators see a series with a value that is wanted.
async fn shows(gateway: &Gateway, series: &str, is_wanted: impl Fn(f64) -> bool) {
    let operator = Api::new(gateway.ops_addr.unwrap(), None);
    eventually(series, async || {
        operator.metrics().await.value(series).filter(|value| is_wanted(*value)).map(drop)
    })
    .await;
}

fn setup() -> Setup {
    Setup::new().set("ops_listen = \"127.0.0.1:0\"")
}

#[tokio::test]
async fn no_caller_reads_the_names_of_tenants() {
    let gateway = Setup::new().std().with_tenant("acme", "servers = [\"*\"]").start().await;
    gateway.as_tenant("acme").await.call("std", "uuid", "{}").await;
    let all = "trunkline_tenant_calls_total{outcome=\"ok\",tenant=\"other\"}";
    eventually("counted", async || {
        let metrics = gateway.metrics().await;
        assert!(!metrics.0.contains("acme"), "{}", metrics.0);
        metrics.value(all).filter(|calls| *calls == 1.0)
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn calls_and_refusals_are_counted_by_tenant() {
    let acme = "servers = [\"*\"]\nlimits = { \"std/uuid\" = { rate = \"1/h\" } }";
    let setup = setup().std().with_tenant("acme", acme);
    let gateway = setup.with_tenant("bolt", "servers = [\"*\"]\nrate = \"1/h\"").start().await;
    let (acme, bolt) = (gateway.as_tenant("acme").await, gateway.as_tenant("bolt").await);
    for _ in 0..3 {
        acme.call("std", "uuid", "{}").await;
        bolt.call("std", "uuid", "{}").await;
    }
    acme.call("std", "fail", json!({"message": "x"})).await;
    for (series, value) in [
        ("trunkline_tenant_calls_total{outcome=\"ok\",tenant=\"acme\"}", 1.0),
        ("trunkline_tenant_calls_total{outcome=\"tool_error\",tenant=\"acme\"}", 1.0),
        ("trunkline_tenant_calls_total{outcome=\"error\",tenant=\"acme\"}", 0.0),
        ("trunkline_tenant_calls_total{outcome=\"ok\",tenant=\"bolt\"}", 1.0),
        // By the limit of one tool, and by that of the tenant as a whole.
        ("trunkline_tenant_refusals_total{tenant=\"acme\"}", 2.0),
        ("trunkline_tenant_refusals_total{tenant=\"bolt\"}", 2.0),
        ("trunkline_tenant_calls_in_flight{tenant=\"acme\"}", 0.0),
    ] {
        shows(&gateway, series, |now| now == value).await;
    }
    gateway.stop().await;
}

#[tokio::test]
async fn calls_that_run_and_wait_are_shown_with_the_longest_wait() {
    let setup = setup().fake_with("fake", &[], "max_in_flight = 1");
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]").start().await;
    let acme = gateway.as_tenant("acme").await;
    acme.call("fake", "raw", "{}").await;
    let calls: Vec<_> = (0..3).map(|_| acme.spawn_call("fake", "hold", "{}")).collect();
    shows(&gateway, "trunkline_tenant_calls_in_flight{tenant=\"acme\"}", |now| now == 3.0).await;
    shows(&gateway, "trunkline_tenant_calls_waiting{tenant=\"acme\"}", |now| now == 2.0).await;
    shows(&gateway, "trunkline_longest_wait_seconds{server=\"fake\"}", |now| now > 0.05).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    shows(&gateway, "trunkline_longest_wait_seconds{server=\"fake\"}", |now| now == 0.0).await;
    shows(&gateway, "trunkline_tenant_calls_waiting{tenant=\"acme\"}", |now| now == 0.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn notifications_that_a_caller_does_not_read_are_counted() {
    let gateway = setup().fake("fake").start().await;
    let series = "trunkline_dropped_notifications_total{server=\"fake\"}";
    shows(&gateway, series, |dropped| dropped == 0.0).await;
    // The caller takes nothing, so at most a mebibyte waits for it.
    let deaf = gateway.with_window(0);
    let call = deaf.mcp("/mcp/fake").call("chatter", json!({"lines": 400, "bytes": 8_000}));
    let unread = call.meta("progressToken", 1).response().await;
    shows(&gateway, series, |dropped| (1.0..400.0).contains(&dropped)).await;
    drop(unread);
    gateway.stop().await;
}
