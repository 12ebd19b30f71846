//! Several gateways stand for one: a session that one of them has opened is served by all.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::mcp_legacy::{Session, Stream, text_of};
use crate::support::{Answer, Database, Fake, Gateway, Setup, eventually, in_time, is_alive};

const KEYS: &str = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";
const OWN: &str = "sharing = \"session\"";
const WATCHED: &str =
    r#"capabilities={"tools":{},"logging":{},"resources":{"subscribe":true,"listChanged":true}}"#;
const CANCELLED: &str = "notifications/cancelled";

/// One of several, with a server that all share and one that each session has its own of.
pub fn setup(database: &Database) -> Setup {
    setup_with(database, KEYS)
}

/// Sets two replicas up with other keys.
pub fn setup_with(database: &Database, keys: &str) -> Setup {
    let setup = Setup::new().with_store(&database.url).set(keys);
    let setup = setup.set("replicas.listen = \"127.0.0.1:0\"");
    setup.fake_with("fake", &[WATCHED], "").fake_with("own", &[WATCHED], OWN)
}

pub async fn two(database: &Database) -> [Gateway; 2] {
    let (one, other) = tokio::join!(setup(database).start(), setup(database).start());
    [one, other]
}

pub async fn stop(gateways: [Gateway; 2]) {
    for gateway in gateways {
        gateway.stop().await;
    }
}

/// Returns whether the session can be used there.
pub async fn is_good(session: &Session) -> bool {
    let answer = session.ask("ping", json!({})).await;
    assert!([200, 404].contains(&answer.status), "{answer:?}");
    answer.status == 200
}

/// How many requests a gateway has sent on, by what became of them.
async fn forwarded(gateway: &Gateway, outcome: &str) -> f64 {
    let series = format!("trunkline_forwarded_requests_total{{outcome=\"{outcome}\"}}");
    gateway.metrics().await.value(&series).unwrap_or_default()
}

fn answer(question: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept"}})
}

async fn held(fake: &Fake, n: usize) {
    eventually("held", async || (fake.calls_of("hold").len() == n).then_some(())).await;
}

#[tokio::test]
async fn what_all_replicas_have_is_served_where_it_is_asked_for() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp").await.at(&other, "/mcp");
    assert_eq!(session.tool_text("fake__raw", json!({})).await, "{}");
    assert_eq!(other.fake("fake").calls_of("raw").len(), 1);
    assert!(owner.fake("fake").calls_of("raw").is_empty());
    assert!(is_good(&session).await);
    assert_eq!(forwarded(&other, "answered").await, 0.0);
    stop([owner, other]).await;
}

#[tokio::test]
async fn a_process_of_the_sessions_own_is_reached_through_every_replica() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    for (path, prefix) in [("/mcp", "own__"), ("/mcp/own", "")] {
        let session = Session::open(&owner, path).await;
        let elsewhere = session.at(&other, path);
        let pid = elsewhere.tool_text(&format!("{prefix}pid"), json!({})).await;
        assert_eq!(session.tool_text(&format!("{prefix}pid"), json!({})).await, pid);
        let listed = elsewhere.result("tools/list", json!({})).await;
        let name = json!(format!("{prefix}raw"));
        assert!(listed["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == name));
        // The server's own errors come through as they are.
        let error = json!({"name": format!("{prefix}error"), "arguments": {"code": 7}});
        assert_eq!(elsewhere.error("tools/call", error).await["code"], 7);
    }
    assert!(other.fake("own").pids().is_empty());
    assert_eq!(forwarded(&other, "answered").await, 6.0);
    stop([owner, other]).await;
}

#[tokio::test]
async fn questions_and_their_answers_go_through_any_replica() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open_with(&owner, "/mcp/own", json!({"elicitation": {}})).await;
    let elsewhere = session.at(&other, "/mcp/own");
    for (asked, answers) in
        [(&elsewhere, &elsewhere), (&elsewhere, &session), (&session, &elsewhere)]
    {
        let question = json!({"id": 1, "method": "elicitation/create", "params": {"message": "?"}});
        let call = asked.call(1, "question", json!({"question": question}));
        let mut stream = Stream::of(call).await;
        let question = stream.message().await;
        assert_eq!(question["method"], "elicitation/create");
        assert_eq!(answers.send(answer(&question)).await.status, 202);
        let result = stream.message().await;
        assert!(text_of(&result["result"]).contains("accept"), "{result}");
        assert_eq!(stream.next().await, None);
    }
    assert_eq!(elsewhere.notify("notifications/roots/list_changed", json!({})).await.status, 202);
    let fake = owner.fake("own");
    let told = async || fake.received_of("notifications/roots/list_changed").pop();
    eventually("told of its roots", told).await;
    stop([owner, other]).await;
}

#[tokio::test]
async fn a_call_is_cancelled_through_any_replica_wherever_it_runs() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp/fake").await;
    let elsewhere = session.at(&other, "/mcp/fake");
    for (runs, at, cancels) in [(&session, &owner, &elsewhere), (&elsewhere, &other, &session)] {
        let fake = at.fake("fake");
        let call = tokio::spawn(Answer::of(runs.call("a", "hold", json!({}))));
        held(&fake, 1).await;
        // Replicas hear of new ones within two seconds.
        eventually("cancelled", async || {
            let cancel = json!({"requestId": "a"});
            assert_eq!(cancels.notify(CANCELLED, cancel).await.status, 202);
            fake.received_of(CANCELLED).pop()
        })
        .await;
        assert_eq!(call.await.unwrap().body, b"");
    }
    stop([owner, other]).await;
}

#[tokio::test]
async fn calls_that_are_cancelled_all_at_once_through_another_replica_all_end() {
    const CALLS: usize = 64;
    let database = Database::sqlite();
    let many = || setup(&database).fake_with("many", &[], "max_in_flight = 128").start();
    let (owner, other) = tokio::join!(many(), many());
    let session = Session::open(&owner, "/mcp/many").await;
    let elsewhere = session.at(&other, "/mcp/many");
    let calls = (0..CALLS).map(|id| Answer::of(session.call(id, "hold", json!({}))));
    let calls: JoinSet<_> = calls.collect();
    let fake = owner.fake("many");
    held(&fake, CALLS).await;
    let cancels = (0..CALLS).map(|id| elsewhere.notify(CANCELLED, json!({"requestId": id})));
    assert!(join_all(cancels).await.iter().all(|noted| noted.status == 202));
    let answers = in_time("all are cancelled", calls.join_all()).await;
    assert!(answers.iter().all(|answer| answer.body == b""), "{answers:?}");
    stop([owner, other]).await;
}

#[tokio::test]
async fn what_is_watched_through_one_replica_is_told_through_any() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp/fake").await;
    let elsewhere = session.at(&other, "/mcp/fake");
    let uri = json!({"uri": "test://x"});
    assert_eq!(elsewhere.result("resources/subscribe", uri.clone()).await, json!({}));
    let mut stream = elsewhere.listen().await;
    let updated = json!({"method": "notifications/resources/updated", "params": uri});
    owner.call("fake", "say", json!({"messages": [updated]})).await.tool_text();
    assert_eq!(stream.message().await, updated);
    assert_eq!(elsewhere.result("resources/unsubscribe", uri).await, json!({}));
    let fake = owner.fake("fake");
    let left = async || fake.received_of("resources/unsubscribe").pop();
    eventually("unsubscribed", left).await;
    assert!(other.fake("fake").received_of("resources/subscribe").is_empty());
    // A replica that ends does not wait for streams of others.
    other.stop().await;
    assert_eq!(stream.next().await, None);
    owner.stop().await;
}

#[tokio::test]
async fn a_log_level_holds_in_all_replicas() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp/own").await;
    let level = json!({"level": "error"});
    let elsewhere = session.at(&other, "/mcp/own");
    assert_eq!(elsewhere.result("logging/setLevel", level.clone()).await, json!({}));
    let told = owner.fake("own").received_of("logging/setLevel");
    assert_eq!(told.iter().map(|it| &it["params"]["level"]).collect::<Vec<_>>(), ["error"]);
    stop([owner, other]).await;
}

#[tokio::test]
async fn a_session_that_is_deleted_anywhere_is_gone_everywhere() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp/own").await;
    let pid: i32 = session.tool_text("pid", json!({})).await.parse().unwrap();
    let elsewhere = session.at(&other, "/mcp/own");
    assert_eq!(elsewhere.delete().await.status, 204);
    assert!(!is_good(&elsewhere).await && !is_good(&session).await);
    eventually("its process is gone", async || (!is_alive(pid)).then_some(())).await;
    // Also in one that was not there yet.
    let late = setup(&database).start().await;
    assert!(!is_good(&session.at(&late, "/mcp/own")).await);

    // Where it was opened, another replica need not be known by then: it learns by the store.
    let session = Session::open(&owner, "/mcp/fake").await;
    let elsewhere = [session.at(&other, "/mcp/fake"), session.at(&late, "/mcp/fake")];
    assert!(is_good(&elsewhere[0]).await && is_good(&elsewhere[1]).await);
    assert_eq!(session.delete().await.status, 204);
    for session in &elsewhere {
        eventually("refused", async || (!is_good(session).await).then_some(())).await;
    }
    late.stop().await;
    stop([owner, other]).await;
}

#[tokio::test]
async fn a_session_whose_process_crashed_is_gone_everywhere() {
    let database = Database::sqlite();
    let [owner, other] = two(&database).await;
    let session = Session::open(&owner, "/mcp/own").await;
    let elsewhere = session.at(&other, "/mcp/own");
    assert!(is_good(&elsewhere).await);
    let _ = Answer::of(elsewhere.call(1, "exit", json!({}))).await;
    // The owner notices when it is asked next.
    eventually("refused", async || (!is_good(&session).await).then_some(())).await;
    eventually("refused elsewhere", async || (!is_good(&elsewhere).await).then_some(())).await;
    stop([owner, other]).await;
}

#[tokio::test]
async fn another_tenant_gets_nothing_of_a_session_through_any_replica() {
    let database = Database::sqlite();
    let setup = || {
        let tenants = setup(&database).without_anonymous();
        tenants.with_tenant("acme", "servers = [\"*\"]").with_tenant("other", "servers = [\"*\"]")
    };
    let (owner, other) = tokio::join!(setup().start(), setup().start());
    let (acme, theirs) = (owner.new_key("acme").await, owner.new_key("other").await);
    let session = Session::open(&owner.with_key(&acme), "/mcp/own").await;
    // Who calls is found out anew by the replica that keeps the session.
    let elsewhere = session.at(&other.with_key(&acme), "/mcp/own");
    let pid = eventually("the key is known", async || {
        let answer = Answer::of(elsewhere.call(1, "pid", json!({}))).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(pid.json()["result"]["isError"], Value::Null);
    let stranger = session.at(&other.with_key(&theirs), "/mcp/own");
    assert!(!is_good(&stranger).await);
    assert_eq!(Answer::of(stranger.call(1, "pid", json!({}))).await.status, 404);
    assert_eq!(Answer::of(stranger.get()).await.status, 404);
    assert_eq!(stranger.delete().await.status, 404);
    assert_eq!(Answer::of(session.at(&other, "/mcp/own").get()).await.status, 401);
    assert!(is_good(&session).await);
    stop([owner, other]).await;
}
