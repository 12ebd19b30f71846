//! Subscriptions at a server that the test plays.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::legacy::UNSUBSCRIBES_MAX;
use super::retry::PAUSE;
use super::*;
use crate::backend::About;
use crate::backend::changes::mailbox::{Change, List, Lists as Wanted, Mailbox};
use crate::backend::changes::recipients::Recipients;
use crate::backend::changes::{Subscription, WatchError};
use crate::backend::instance::tools::ToolSet;
use crate::backend::queue::{Queue, QueueOptions};
use crate::backend::testing::{PIPE_LEN, Peer, connect};
use crate::common::ids::{ServerId, TenantId};
use crate::protocol::mcp::ProtocolVersion;
use crate::protocol::mcp::requests::Dialect;

pub(super) struct Scene {
    pub(super) peer: Peer,
    pub(super) changes: Arc<Changes>,
    queue: Arc<Queue>,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) listener: Arc<Subscription>,
    pub(super) began: Instant,
    keeping: JoinHandle<()>,
}

fn server() -> ServerId {
    ServerId::parse("test").unwrap()
}

pub(super) fn open(version: ProtocolVersion, capabilities: Value) -> Scene {
    open_with(version, capabilities, Queue::new(64, QueueOptions::default()))
}

pub(super) fn open_with(version: ProtocolVersion, capabilities: Value, queue: Arc<Queue>) -> Scene {
    let changes = Changes::new(server());
    let mailbox = Arc::new(Mailbox::default());
    let listener =
        Arc::new(changes.subscribe(TenantId::testing("a"), mailbox.clone(), Wanted::ALL));
    let (peer, keeping) = run(&changes, &queue, version, capabilities);
    Scene { peer, changes, queue, mailbox, listener, began: Instant::now(), keeping }
}

/// Starts one instance of a server.
fn run(
    changes: &Arc<Changes>,
    queue: &Arc<Queue>,
    version: ProtocolVersion,
    capabilities: Value,
) -> (Peer, JoinHandle<()>) {
    let (connection, peer) = connect(
        PIPE_LEN,
        Recipients { changes: changes.clone(), ..Recipients::new(server(), None) },
    );
    let capabilities = serde_json::from_value(capabilities).unwrap();
    let ready = Ready {
        connection,
        dialect: Arc::new(Dialect::new(version)),
        about: Arc::new(About { capabilities, ..About::default() }),
        tools: Arc::new(ToolSet::default()),
    };
    let (changes, queue) = (changes.clone(), queue.clone());
    let keeping = async move {
        keep_subscribed(Leader { changes: &changes, queue: &queue, ready: &ready }).await;
    };
    (peer, tokio::spawn(keeping))
}

fn legacy() -> Scene {
    open(ProtocolVersion::LATEST_LEGACY, json!({"resources": {"subscribe": true}}))
}

impl Scene {
    /// Receives a request, which must be this one.
    pub(super) async fn asked(&mut self, method: &str, uri: &str) -> Value {
        let message = self.peer.receive().await;
        assert_eq!((&message["method"], &message["params"]["uri"]), (&json!(method), &json!(uri)));
        message["id"].clone()
    }

    /// Receives the next message, which must arrive.
    pub(super) async fn asks_in_time(&mut self) -> Value {
        let asked = timeout(Duration::from_secs(600), self.peer.receive()).await;
        asked.expect("the server gets no request any more")
    }

    /// Receives a listen request, which must have this filter.
    pub(super) async fn listens(&mut self, filter: Value) -> Value {
        let message = self.asks_in_time().await;
        assert_eq!(message["method"], "subscriptions/listen");
        assert_eq!(message["params"]["notifications"], filter);
        message["id"].clone()
    }

    pub(super) async fn acknowledge(&mut self, id: &Value, notifications: Value) {
        let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
        let params = json!({"notifications": notifications, "_meta": meta});
        let method = "notifications/subscriptions/acknowledged";
        self.peer.send(json!({"method": method, "params": params})).await;
    }

    async fn cancels(&mut self, id: &Value) {
        let message = self.peer.receive().await;
        assert_eq!(message["method"], "notifications/cancelled");
        assert_eq!(&message["params"]["requestId"], id);
    }

    pub(super) async fn silence(&mut self) {
        let message = timeout(Duration::from_secs(60), self.peer.receive()).await;
        assert!(message.is_err(), "{message:?}");
    }

    pub(super) async fn answer(&mut self, id: &Value, result: Value) {
        self.peer.send(json!({"id": id, "result": result})).await;
    }

    pub(super) fn watch(&self, uri: &'static str) -> JoinHandle<Result<(), WatchError>> {
        let listener = self.listener.clone();
        tokio::spawn(
            async move { listener.watch(uri, Instant::now() + Duration::from_secs(120)).await },
        )
    }
}

#[tokio::test(start_paused = true)]
async fn a_legacy_server_gets_a_request_for_each_resource_and_for_no_list() {
    let mut scene = legacy();
    let watching = scene.watch("x");
    let id = scene.asked("resources/subscribe", "x").await;
    assert!(!watching.is_finished());
    scene.answer(&id, json!({})).await;
    assert!(watching.await.unwrap().is_ok());
    scene.listener.unwatch("x");
    let id = scene.asked("resources/unsubscribe", "x").await;
    scene.answer(&id, json!({})).await;
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_instance_of_a_server_is_subscribed_to_what_is_still_watched() {
    let mut scene = legacy();
    for uri in ["x", "y"] {
        let watching = scene.watch(uri);
        let id = scene.asked("resources/subscribe", uri).await;
        scene.answer(&id, json!({})).await;
        watching.await.unwrap().unwrap();
    }
    scene.keeping.abort();
    scene.listener.unwatch("y");
    let able = json!({"resources": {"subscribe": true}});
    (scene.peer, scene.keeping) =
        run(&scene.changes, &scene.queue, ProtocolVersion::LATEST_LEGACY, able);
    let id = scene.asked("resources/subscribe", "x").await;
    // A new watch waits for the answer of this instance.
    let watching = scene.watch("x");
    tokio::task::yield_now().await;
    assert!(!watching.is_finished());
    scene.answer(&id, json!({})).await;
    watching.await.unwrap().unwrap();
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_leaves_and_comes_back_at_once_costs_the_server_nothing() {
    let mut scene = legacy();
    let watching = scene.watch("x");
    let id = scene.asked("resources/subscribe", "x").await;
    scene.answer(&id, json!({})).await;
    watching.await.unwrap().unwrap();
    for _ in 0..10 {
        scene.listener.unwatch("x");
        scene.listener.watch_all(["x".to_owned()]).unwrap();
    }
    scene.silence().await;
    assert!(scene.changes.unanswered().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_leaves_before_the_answer_is_unsubscribed_after_it() {
    let mut scene = legacy();
    let watching = scene.watch("x");
    let id = scene.asked("resources/subscribe", "x").await;
    scene.listener.unwatch("x");
    watching.abort();
    scene.answer(&id, json!({})).await;
    let id = scene.asked("resources/unsubscribe", "x").await;
    scene.answer(&id, json!({})).await;
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_passed_on_and_needs_no_unsubscribe() {
    let mut scene = legacy();
    let watching = scene.watch("x");
    let id = scene.asked("resources/subscribe", "x").await;
    let error = json!({"code": 5, "message": "no", "data": [1]});
    scene.peer.send(json!({"id": id, "error": error})).await;
    let Err(WatchError::Refused(refused)) = watching.await.unwrap() else { panic!() };
    assert_eq!((refused.code, &*refused.message), (5, "no"));
    assert_eq!(refused.data.as_ref().unwrap().get(), "[1]");
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_counts_as_refusing() {
    let mut scene = legacy();
    let watching = scene.watch("x");
    scene.asked("resources/subscribe", "x").await;
    let began = Instant::now();
    assert!(matches!(watching.await.unwrap(), Err(WatchError::Refused(_))));
    assert_eq!(began.elapsed().as_secs(), SUBSCRIBE_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_subscriptions_is_never_asked() {
    for version in [ProtocolVersion::LATEST_LEGACY, ProtocolVersion::LATEST] {
        let mut scene = open(version, json!({"resources": {}}));
        let Err(WatchError::Refused(refused)) = scene.watch("x").await.unwrap() else { panic!() };
        assert_eq!(refused.code, METHOD_NOT_FOUND);
        scene.silence().await;
    }
}

#[tokio::test(start_paused = true)]
async fn at_a_modern_server_the_new_request_starts_before_the_old_one_ends() {
    let capabilities =
        json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true}});
    let mut scene = open(ProtocolVersion::LATEST, capabilities);
    let lists = scene.listens(json!({"toolsListChanged": true})).await;
    scene.acknowledge(&lists, json!({"toolsListChanged": true})).await;
    let both = [scene.watch("x"), scene.watch("y")];
    let first = scene.listens(json!({"resourceSubscriptions": ["x", "y"]})).await;
    assert!(!both[0].is_finished());
    scene.acknowledge(&first, json!({"resourceSubscriptions": ["x", "y"]})).await;
    for watching in both {
        watching.await.unwrap().unwrap();
    }
    let updated = json!({"method": "notifications/resources/updated", "params": {"uri": "y"}});
    scene.peer.send(updated).await;
    let server = ServerId::parse("test").unwrap();
    assert_eq!(scene.mailbox.next().await, Change::Resource(server, "y".to_owned(), None));
    scene.listener.unwatch("x");
    let second = scene.listens(json!({"resourceSubscriptions": ["y"]})).await;
    scene.acknowledge(&second, json!({"resourceSubscriptions": ["y"]})).await;
    scene.cancels(&first).await;
    scene.silence().await;
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_a_modern_server_refuses_silences_no_other() {
    let capabilities = json!({"tools": {"listChanged": true}, "resources": {"subscribe": true}});
    let mut scene = open(ProtocolVersion::LATEST, capabilities);
    let lists = scene.listens(json!({"toolsListChanged": true})).await;
    scene.acknowledge(&lists, json!({"toolsListChanged": true})).await;
    let good = scene.watch("good");
    let id = scene.listens(json!({"resourceSubscriptions": ["good"]})).await;
    scene.acknowledge(&id, json!({"resourceSubscriptions": ["good"]})).await;
    good.await.unwrap().unwrap();
    // Refused by an error, which does not say for which resource, or by leaving a resource out.
    let (bad, fine) = (scene.watch("bad"), scene.watch("fine"));
    let error = json!({"code": 5, "message": "no"});
    let both = scene.listens(json!({"resourceSubscriptions": ["bad", "fine"]})).await;
    scene.peer.send(json!({"id": both, "error": error})).await;
    let alone = scene.listens(json!({"resourceSubscriptions": ["bad"]})).await;
    scene.peer.send(json!({"id": alone, "error": error})).await;
    let new = scene.listens(json!({"resourceSubscriptions": ["fine"]})).await;
    scene.acknowledge(&new, json!({"resourceSubscriptions": ["fine"]})).await;
    assert!(matches!(bad.await.unwrap(), Err(WatchError::Refused(error)) if error.code == 5));
    fine.await.unwrap().unwrap();
    scene.listener.unwatch("fine");
    scene.cancels(&new).await;
    let worse = scene.watch("worse");
    let id = scene.listens(json!({"resourceSubscriptions": ["worse"]})).await;
    scene.acknowledge(&id, json!({"resourceSubscriptions": []})).await;
    assert!(matches!(worse.await.unwrap(), Err(WatchError::Refused(_))));
    scene.cancels(&id).await;
    let updated = json!({"method": "notifications/resources/updated", "params": {"uri": "good"}});
    scene.peer.send(updated).await;
    let server = ServerId::parse("test").unwrap();
    assert_eq!(scene.mailbox.next().await, Change::Resource(server, "good".to_owned(), None));
}

#[tokio::test(start_paused = true)]
async fn one_resource_that_a_legacy_server_does_not_answer_delays_no_other() {
    let mut scene = legacy();
    let hanging = scene.watch("hanging");
    scene.asked("resources/subscribe", "hanging").await;
    let good = scene.watch("good");
    let id = scene.asked("resources/subscribe", "good").await;
    scene.answer(&id, json!({})).await;
    good.await.unwrap().unwrap();
    assert!(!hanging.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_resources_are_never_answered_delays_only_itself() {
    let mut scene = legacy();
    scene.listener.watch_all((0..1000).map(|n| format!("hanging-{n:03}"))).unwrap();
    let mut hanging = 0;
    while let Ok(message) = timeout(Duration::from_secs(1), scene.peer.receive()).await {
        assert_eq!(message["method"], "resources/subscribe");
        hanging += 1;
    }
    assert_eq!(hanging, 4);
    let other = TenantId::testing("b");
    let other = scene.changes.subscribe(other, Arc::default(), Wanted::ALL);
    let began = Instant::now();
    for uri in ["x", "y", "z"] {
        let deadline = Instant::now() + Duration::from_secs(60);
        let (watched, ()) = tokio::join!(other.watch(uri, deadline), async {
            let id = scene.asked("resources/subscribe", uri).await;
            scene.answer(&id, json!({})).await;
        });
        watched.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unanswered_unsubscribes_delay_no_new_listener() {
    let mut scene = legacy();
    let uris: Vec<String> = (0..20).map(|n| format!("left-{n:02}")).collect();
    scene.listener.watch_all(uris.clone()).unwrap();
    for _ in &uris {
        let id = scene.peer.receive().await["id"].clone();
        scene.answer(&id, json!({})).await;
    }
    assert!(scene.listener.await_answers(Instant::now() + Duration::from_secs(1)).await.is_empty());
    uris.iter().for_each(|uri| scene.listener.unwatch(uri));
    for _ in 0..UNSUBSCRIBES_MAX {
        assert_eq!(scene.peer.receive().await["method"], "resources/unsubscribe");
    }
    let came = scene.watch("new");
    let id = scene.asked("resources/subscribe", "new").await;
    scene.answer(&id, json!({})).await;
    came.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_resources_a_modern_server_is_slow_to_refuse_delays_only_itself() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"resources": {"subscribe": true}}));
    let bad: Vec<String> = (0..100).map(|n| format!("bad-{n:02}")).collect();
    scene.listener.watch_all(bad.clone()).unwrap();
    let refused = json!({"code": 5, "message": "no"});
    let all = scene.listens(json!({"resourceSubscriptions": bad})).await;
    scene.peer.send(json!({"id": all, "error": refused})).await;
    let first = scene.listens(json!({"resourceSubscriptions": ["bad-00"]})).await;
    let other = TenantId::testing("b");
    let other = scene.changes.subscribe(other, Arc::default(), Wanted::ALL);
    let watching = tokio::spawn(async move {
        let watched = other.watch("x", Instant::now() + Duration::from_secs(60)).await;
        (watched, other)
    });
    tokio::task::yield_now().await;
    scene.peer.send(json!({"id": first, "error": refused})).await;
    let id = scene.listens(json!({"resourceSubscriptions": ["x"]})).await;
    scene.acknowledge(&id, json!({"resourceSubscriptions": ["x"]})).await;
    watching.await.unwrap().0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_that_ends_the_subscription_is_asked_again_after_a_pause() {
    let mut scene = open(ProtocolVersion::LATEST, json!({"tools": {"listChanged": true}}));
    let filter = json!({"toolsListChanged": true});
    let id = scene.listens(filter.clone()).await;
    scene.acknowledge(&id, filter.clone()).await;
    let began = Instant::now();
    scene.answer(&id, json!({"resultType": "complete"})).await;
    let id = scene.listens(filter).await;
    assert!(began.elapsed() >= PAUSE);
    // Changes between the two requests were missed.
    assert_eq!(scene.mailbox.next().await, Change::List(List::Tools));
    // A server that refuses is not asked again.
    scene.peer.send(json!({"id": id, "error": {"code": -32601, "message": "no"}})).await;
    scene.silence().await;
}
