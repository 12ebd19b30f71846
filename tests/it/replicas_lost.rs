//! Replicas that end, hang, or are not what they were, and a store that is away.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, advance, pause, resume};
use trunkline::store::EndedCursor;

use crate::replicas::{is_good, setup, setup_with};
use crate::replicas_proofs::Recorder;
use crate::support::mcp_legacy::{Session, Stream, messages};
use crate::support::{Answer, Api, Database, Gateway, Postgres, Serving, eventually, exists};

/// The replica that opens sessions, as a process, and another.
async fn two(database: &Database) -> (Serving, Api, Gateway) {
    let (owner, other) = tokio::join!(setup(database).serve(), setup(database).start());
    let api = Api::new(owner.addr, None);
    (owner, api, other)
}

async fn end(mut owner: Serving, other: Gateway) {
    owner.signal(Signal::TERM);
    owner.ended().await;
    other.stop().await;
}

fn data_of(answer: &Answer) -> Value {
    messages(answer).pop().unwrap()["error"]["data"].take()
}

#[tokio::test]
async fn when_the_owner_is_gone_its_sessions_begin_again_and_the_rest_goes_on() {
    let database = Database::sqlite();
    let (mut owner, api, other) = two(&database).await;
    let session = Session::open(&api, "/mcp").await.at(&other, "/mcp");
    session.tool_text("own__pid", json!({})).await;
    owner.signal(Signal::KILL);
    owner.ended().await;
    let call = session.call(1, "own__pid", json!({}));
    assert_eq!(Answer::of(call).await.status, 404);
    let uri = json!({"uri": "trunkline:fake/test://x"});
    assert_eq!(session.ask("resources/subscribe", uri).await.status, 404);
    assert_eq!(session.send(json!({"jsonrpc": "2.0", "id": 1, "result": {}})).await.status, 404);
    assert_eq!(Answer::of(session.get()).await.status, 404);
    assert_eq!(session.tool_text("fake__raw", json!({})).await, "{}");
    assert_eq!(session.delete().await.status, 204);
    assert!(!is_good(&session).await);
    other.stop().await;
}

#[tokio::test]
async fn a_call_whose_owner_ends_meanwhile_may_have_run() {
    let database = Database::sqlite();
    let (mut owner, api, other) = two(&database).await;
    let session = Session::open(&api, "/mcp/own").await.at(&other, "/mcp/own");
    let fake = owner.fake("own");
    // One that has not been answered yet, and one that has begun to be.
    let held = tokio::spawn(Answer::of(session.call(1, "hold", json!({}))));
    eventually("held", async || fake.calls_of("hold").pop()).await;
    let log = json!({"method": "notifications/message", "params": {"level": "info", "data": "x"}});
    let call = session.call(2, "say_and_hold", json!({"messages": [log]}));
    let mut stream = Stream::of(call).await;
    assert_eq!(stream.method().await, "notifications/message");
    owner.signal(Signal::KILL);
    owner.ended().await;
    let unknown = json!({"code": "backend_exited", "retryable": false, "executed": "unknown"});
    assert_eq!(data_of(&held.await.unwrap()), unknown);
    let last = stream.message().await;
    assert_eq!((&last["id"], &last["error"]["data"]), (&json!(2), &unknown));
    assert_eq!(stream.next().await, None);
    other.stop().await;
}

#[tokio::test]
async fn an_owner_that_hangs_holds_nobody_up_for_long() {
    let database = Database::sqlite();
    let (owner, api, other) = two(&database).await;
    let session = Session::open(&api, "/mcp").await.at(&other, "/mcp");
    session.tool_text("own__pid", json!({})).await;
    owner.freeze().await;
    let began = Instant::now();
    let call = session.call(1, "own__pid", json!({})).header("trunkline-timeout-ms", "500");
    let late = json!({"code": "deadline_exceeded", "retryable": false, "executed": "unknown"});
    assert_eq!(data_of(&Answer::of(call).await), late);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(session.tool_text("fake__raw", json!({})).await, "{}");
    let cancel = session.notify("notifications/cancelled", json!({"requestId": 9}));
    assert_eq!(cancel.await.status, 202);
    assert_eq!(session.delete().await.status, 204);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    owner.signal(Signal::CONT);
    // It has heard of the end by now, or reads of it.
    let there = session.at(&api, "/mcp");
    eventually("refused", async || (!is_good(&there).await).then_some(())).await;
    end(owner, other).await;
}

/// Its address may belong to something else by then.
#[tokio::test]
async fn what_has_got_the_owners_address_is_not_the_owner() {
    let database = Database::sqlite();
    let recorder = Recorder::start().await;
    let address = format!("replicas.address = \"{}\"", recorder.addr);
    let (owner, other) =
        tokio::join!(setup(&database).set(&address).start(), setup(&database).start());
    let session = Session::open(&owner, "/mcp").await.at(&other, "/mcp");
    let before = recorder.seen().len();
    assert_eq!(Answer::of(session.call(1, "own__pid", json!({}))).await.status, 404);
    let seen = recorder.seen();
    assert_eq!(seen.len(), before + 1);
    // It learns nothing that would let it in.
    let told = &seen[before].headers;
    assert!(told.contains_key("trunkline-replica-proof") && !told.contains_key("mcp-session-id"));
    // The owner hears that its session is in use elsewhere, if not each time.
    assert!(is_good(&session).await && is_good(&session).await);
    let is_ping = |body: &[u8]| body.windows(6).any(|text| text == b"\"ping\"");
    eventually("told", async || recorder.seen().iter().any(|it| is_ping(&it.body)).then_some(()))
        .await;
    let pings = || recorder.seen().iter().filter(|it| is_ping(&it.body)).count();
    assert_eq!(pings(), 1);
    // Also as long as a call goes on, however long that is.
    let fake = other.fake("fake");
    let held = tokio::spawn(session.call(2, "fake__hold", json!({})).send());
    eventually("held", async || fake.calls_of("hold").pop()).await;
    for told in 2..4 {
        pause();
        advance(Duration::from_secs(10)).await;
        resume();
        eventually("told again", async || (pings() == told).then_some(())).await;
    }
    held.abort();
    owner.stop().await;
    other.stop().await;
}

/// Its session is still there: nothing is to begin again.
#[tokio::test]
async fn an_owner_that_takes_nobodys_proof_is_not_gone() {
    let database = Database::sqlite();
    // Tokens are opened by either key, proofs are made with the first.
    let [old, new] = ["old-key-old-key-old-key-old-key-", "new-key-new-key-new-key-new-key-"];
    let setup = |keys: &[&str]| setup_with(&database, &format!("session_keys = {keys:?}"));
    let (owner, other) = tokio::join!(setup(&[old]).start(), setup(&[new, old]).start());
    let session = Session::open(&owner, "/mcp").await.at(&other, "/mcp");
    let answer = Answer::of(session.call(1, "own__pid", json!({}))).await;
    let error = &messages(&answer).pop().unwrap()["error"];
    assert_eq!(
        (&error["code"], &error["data"]["code"]),
        (&json!(503), &json!("server_unavailable"))
    );
    assert_eq!(
        (&error["data"]["retryable"], &error["data"]["executed"]),
        (&json!(true), &json!("no"))
    );
    assert_eq!(Answer::of(session.get()).await.status, 503);
    let refused = "trunkline_forwarded_requests_total{outcome=\"refused\"}";
    assert_eq!(other.metrics().await.value(refused), Some(2.0));
    owner.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_session_that_is_deleted_while_the_store_is_away_is_gone_for_later_replicas_too() {
    let Some(server) = Postgres::start() else { return };
    let database = Database::postgres(&server).await;
    let (owner, other) = tokio::join!(setup(&database).start(), setup(&database).start());
    let session = Session::open(&owner, "/mcp/fake").await;
    let elsewhere = session.at(&other, "/mcp/fake");
    server.down();
    assert_eq!(elsewhere.delete().await.status, 204);
    assert!(!is_good(&elsewhere).await && !is_good(&session).await);
    server.up();
    let store = database.open().await;
    let noted = async || store.ended_sessions(&mut EndedCursor::default()).await.ok()?.pop();
    eventually("written down", noted).await;
    let late = setup(&database).start().await;
    assert!(!is_good(&session.at(&late, "/mcp/fake")).await);
    for gateway in [owner, other, late] {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_store_that_hangs_does_not_hold_up_the_end_for_long() {
    let Some(postgres) = Postgres::start() else { return };
    let database = Database::postgres(&postgres).await;
    let gateway = setup(&database).start().await;
    let session = Session::open(&gateway, "/mcp/own").await;
    postgres.freeze();
    // Something to be written of each kind: what was used, and a session that has ended.
    session.tool_text("pid", json!({})).await;
    let started = gateway.processes();
    assert_eq!(session.delete().await.status, 204);
    // With no server left to be waited for, only the store's time passes, and that as fast as it
    // can. They are there until the gateway has seen their end.
    assert!(gateway.apply(&gateway.setup().clone().without_servers()).await);
    eventually("stopped", async || (!started.iter().any(|pid| exists(*pid))).then_some(())).await;
    pause();
    let began = Instant::now();
    gateway.stop().await;
    let took = began.elapsed();
    resume();
    postgres.thaw();
    // Deployments are told to expect 5 s; to these come ticks of the clock. One after the other,
    // the last words would take 9 s.
    assert!(took < Duration::from_secs(6), "{took:?}");
}
