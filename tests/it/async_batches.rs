//! Asynchronous batches: accepted with 202, asked for later, cancelled, taken over.

use std::time::Duration;

use reqwest::RequestBuilder;
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{AnyConnection, Connection};
use tokio::time::sleep;

use crate::kept_calls::{problem, said};
use crate::support::{
    Answer, Api, Database, Serving, Setup, eventually, in_time, on_both, refused,
};

fn post(api: &Api, batch: &Value) -> RequestBuilder {
    let request = api.client.post(api.url("/v1/batch")).body(batch.to_string());
    request.header("Prefer", "respond-async")
}

/// Returns the id of a batch that was accepted.
fn id_of(answer: &Answer) -> String {
    assert_eq!(answer.status, 202, "{answer:?}");
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(answer.header("location"), format!("/v1/batches/{id}"));
    assert_eq!(answer.header("preference-applied"), "respond-async");
    assert!(answer.retry_after().is_some() && answer.json()["expires"].is_string());
    id
}

async fn accepted(api: &Api, batch: &Value) -> String {
    id_of(&Answer::of(post(api, batch)).await)
}

async fn view(api: &Api, id: &str) -> Value {
    api.get(&format!("/v1/batches/{id}")).await.json()
}

async fn result(api: &Api, id: &str) -> Answer {
    let path = format!("/v1/batches/{id}/result?wait=30");
    in_time("the result", api.get(&path)).await
}

fn outcomes(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["results"].as_array().unwrap().clone()
}

fn statuses(outcomes: &[Value]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome["status"].as_u64().unwrap()).collect()
}

fn call(id: &str, tool: &str, arguments: Value) -> Value {
    json!({"id": id, "server": "fake", "tool": tool, "arguments": arguments})
}

/// A call that waits for `release`, and one that uses its result.
fn held() -> Value {
    let text = json!({"text": {"$result": "a", "pointer": "/content/0/text"}});
    json!({"calls": [call("a", "hold", json!({"n": 1})), call("b", "raw", text)]})
}

#[tokio::test]
async fn an_accepted_batch_is_answered_later_as_it_would_have_been_at_once() {
    on_both(async |database| {
        let setup = || {
            let keys = "secrets.keys = [\"0123456789abcdef0123456789abcdef\"]";
            Setup::new().with_store(&database.url).set(keys).fake("fake")
        };
        let gateway = setup().start().await;
        let labelled = post(&gateway, &held()).header("Trunkline-Labels", "run=7");
        let id = id_of(&Answer::of(labelled).await);
        let fake = gateway.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let running = view(&gateway, &id).await;
        assert_eq!((&running["state"], &running["labels"]), (&json!("running"), &json!(["run=7"])));
        let now = gateway.get(&format!("/v1/batches/{id}/result")).await;
        assert_eq!((now.status, &now.json()["id"]), (202, &json!(id)));
        // Sealed at rest.
        let mut connection = AnyConnection::connect(database.url.expose()).await.unwrap();
        let text = sqlx::query_scalar("SELECT arguments FROM calls WHERE tool = ''");
        let text: String = text.fetch_one(&mut connection).await.unwrap();
        assert!(text.starts_with('~') && !text.contains("hold"), "{text}");
        gateway.call("fake", "release", "{}").await.tool_text();
        let answer = result(&gateway, &id).await;
        let ended = outcomes(&answer);
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(statuses(&ended), [200, 200]);
        let ids: Vec<_> = ended.iter().map(|outcome| &outcome["id"]).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(ended[1]["result"]["content"][0]["text"], r#"{"text":"{\"n\":1}"}"#);
        let over = view(&gateway, &id).await;
        assert_eq!((&over["state"], &over["outcome"]), (&json!("ended"), &json!("ok")));
        // The calls are listed, the batch is not: it is none.
        let listed = gateway.get("/v1/calls?label=run%3D7").await.json();
        assert_eq!(listed["calls"].as_array().unwrap().len(), 2);
        let one = ended[0]["call_id"].as_str().unwrap();
        for path in [format!("/v1/calls/{id}"), format!("/v1/batches/{one}")] {
            assert_eq!(gateway.get(&path).await.problem(), refused(404, "not_found"));
        }
        gateway.stop().await;
        let gateway = setup().start().await;
        assert_eq!(result(&gateway, &id).await.body, answer.body);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_short_batch_is_answered_at_once_if_its_caller_waits() {
    let gateway = Setup::new().fake("fake").start().await;
    let value = json!({"value": {"content": [], "isError": true}});
    let batch = json!({"calls": [call("a", "raw", json!({})), call("b", "result", value)]});
    let waited = |request: RequestBuilder| request.header("Prefer", "wait=20");
    let answer = Answer::of(waited(post(&gateway, &batch))).await;
    assert_eq!(statuses(&outcomes(&answer)), [200, 200]);
    let strict = waited(post(&gateway, &batch)).header("Trunkline-Tool-Errors", "fail");
    let strict = Answer::of(strict).await;
    assert_eq!((strict.status, &strict.json()["results"][1]["status"]), (422, &json!(422)));
    let wrong = Answer::of(post(&gateway, &json!({"calls": []}))).await;
    assert_eq!(wrong.problem(), refused(400, "invalid_request"));
    let called_back = post(&gateway, &batch).header("Trunkline-Callback", "https://hooks.example/");
    assert_eq!(Answer::of(called_back).await.problem(), refused(400, "invalid_request"));
    gateway.stop().await;
}

#[tokio::test]
async fn with_a_key_a_batch_that_is_sent_again_runs_nothing_twice() {
    let gateway = Setup::new().fake("fake").start().await;
    let keyed = |batch: &Value| post(&gateway, batch).header("Idempotency-Key", "k");
    let first = id_of(&Answer::of(keyed(&held())).await);
    let second = id_of(&Answer::of(keyed(&held())).await);
    let fake = gateway.fake("fake");
    eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    gateway.call("fake", "release", "{}").await.tool_text();
    let (one, other) = (result(&gateway, &first).await, result(&gateway, &second).await);
    for (one, other) in outcomes(&one).iter().zip(outcomes(&other)) {
        assert_eq!((&one["call_id"], &one["result"]), (&other["call_id"], &other["result"]));
    }
    assert_eq!((fake.calls_of("hold").len(), fake.calls_of("raw").len()), (1, 1));
    gateway.stop().await;
}

#[tokio::test]
async fn a_cancelled_batch_cancels_its_calls_and_begins_no_others() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let id = accepted(&gateway, &held()).await;
        let fake = gateway.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        let cancel = gateway.client.delete(gateway.url(&format!("/v1/batches/{id}")));
        let cancelled = Answer::of(cancel).await.json();
        assert_eq!(
            (&cancelled["state"], &cancelled["code"]),
            (&json!("ended"), &json!("cancelled"))
        );
        let answer = result(&gateway, &id).await;
        assert_eq!(said(&answer), problem(409, "cancelled", false, "unknown"));
        eventually("the server is told", async || {
            fake.received_of("notifications/cancelled").pop()
        })
        .await;
        assert!(fake.calls_of("raw").is_empty());
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn batches_of_a_tenant_are_bounded() {
    let setup = Setup::new().set("drain_timeout = \"1s\"").fake("fake").without_anonymous();
    let setup = setup.with_tenant("one", "servers = [\"*\"]");
    let gateway = setup.with_tenant("two", "servers = [\"*\"]").start().await;
    let (one, two) = (gateway.as_tenant("one").await, gateway.as_tenant("two").await);
    let batch = json!({"calls": [call("a", "hold", json!({}))]});
    let mut ids = vec![];
    for _ in 0..100 {
        ids.push(accepted(&one, &batch).await);
    }
    let more = Answer::of(post(&one, &batch)).await;
    assert_eq!(said(&more), problem(429, "tenant_busy", true, "no"));
    // Four run at once; another tenant is not concerned.
    let fake = gateway.fake("fake");
    eventually("four run", async || (fake.calls_of("hold").len() == 4).then_some(())).await;
    assert_eq!(view(&one, &ids[99]).await["state"], "accepted");
    accepted(&two, &batch).await;
    eventually("and one", async || (fake.calls_of("hold").len() == 5).then_some(())).await;
    assert_eq!(
        two.get(&format!("/v1/batches/{}", ids[0])).await.problem(),
        refused(404, "not_found")
    );
    // One that waits is cancelled without having run.
    let cancel = one.client.delete(one.url(&format!("/v1/batches/{}", ids[99])));
    assert_eq!(Answer::of(cancel).await.json()["executed"], "no");
    accepted(&one, &batch).await;
    gateway.stop().await;
}

#[tokio::test]
async fn without_the_store_no_batch_is_accepted() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!({"calls": [call("a", "raw", json!({}))]});
    result(&gateway, &accepted(&gateway, &batch).await).await;
    let file = gateway.setup().dir.path().join("trunkline.db");
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    let answer = eventually("the store is away", async || {
        let answer = Answer::of(post(&gateway, &batch)).await;
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(said(&answer.await), problem(503, "store_unavailable", true, "no"));
    std::fs::rename(file.with_extension("away"), &file).unwrap();
    gateway.stop().await;
}

fn api(serving: &Serving) -> Api {
    Api::new(serving.addr, None)
}

/// One call at a time: the first ends, the second waits for `release`, the third comes after it.
fn sequence() -> Value {
    json!({"max_concurrency": 1, "calls": [
        call("a", "raw", json!({"n": 1})), call("b", "hold", json!({})),
        call("c", "raw", json!({"n": 3})),
    ]})
}

#[tokio::test]
async fn after_a_kill_a_batch_goes_on_with_what_is_missing() {
    on_both(async |database| {
        let mut serving = Setup::new().with_store(&database.url).fake("fake").serve().await;
        let id = accepted(&api(&serving), &sequence()).await;
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        serving.signal(Signal::KILL);
        serving.ended().await;
        let serving = serving.restart().await;
        let ended = outcomes(&result(&api(&serving), &id).await);
        assert_eq!(statuses(&ended), [200, 502, 200]);
        assert_eq!((&ended[0]["replayed"], &ended[2]["replayed"]), (&json!(true), &Value::Null));
        assert_eq!(ended[1]["problem"]["code"], "outcome_unknown");
        assert_eq!(
            (&ended[1]["executed"], &ended[1]["replayed"]),
            (&json!("unknown"), &json!(true))
        );
        assert_eq!((fake.calls_of("raw").len(), fake.calls_of("hold").len()), (2, 1));
    })
    .await;
}

#[tokio::test]
async fn the_time_of_a_batch_goes_on_while_its_gateway_is_away() {
    on_both(async |database| {
        let mut serving = Setup::new().with_store(&database.url).fake("fake").serve().await;
        let mut batch = sequence();
        batch["timeout_ms"] = json!(5000);
        let id = accepted(&api(&serving), &batch).await;
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        serving.signal(Signal::KILL);
        serving.ended().await;
        sleep(Duration::from_secs(5)).await;
        let serving = serving.restart().await;
        let ended = outcomes(&result(&api(&serving), &id).await);
        let codes: Vec<_> = ended.iter().map(|ended| &ended["problem"]["code"]).collect();
        // Outcomes that are known are told all the same; nothing else runs.
        assert_eq!(codes, [&Value::Null, &json!("outcome_unknown"), &json!("deadline_exceeded")]);
        assert_eq!((&ended[0]["status"], &ended[2]["executed"]), (&json!(200), &json!("no")));
        assert_eq!(fake.calls_of("raw").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_gateway_that_stops_hands_its_batches_over() {
    on_both(async |database| {
        let serving = Setup::new().with_store(&database.url).fake("fake").serve().await;
        let mut batch = sequence();
        batch["calls"][1] = call("b", "later", json!({"ms": 500}));
        let id = accepted(&api(&serving), &batch).await;
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("later").len() == 1).then_some(())).await;
        let mut serving = serving;
        serving.signal(Signal::TERM);
        serving.ended().await;
        assert_eq!(fake.calls_of("raw").len(), 1, "a gateway that stops begins nothing");
        let serving = serving.restart().await;
        let ended = outcomes(&result(&api(&serving), &id).await);
        assert_eq!(statuses(&ended), [200, 200, 200]);
        assert_eq!((fake.calls_of("raw").len(), fake.calls_of("later").len()), (2, 1));
    })
    .await;
}

/// One of two replicas, each with a server of its own.
fn replica(database: &Database) -> Setup {
    let keys = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";
    let setup = Setup::new().with_store(&database.url).fake("fake").set(keys);
    setup.set("replicas.listen = \"127.0.0.1:0\"")
}

#[tokio::test]
async fn another_replica_takes_over_a_batch_or_cancels_it() {
    on_both(async |database| {
        let (mut one, other) = tokio::join!(replica(database).serve(), replica(database).serve());
        let id = accepted(&api(&one), &sequence()).await;
        let away = accepted(&api(&one), &json!({"calls": [call("x", "hold", json!({}))]})).await;
        let fake = one.fake("fake");
        eventually("they run", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
        let url = api(&other).url(&format!("/v1/batches/{away}"));
        // Although the replicas may not have learnt of each other yet.
        let cancelled = Answer::of(other.client.delete(&url)).await.json();
        let said = (&cancelled["code"], &cancelled["executed"]);
        assert_eq!(said, (&json!("cancelled"), &json!("unknown")), "{cancelled}");
        eventually("told", async || fake.received_of("notifications/cancelled").pop()).await;
        one.signal(Signal::KILL);
        one.ended().await;
        let ended = outcomes(&result(&api(&other), &id).await);
        assert_eq!(statuses(&ended), [200, 502, 200]);
        let there = other.fake("fake");
        assert_eq!((there.calls_of("raw").len(), there.calls_of("hold").len()), (1, 0));
    })
    .await;
}

#[tokio::test]
async fn a_batch_that_is_taken_over_keeps_its_key_and_its_wishes() {
    on_both(async |database| {
        let mut serving = Setup::new().with_store(&database.url).fake("fake").serve().await;
        let bad = json!({"value": {"content": [], "isError": true}});
        let batch = json!({"max_concurrency": 1, "calls": [
            call("a", "raw", json!({})), call("b", "hold", json!({})), call("c", "result", bad),
        ]});
        let request = post(&api(&serving), &batch).header("Idempotency-Key", "k");
        let id = id_of(&Answer::of(request.header("Trunkline-Tool-Errors", "fail")).await);
        let fake = serving.fake("fake");
        eventually("it runs", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
        serving.signal(Signal::KILL);
        serving.ended().await;
        let serving = serving.restart().await;
        let answer = result(&api(&serving), &id).await;
        let ended = answer.json()["results"].as_array().unwrap().clone();
        assert_eq!((answer.status, statuses(&ended)), (422, vec![200, 502, 422]));
        // The same batch again has the same calls.
        let url = api(&serving).url("/v1/batch");
        let again = serving.client.post(url).body(batch.to_string());
        let again = Answer::of(again.header("Idempotency-Key", "k")).await.json();
        for (one, other) in ended.iter().zip(again["results"].as_array().unwrap()) {
            assert_eq!((&other["replayed"], &one["id"]), (&json!(true), &other["id"]));
        }
        assert_eq!((fake.calls_of("raw").len(), fake.calls_of("result").len()), (1, 1));
    })
    .await;
}
