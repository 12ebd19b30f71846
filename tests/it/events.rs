//! Events: each thing that happens is told to whoever listens.

use reqwest::Method;
use serde_json::json;
use trunkline::events::{Event, Kinds, Listener};

use crate::support::{Answer, Gateway, Setup, in_time};

fn in_words(event: &Event) -> String {
    match event {
        Event::CallArrived(call) => format!("{} arrived", call.target),
        Event::CallQueued { ahead, .. } => format!("queued, {} of {}", ahead.taken, ahead.slots),
        Event::CallDispatched { instance, attempt, .. } => {
            format!("sent to #{instance}, {attempt}")
        }
        Event::CallEnded(call) => {
            format!("{} ended: {}", call.target, call.code.unwrap_or(call.outcome.as_str()))
        }
        Event::RequestEnded(request) => format!("{} ended", request.traced.method),
        Event::InstanceChanged(it) => format!("{}: {:?}", it.server, it.change),
        Event::ConfigurationChanged { servers, .. } => format!("new servers: {servers}"),
        Event::ConfigurationRejected { .. } => "rejected".to_owned(),
        Event::LimitHit { code, .. } => format!("limit: {code}"),
    }
}

/// Waits for these events, in this order, with any others between them.
async fn told(events: &mut Listener, expected: &[&str]) {
    for expected in expected {
        let wait = async {
            loop {
                let heard = events.next().await;
                assert_eq!(heard.lost, 0);
                if in_words(&heard.event).starts_with(expected) {
                    return;
                }
            }
        };
        in_time(expected, wait).await;
    }
}

async fn start() -> (Gateway, Setup) {
    let setup = Setup::new().fake_with("fake", &[], "max_in_flight = 1");
    let setup = setup.with_tenant("acme", "servers = [\"*\"]\nrate = \"1/h\"");
    let gateway = setup.clone().start().await;
    assert_eq!(gateway.call("fake", "raw", "{}").await.status, 200);
    (gateway, setup)
}

#[tokio::test]
async fn each_step_of_a_call_is_told() {
    let (gateway, _) = start().await;
    let mut events = gateway.events.listen(Kinds::ALL, 1000);
    let acme = gateway.as_tenant("acme").await;
    acme.call("fake", "raw", "{}").await;
    told(&mut events, &["raw arrived", "sent to #0, 1", "raw ended: ok"]).await;
    acme.call("fake", "raw", "{}").await;
    told(&mut events, &["raw ended: rate_limited", "limit: rate_limited"]).await;
    let held = gateway.spawn_call("fake", "hold", "{}");
    told(&mut events, &["hold arrived", "sent to #0, 1"]).await;
    gateway.call_within_ms(100, "fake", "raw", json!({})).await;
    told(&mut events, &["raw arrived", "queued, 1 of 1", "raw ended: deadline_exceeded"]).await;
    held.abort();
    told(&mut events, &["hold ended: cancelled"]).await;
    gateway.stop().await;
}

#[tokio::test]
async fn changes_of_instances_and_of_the_configuration_are_told() {
    let (gateway, setup) = start().await;
    let mut events = gateway.events.listen(Kinds::ALL, 1000);
    let admin = gateway.with_key(&gateway.setup().new_admin_key().await);
    let replace = admin.url("/admin/v1/servers/fake/instances/0/replace");
    let replaced = Answer::of(admin.client.request(Method::POST, replace)).await;
    assert_eq!(replaced.status, 200, "{replaced:?}");
    told(&mut events, &["fake: Ready", "fake: Drained"]).await;
    let broken = setup.clone().raw_server("gone", "command = \"/no/such/program\"");
    assert!(gateway.apply(&broken).await);
    let changes = ["new servers: 1 added", "gone: Starting", "gone: Failed", "gone: Quarantined"];
    told(&mut events, &changes).await;
    assert!(!gateway.apply(&setup.clone().raw("nonsense = 1\n")).await);
    told(&mut events, &["rejected"]).await;
    gateway.stop().await;
}
