//! Many resources at a modern server.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::timeout;

use super::tests::{Scene, open};
use super::*;
use crate::backend::changes::mailbox::Change;
use crate::common::ids::ServerId;
use crate::protocol::mcp::ProtocolVersion;

/// The listen requests that the server has, by their ids.
#[derive(Default)]
struct Server {
    listening: BTreeMap<String, BTreeSet<String>>,
    /// The resources in all requests so far.
    named: usize,
    requests: usize,
}

impl Server {
    /// Acknowledges requests and notes cancelled ones until no more come.
    async fn serve(&mut self, scene: &mut Scene) {
        while let Ok(message) = timeout(Duration::from_secs(1), scene.peer.receive()).await {
            if message["method"] == "notifications/cancelled" {
                let cancelled = self.listening.remove(&message["params"]["requestId"].to_string());
                assert!(cancelled.is_some(), "{message}");
                continue;
            }
            let filter = message["params"]["notifications"].clone();
            let uris = filter["resourceSubscriptions"].clone();
            let uris: BTreeSet<String> = serde_json::from_value(uris).unwrap();
            self.named += uris.len();
            self.requests += 1;
            self.listening.insert(message["id"].to_string(), uris);
            scene.acknowledge(&message["id"].clone(), filter).await;
        }
    }

    fn watched(&self) -> BTreeSet<String> {
        self.listening.values().flatten().cloned().collect()
    }
}

fn uri(number: usize) -> String {
    format!("x-{number:03}")
}

#[tokio::test(start_paused = true)]
async fn adding_a_resource_does_not_name_all_others_again() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"resources": {"subscribe": true}}));
    let mut server = Server::default();
    for number in 0..900 {
        scene.listener.watch_all([uri(number)]).unwrap();
        server.serve(&mut scene).await;
        assert!(server.listening.len() <= 28, "{} requests", server.listening.len());
    }
    let all: BTreeSet<_> = (0..900).map(uri).collect();
    assert_eq!(server.watched(), all);
    // Each is sent once alone, and a few times with others.
    assert!(server.named <= 4 * 900, "{} resources in {}", server.named, server.requests);
    assert!(server.requests <= 900 + 900 / 7, "{} requests", server.requests);
    let deadline = Instant::now() + Duration::from_secs(1);
    assert!(scene.listener.await_answers(deadline).await.is_empty());

    // Those that nobody watches any more do not stay for long.
    (0..890).for_each(|number| scene.listener.unwatch(&uri(number)));
    server.serve(&mut scene).await;
    assert!(server.watched().len() <= 20, "{:?}", server.watched());
    scene
        .peer
        .send(json!({
            "method": "notifications/resources/updated", "params": {"uri": uri(895)}
        }))
        .await;
    let test = ServerId::parse("test").unwrap();
    assert_eq!(scene.mailbox.next().await, Change::Resource(test, uri(895), None));
    // All at once take one request.
    let before = server.requests;
    scene.listener.watch_all((0..890).map(uri)).unwrap();
    server.serve(&mut scene).await;
    assert_eq!((server.watched(), server.requests - before), (all, 1));
}

#[tokio::test(start_paused = true)]
async fn resources_of_a_request_that_the_server_ends_are_requested_again() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"resources": {"subscribe": true}}));
    let mut server = Server::default();
    for number in 0..3 {
        scene.listener.watch_all([uri(number)]).unwrap();
        server.serve(&mut scene).await;
    }
    let ended = server.listening.iter().find(|(_, uris)| uris.contains(&uri(1)));
    let ended: Value = ended.unwrap().0.parse().unwrap();
    server.listening.remove(&ended.to_string());
    scene.answer(&ended, json!({"resultType": "complete"})).await;
    sleep(Duration::from_secs(10)).await;
    server.serve(&mut scene).await;
    assert_eq!((server.watched().len(), server.requests), (3, 4));
    // Updates between the two requests were missed.
    let test = ServerId::parse("test").unwrap();
    assert_eq!(scene.mailbox.next().await, Change::Resource(test, uri(1), None));
}
