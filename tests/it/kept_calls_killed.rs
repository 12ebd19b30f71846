//! Kept calls when their gateway is killed, with the real program, and with several replicas.

use rustix::process::Signal;
use serde_json::json;

use crate::async_calls::{accepted, id_of};
use crate::kept_calls::{problem, said};
use crate::support::{Answer, Api, Database, Serving, Setup, eventually, in_time, on_both};

const KEY: &str = "Idempotency-Key";

fn setup(database: &Database) -> Setup {
    Setup::new().with_store(&database.url).fake("fake")
}

fn api(serving: &Serving) -> Api {
    Api::new(serving.addr, None)
}

/// Kills a gateway at once, as the kernel would, and starts the next one.
async fn killed(mut serving: Serving) -> Serving {
    serving.signal(Signal::KILL);
    serving.ended().await;
    serving.restart().await
}

async fn keyed(serving: &Serving, key: &str, tool: &str) -> Answer {
    Answer::of(api(serving).post("fake", tool, "{}").header(KEY, key)).await
}

#[tokio::test]
async fn a_begun_call_is_unknown_after_a_kill_and_never_runs_again() {
    on_both(async |database| {
        let serving = setup(database).serve().await;
        let first = api(&serving).post("fake", "hold", "{}").header(KEY, "k");
        let first = tokio::spawn(first.send());
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let serving = killed(serving).await;
        assert!(first.await.unwrap().is_err());
        for _ in 0..2 {
            let retry = keyed(&serving, "k", "hold").await;
            assert_eq!(said(&retry), problem(502, "outcome_unknown", false, "unknown"));
            let known = serving.get("/v1/calls").await.json()["calls"][0]["id"].clone();
            assert_eq!(known, retry.header("trunkline-call-id"));
        }
        assert_eq!(fake.calls_of("hold").len(), 1);
        // A new key runs it again on purpose.
        let next = api(&serving).post("fake", "hold", "{}").header(KEY, "k2");
        let next = tokio::spawn(Answer::of(next));
        eventually("it runs", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
        serving.call("fake", "release", "{}").await.tool_text();
        next.await.unwrap().tool_text();
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_was_sent_is_kept_whatever_happens_next() {
    on_both(async |database| {
        let mut serving = setup(database).serve().await;
        for round in 0..5 {
            let key = format!("k{round}");
            let first = keyed(&serving, &key, "odd").await;
            serving = killed(serving).await;
            let again = keyed(&serving, &key, "odd").await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert_eq!(again.header("trunkline-replayed"), "true");
        }
        assert_eq!(serving.fake("fake").calls_of("odd").len(), 5);
    })
    .await;
}

#[tokio::test]
async fn accepted_calls_that_have_not_begun_run_after_a_kill() {
    on_both(async |database| {
        let setup = setup(database).tenant("acme");
        let serving = setup.with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1").serve();
        let serving = serving.await;
        let running = id_of(&Answer::of(accepted(&api(&serving), "hold", "{}")).await);
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let mut waiting = vec![];
        for at in 0..3 {
            let call = accepted(&api(&serving), "raw", json!({"at": at}));
            waiting.push(id_of(&Answer::of(call).await));
        }
        let serving = killed(serving).await;
        for (at, id) in waiting.iter().enumerate() {
            let answer = serving.get(&format!("/v1/calls/{id}/result?wait=20")).await;
            assert_eq!(answer.tool_text(), json!({"at": at}).to_string());
        }
        let answer = serving.get(&format!("/v1/calls/{running}/result?wait=20")).await;
        assert_eq!(said(&answer), problem(502, "outcome_unknown", false, "unknown"));
        assert_eq!(fake.calls_of("raw").len(), 3);
        assert_eq!(fake.calls_of("hold").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_stop_hands_over_what_has_not_begun_and_waits_for_what_has() {
    let database = Database::sqlite();
    let setup = setup(&database).tenant("acme").set("drain_timeout = \"20s\"");
    let setup = setup.with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1");
    let mut serving = setup.serve().await;
    let slow = accepted(&api(&serving), "later", r#"{"ms": 1500}"#);
    let slow = id_of(&Answer::of(slow).await);
    let fake = serving.fake("fake");
    eventually("it runs", async || (fake.calls_of("later").len() == 1).then_some(())).await;
    let waiting = id_of(&Answer::of(accepted(&api(&serving), "raw", "{}")).await);
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().await, Some(0));
    assert!(fake.calls_of("raw").is_empty());
    let serving = serving.restart().await;
    let answer = serving.get(&format!("/v1/calls/{slow}/result")).await;
    assert_eq!(answer.tool_text(), "later");
    let answer = serving.get(&format!("/v1/calls/{waiting}/result?wait=20")).await;
    assert_eq!(answer.tool_text(), "{}");
    assert_eq!(fake.calls_of("later").len(), 1);
}

#[tokio::test]
async fn a_call_that_outlasts_the_drain_is_unknown() {
    let database = Database::sqlite();
    let mut serving = setup(&database).set("drain_timeout = \"300ms\"").serve().await;
    let first = api(&serving).post("fake", "hold", "{}").header(KEY, "k");
    let first = tokio::spawn(first.send());
    let fake = serving.fake("fake");
    eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    serving.signal(Signal::TERM);
    assert_eq!(serving.ended().await, Some(0));
    let _ = first.await;
    let serving = serving.restart().await;
    let retry = keyed(&serving, "k", "hold").await;
    assert_eq!(said(&retry).3, "unknown", "{retry:?}");
    assert_eq!(fake.calls_of("hold").len(), 1);
}

/// One of two replicas, each with a server of its own.
fn replica(database: &Database) -> Setup {
    let keys = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";
    setup(database).set(keys).set("replicas.listen = \"127.0.0.1:0\"")
}

#[tokio::test]
async fn a_retry_at_another_replica_waits_for_the_first_ones_call() {
    on_both(async |database| {
        let (one, other) = tokio::join!(replica(database).serve(), replica(database).serve());
        let first = api(&one).post("fake", "hold", "{}").header(KEY, "k");
        let first = tokio::spawn(Answer::of(first));
        let fake = one.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let now = api(&other).post("fake", "hold", "{}").header(KEY, "k");
        let now = Answer::of(now.header("Prefer", "wait=0")).await;
        assert_eq!(said(&now), problem(409, "in_progress", true, "no"));
        let retry = api(&other).post("fake", "hold", "{}").header(KEY, "k");
        let retry = tokio::spawn(Answer::of(retry));
        one.call("fake", "release", "{}").await.tool_text();
        let first = first.await.unwrap();
        let retry = in_time("the retry's answer", retry).await.unwrap();
        assert_eq!((retry.status, &retry.body), (first.status, &first.body));
        assert_eq!(retry.header("trunkline-replayed"), "true");
        assert!(other.fake("fake").calls_of("hold").is_empty());
        // Both at once: one of them runs it.
        for round in 0..20 {
            let key = format!("both{round}");
            let call =
                |at: &Serving| Answer::of(api(at).post("fake", "raw", "{}").header(KEY, &key));
            let (here, there) = tokio::join!(call(&one), call(&other));
            assert_eq!((here.tool_text(), there.tool_text()), ("{}".to_owned(), "{}".to_owned()));
            let runs = [&one, &other].map(|at| at.fake("fake").calls_of("raw").len());
            assert_eq!(runs[0] + runs[1], round + 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_is_cancelled_through_another_replica() {
    on_both(async |database| {
        let (one, other) = tokio::join!(replica(database).serve(), replica(database).serve());
        let id = id_of(&Answer::of(accepted(&api(&one), "hold", "{}")).await);
        let fake = one.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let url = api(&other).url(&format!("/v1/calls/{id}"));
        // Replicas learn of each other within two seconds.
        eventually("cancelled", async || {
            let view = Answer::of(other.client.delete(&url)).await;
            (view.status == 200 && view.json()["code"] == "cancelled").then_some(())
        })
        .await;
        eventually("the server is told", async || {
            fake.received_of("notifications/cancelled").pop()
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn another_replica_takes_over_from_one_that_is_killed() {
    on_both(async |database| {
        let limited = |setup: Setup| {
            setup.tenant("acme").with_tenant("acme", "servers = [\"*\"]\nmax_in_flight = 1")
        };
        let (mut one, other) =
            tokio::join!(limited(replica(database)).serve(), limited(replica(database)).serve());
        let running = api(&one).post("fake", "hold", "{}").header(KEY, "k");
        let running = tokio::spawn(running.send());
        let fake = one.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let waiting = id_of(&Answer::of(accepted(&api(&one), "raw", "{}")).await);
        one.signal(Signal::KILL);
        one.ended().await;
        assert!(running.await.unwrap().is_err());
        // Ten seconds without a heartbeat.
        let retry = in_time("the retry's answer", keyed(&other, "k", "hold")).await;
        assert_eq!(said(&retry), problem(502, "outcome_unknown", false, "unknown"));
        let answer = other.get(&format!("/v1/calls/{waiting}/result?wait=20")).await;
        assert_eq!(answer.tool_text(), "{}");
        assert_eq!(other.fake("fake").calls_of("raw").len(), 1);
        assert!(other.fake("fake").calls_of("hold").is_empty());
    })
    .await;
}
