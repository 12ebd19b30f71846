//! Subscriptions at a server that for a while cannot be asked.

use tokio::time::timeout;

use super::retry::PAUSE;
use super::tests::{Scene, open};
use super::*;
use crate::backend::changes::WatchError;
use crate::backend::changes::mailbox::{Change, List};
use crate::backend::testing::LINE_LEN_MAX;
use crate::protocol::mcp::ProtocolVersion;

impl Scene {
    /// Answers with more than is taken: nobody knows what it said.
    async fn answer_too_much(&mut self, id: &Value) {
        self.answer(id, json!({"x": "x".repeat(LINE_LEN_MAX)})).await;
    }

    /// Receives the next request and those that follow it at once, which are about resources, and lets each fail.
    async fn fail_all(&mut self) -> Vec<Value> {
        let mut asked = vec![];
        let mut next = Ok(self.asks_in_time().await);
        while let Ok(message) = next {
            self.answer_too_much(&message["id"]).await;
            asked.push(message["params"]["notifications"]["resourceSubscriptions"].clone());
            next = timeout(Duration::from_secs(1), self.peer.receive()).await;
        }
        asked
    }
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_that_could_not_be_asked_for_its_lists_is_asked_again() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"tools": {"listChanged": true}}));
    let filter = json!({"toolsListChanged": true});
    let id = scene.listens(filter.clone()).await;
    scene.answer_too_much(&id).await;
    let began = Instant::now();
    let mut id = scene.listens(filter.clone()).await;
    assert_eq!(began.elapsed().as_secs(), PAUSE.as_secs());
    assert_eq!(scene.mailbox.next().await, Change::List(List::Tools));
    // One that is cut off now and then is not left alone for longer each time.
    for _ in 0..5 {
        scene.acknowledge(&id, filter.clone()).await;
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        scene.answer(&id, json!({"resultType": "complete"})).await;
        id = scene.listens(filter.clone()).await;
        assert_eq!(began.elapsed().as_secs(), PAUSE.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_modern_server_had_agreed_to_is_asked_for_until_it_agrees_again() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"resources": {"subscribe": true}}));
    let uris = ["a", "b", "c", "d", "e"];
    let all = json!({"resourceSubscriptions": uris});
    scene.listener.watch_all(uris.map(str::to_owned)).unwrap();
    let id = scene.listens(all.clone()).await;
    scene.acknowledge(&id, all.clone()).await;
    assert!(scene.listener.settled(Instant::now() + Duration::from_secs(1)).await.is_empty());

    // It ends the subscription, and for a while there is nobody to ask.
    scene.answer(&id, json!({"resultType": "complete"})).await;
    for _ in 0..3 {
        let expected = [json!(uris), json!(["a"]), json!(["b"]), json!(["c"])];
        assert_eq!(scene.fail_all().await, expected, "not all of them one by one");
    }
    // Whoever comes is told so, and is not waited for.
    let came = scene.watch("new");
    assert_eq!(scene.fail_all().await, [json!(["new"])]);
    assert!(matches!(came.await.unwrap(), Err(WatchError::Refused(_))));

    let id = scene.listens(all.clone()).await;
    scene.acknowledge(&id, all).await;
    scene.silence().await;
    assert!(scene.changes.unsettled().is_empty() && scene.changes.watched().len() == uris.len());
}
