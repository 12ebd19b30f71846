//! Subscriptions at a server with a rate.

use std::sync::Arc;

use tokio::time::timeout_at;

use super::tests::{Scene, open_with};
use super::*;
use crate::backend::changes::mailbox::Lists;
use crate::backend::queue::{Queue, QueueOptions, RateGate};
use crate::common::ids::TenantId;
use crate::protocol::mcp::ProtocolVersion;

/// A queue before a server that takes one call a minute.
fn one_a_minute() -> Arc<Queue> {
    let gate = Some(Arc::new(RateGate::new("1/min".parse().unwrap())));
    Queue::new(64, QueueOptions { gate, ..QueueOptions::default() })
}

/// Counts the requests that the server gets within ten minutes. Each is answered.
async fn requests(scene: &mut Scene) -> usize {
    let (mut requests, end) = (0, Instant::now() + Duration::from_secs(601));
    while let Ok(message) = timeout_at(end, scene.peer.receive()).await {
        if !message["id"].is_null() {
            requests += 1;
            scene.answer(&message["id"].clone(), json!({})).await;
        }
    }
    requests
}

#[tokio::test(start_paused = true)]
async fn subscriptions_keep_the_rate_of_the_server() {
    let able = json!({"resources": {"subscribe": true}});
    for version in [ProtocolVersion::LATEST_LEGACY, ProtocolVersion::LATEST] {
        let mut scene = open_with(version, able.clone(), one_a_minute());
        scene.listener.watch_all((0..900).map(|n| format!("x-{n:03}"))).unwrap();
        let asked = requests(&mut scene).await;
        assert!((1..=11).contains(&asked), "{asked} requests in ten minutes ({version})");
    }
}

/// Every ten resources of a tenant pass the gate like a call.
#[tokio::test(start_paused = true)]
async fn ten_resources_at_a_modern_server_cost_as_much_as_a_call() {
    let able = json!({"resources": {"subscribe": true}});
    let mut scene = open_with(ProtocolVersion::LATEST, able, one_a_minute());
    scene.listener.watch_all((0..25).map(|n| format!("x-{n:03}"))).unwrap();
    for (number, minute) in [(10, 0), (10, 60), (5, 120)] {
        let message = scene.asks_in_time().await;
        let uris = message["params"]["notifications"]["resourceSubscriptions"].clone();
        assert_eq!(uris.as_array().unwrap().len(), number);
        assert_eq!(scene.began.elapsed().as_secs(), minute);
        scene.acknowledge(&message["id"].clone(), json!({"resourceSubscriptions": uris})).await;
    }
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_nobody_watches_any_more_is_not_requested_when_its_turn_comes() {
    let able = json!({"resources": {"subscribe": true}});
    let mut scene = open_with(ProtocolVersion::LATEST_LEGACY, able, one_a_minute());
    scene.listener.watch_all(["x".to_owned()]).unwrap();
    let id = scene.asked("resources/subscribe", "x").await;
    scene.answer(&id, json!({})).await;
    scene.listener.watch_all(["y".to_owned()]).unwrap();
    sleep(Duration::from_secs(1)).await;
    scene.listener.unwatch("y");
    let other = TenantId::testing("b");
    let other = scene.changes.subscribe(other, Arc::default(), Lists::ALL);
    other.watch_all(["z".to_owned()]).unwrap();
    scene.asked("resources/subscribe", "z").await;
}
