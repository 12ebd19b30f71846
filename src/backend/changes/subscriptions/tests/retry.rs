//! Subscriptions at a server that fails for a while.

use tokio::time::timeout;

use super::retry::PAUSE;
use super::tests::{Scene, open};
use super::*;
use crate::backend::changes::WatchError;
use crate::backend::changes::mailbox::{Change, List};
use crate::backend::testing::LINE_LEN_MAX;
use crate::protocol::mcp::ProtocolVersion;

impl Scene {
    /// Answers with more than the line limit, so that the answer is lost.
    async fn answer_too_much(&mut self, id: &Value) {
        self.answer(id, json!({"x": "x".repeat(LINE_LEN_MAX)})).await;
    }

    /// Receives the next request and those that follow it at once, and makes each fail. Returns the
    /// resources of each.
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
async fn a_failed_request_for_lists_is_retried_at_a_modern_server() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"tools": {"listChanged": true}}));
    let filter = json!({"toolsListChanged": true});
    let id = scene.listens(filter.clone()).await;
    scene.answer_too_much(&id).await;
    let began = Instant::now();
    let mut id = scene.listens(filter.clone()).await;
    assert_eq!(began.elapsed().as_secs(), PAUSE.as_secs());
    assert_eq!(scene.mailbox.next().await, Change::List(List::Tools));
    // The pause does not grow for a stream that is cut now and then.
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
async fn resources_that_a_modern_server_had_agreed_to_are_requested_until_it_agrees_again() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"resources": {"subscribe": true}}));
    let uris = ["a", "b", "c", "d", "e"];
    let all = json!({"resourceSubscriptions": uris});
    scene.listener.watch_all(uris.map(str::to_owned)).unwrap();
    let id = scene.listens(all.clone()).await;
    scene.acknowledge(&id, all.clone()).await;
    assert!(scene.listener.await_answers(Instant::now() + Duration::from_secs(1)).await.is_empty());

    // The server ends the subscription, and then fails for a while.
    scene.answer(&id, json!({"resultType": "complete"})).await;
    for _ in 0..3 {
        let expected = [json!(uris), json!(["a"]), json!(["b"]), json!(["c"])];
        assert_eq!(scene.fail_all().await, expected, "not all of them one by one");
    }
    // A new listener gets the failure at once.
    let came = scene.watch("new");
    assert_eq!(scene.fail_all().await, [json!(["new"])]);
    assert!(matches!(came.await.unwrap(), Err(WatchError::Refused(_))));

    let id = scene.listens(all.clone()).await;
    scene.acknowledge(&id, all).await;
    scene.silence().await;
    assert!(scene.changes.unanswered().is_empty() && scene.changes.watched().len() == uris.len());
}
