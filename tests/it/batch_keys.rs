//! Batches with an `Idempotency-Key`: each call runs once, and a batch that is sent again runs what
//! is missing.

use serde_json::{Value, json};

use crate::support::{Answer, Api, Setup, eventually, on_both};

async fn send(api: &Api, key: &str, batch: &Value) -> Answer {
    let request = api.client.post(api.url("/v1/batch")).body(batch.to_string());
    Answer::of(request.header("Idempotency-Key", key)).await
}

async fn outcomes(api: &Api, key: &str, batch: &Value) -> Vec<Value> {
    let answer = send(api, key, batch).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["results"].as_array().unwrap().clone()
}

fn call(id: &str, tool: &str, arguments: Value) -> Value {
    json!({"id": id, "server": "fake", "tool": tool, "arguments": arguments})
}

fn statuses(outcomes: &[Value]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome["status"].as_u64().unwrap()).collect()
}

fn replayed(outcomes: &[Value]) -> Vec<bool> {
    outcomes.iter().map(|outcome| outcome["replayed"] == true).collect()
}

#[tokio::test]
async fn a_batch_that_is_sent_again_runs_only_what_is_missing() {
    on_both(async |database| {
        let gateway = Setup::new().with_store(&database.url).fake("fake").start().await;
        let fake = gateway.fake("fake");
        let use_result = json!({"text": {"$result": "a", "pointer": "/content/0/text"}});
        // The third one is refused by the server: it has not run.
        let batch = json!({"calls": [
            call("a", "raw", json!({"n": 1})), call("b", "raw", use_result),
            call("c", "error", json!({"code": -32602})),
        ]});
        let first = outcomes(&gateway, "k", &batch).await;
        assert_eq!((statuses(&first), replayed(&first)), (vec![200, 200, 502], vec![false; 3]));
        let again = outcomes(&gateway, "k", &batch).await;
        assert_eq!(statuses(&again), [200, 200, 502]);
        assert_eq!(replayed(&again), [true, true, false]);
        for (one, other) in first.iter().zip(&again).take(2) {
            assert_eq!((&one["result"], &one["call_id"]), (&other["result"], &other["call_id"]));
        }
        assert_eq!((fake.calls_of("raw").len(), fake.calls_of("error").len()), (2, 2));
        // Another key, and the key without a batch, are other calls.
        outcomes(&gateway, "l", &batch).await;
        let single = gateway.post("fake", "raw", r#"{"n":1}"#).header("Idempotency-Key", "k");
        Answer::of(single).await.tool_text();
        assert_eq!(fake.calls_of("raw").len(), 5);
        // A call that is changed is another one under the same key.
        let changed = json!({"calls": [call("a", "raw", json!({"n": 2}))]});
        let mismatch = outcomes(&gateway, "k", &changed).await;
        assert_eq!(statuses(&mismatch), [422]);
        assert_eq!(mismatch[0]["problem"]["code"], "idempotency_mismatch");
        assert_eq!(fake.calls_of("raw").len(), 5);
        gateway.stop().await;
    })
    .await;
}

#[tokio::test]
async fn hanging_up_leaves_the_calls_that_run_and_begins_no_others() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let batch = json!({"max_concurrency": 1, "calls": [
        call("a", "hold", json!({})), call("b", "raw", json!({"n": 1})),
    ]});
    let request = gateway.new_client().post(gateway.url("/v1/batch")).body(batch.to_string());
    let sent = tokio::spawn(request.header("Idempotency-Key", "k").send());
    eventually("held", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    sent.abort();
    drop(sent.await);
    let retry = tokio::spawn({
        let (api, batch) = (Api::clone(&gateway), batch.clone());
        async move { outcomes(&api, "k", &batch).await }
    });
    tokio::task::yield_now().await;
    assert!(fake.calls_of("raw").is_empty());
    gateway.call("fake", "release", "").await.tool_text();
    let outcomes = retry.await.unwrap();
    assert_eq!((statuses(&outcomes), replayed(&outcomes)), (vec![200; 2], vec![true, false]));
    assert_eq!((fake.calls_of("hold").len(), fake.calls_of("raw").len()), (1, 1));
    assert!(fake.received_of("notifications/cancelled").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_ran_before_is_never_said_not_to_have_run() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let last = json!({"id": "b", "server": "fake", "tool": "raw", "depends_on": ["a"]});
    let batch = |first: Value| json!({"calls": [first, last]});
    let first = outcomes(&gateway, "k", &batch(call("a", "raw", json!({})))).await;
    assert_eq!(statuses(&first), [200, 200]);
    // Its dependency fails this time, and it has run all the same.
    let again = outcomes(&gateway, "k", &batch(call("a", "error", json!({"code": -32602})))).await;
    assert_eq!((statuses(&again), replayed(&again)), (vec![502, 200], vec![false, true]));
    assert_eq!(again[1]["call_id"], first[1]["call_id"]);
    assert_eq!(fake.calls_of("raw").len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn an_unknown_outcome_is_repeated_by_every_retry() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!({"calls": [
        call("a", "exit", json!({})),
        {"id": "b", "server": "fake", "tool": "raw", "depends_on": ["a"]},
    ]});
    for is_replay in [false, true] {
        let outcomes = outcomes(&gateway, "k", &batch).await;
        assert_eq!(statuses(&outcomes), [502, 424]);
        assert_eq!(outcomes[0]["executed"], "unknown");
        assert_eq!(outcomes[0]["problem"]["code"], "backend_exited");
        assert_eq!(replayed(&outcomes), [is_replay, false]);
        gateway.ready().await;
    }
    assert_eq!(gateway.fake("fake").calls_of("exit").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_result_without_room_is_kept_under_its_key() {
    let gateway = Setup::new().set("batch.max_results = \"2KiB\"").fake("fake").start().await;
    let big = |id: &str| call(id, "big", json!({"bytes": 1500}));
    let batch = json!({"max_concurrency": 1, "calls": [big("a"), big("b")]});
    let first = outcomes(&gateway, "k", &batch).await;
    assert_eq!(statuses(&first), [200, 502]);
    assert_eq!(first[1]["problem"]["code"], "result_too_large");
    assert_eq!((&first[1]["executed"], &first[1]["outcome"]), (&json!("yes"), &json!("error")));
    // By its own id, and in a smaller batch.
    let path = format!("/v1/calls/{}/result", first[1]["call_id"].as_str().unwrap());
    assert_eq!(gateway.get(&path).await.json(), first_result_of(&gateway, &big("b")).await);
    assert_eq!(gateway.fake("fake").calls_of("big").len(), 2);
    gateway.stop().await;
}

async fn first_result_of(api: &Api, call: &Value) -> Value {
    let outcomes = outcomes(api, "k", &json!({"calls": [call]})).await;
    assert_eq!((statuses(&outcomes), replayed(&outcomes)), (vec![200], vec![true]));
    outcomes[0]["result"].clone()
}

#[tokio::test]
async fn without_the_store_calls_with_a_key_are_refused_and_others_are_not() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!({"calls": [call("a", "raw", json!({}))]});
    outcomes(&gateway, "before", &batch).await;
    let file = gateway.setup().dir.path().join("trunkline.db");
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    // One that had begun before is unknown, and its key stays so.
    let mut keys = (0..).map(|key| format!("k{key}"));
    let refused = eventually("the store is away", async || {
        let outcomes = outcomes(&gateway, &keys.next().unwrap(), &batch).await;
        let is_refused = outcomes[0]["status"] == 503 && outcomes[0]["executed"] == "no";
        is_refused.then_some(outcomes)
    });
    assert_eq!(refused.await[0]["problem"]["code"], "store_unavailable");
    let calls = gateway.fake("fake").calls_of("raw").len();
    let plain = gateway.client.post(gateway.url("/v1/batch")).body(batch.to_string());
    assert_eq!(Answer::of(plain).await.json()["results"][0]["status"], 200);
    assert_eq!(gateway.fake("fake").calls_of("raw").len(), calls + 1);
    std::fs::rename(file.with_extension("away"), &file).unwrap();
    gateway.stop().await;
}

#[tokio::test]
async fn keyed_calls_of_a_batch_wait_for_the_tenants_own_limits() {
    let policy = "rate = \"20/s\"\nburst = 2\nmax_in_flight = 1\nservers = [\"fake\"]";
    let setup = Setup::new().without_anonymous().fake("fake").with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    let calls: Vec<Value> =
        (0..6).map(|n| call(&n.to_string(), "later", json!({"ms": 20}))).collect();
    let batch = json!({"max_concurrency": 6, "calls": calls});
    let (one, other) = tokio::join!(outcomes(&acme, "k", &batch), outcomes(&acme, "l", &batch));
    assert_eq!((statuses(&one), statuses(&other)), (vec![200; 6], vec![200; 6]));
    assert_eq!(gateway.fake("fake").calls_of("later").len(), 12);
    gateway.stop().await;
}

#[tokio::test]
async fn the_text_of_a_call_counts_not_what_its_references_stand_for() {
    let gateway = Setup::new().fake("fake").start().await;
    let reference = json!({"text": {"$result": "a", "pointer": "/content/0/text"}});
    let batch = |second: Value| json!({"calls": [call("a", "raw", json!({})), second]});
    let first = outcomes(&gateway, "k", &batch(call("b", "raw", reference.clone()))).await;
    assert_eq!(first[1]["result"]["content"][0]["text"], r#"{"text":"{}"}"#);
    // The same arguments, written out.
    let written = outcomes(&gateway, "k", &batch(call("b", "raw", json!({"text": "{}"})))).await;
    assert_eq!((statuses(&written), replayed(&written)), (vec![200, 422], vec![true, false]));
    assert_eq!(written[1]["problem"]["code"], "idempotency_mismatch");
    // The same call beside others, in another order.
    let more = json!({"on_error": "stop", "calls": [
        call("b", "raw", reference), call("new", "raw", json!({"n": 1})),
        call("a", "raw", json!({})),
    ]});
    let more = outcomes(&gateway, "k", &more).await;
    assert_eq!((statuses(&more), replayed(&more)), (vec![200; 3], vec![true, false, true]));
    assert_eq!(gateway.fake("fake").calls_of("raw").len(), 3);
    gateway.stop().await;
}

#[tokio::test]
async fn a_kept_tool_error_is_a_failure_for_those_that_depend_on_it() {
    let gateway = Setup::new().fake("fake").start().await;
    let bad = json!({"value": {"content": [], "isError": true}});
    let mut waits = call("b", "raw", json!({}));
    waits["depends_on"] = json!(["a"]);
    let mut runs = waits.clone();
    (runs["id"], runs["if_dependency_fails"]) = (json!("c"), json!("run"));
    let batch = json!({"calls": [call("a", "result", bad.clone()), waits, runs]});
    for is_replay in [false, true] {
        let outcomes = outcomes(&gateway, "k", &batch).await;
        assert_eq!(statuses(&outcomes), [200, 424, 200]);
        assert_eq!(outcomes[0]["outcome"], "tool_error");
        assert_eq!(outcomes[1]["problem"]["code"], "dependency_failed");
        assert_eq!((&outcomes[1]["executed"], &outcomes[1]["attempts"]), (&json!("no"), &json!(0)));
        assert_eq!(replayed(&outcomes), [is_replay, false, is_replay]);
    }
    let stops = json!({"on_error": "stop", "max_concurrency": 1, "calls": [
        call("x", "result", bad), call("y", "raw", json!({})),
    ]});
    for _ in 0..2 {
        assert_eq!(statuses(&outcomes(&gateway, "stops", &stops).await), [200, 424]);
    }
    assert_eq!(gateway.fake("fake").calls_of("raw").len(), 1);
    gateway.stop().await;
}

#[tokio::test]
async fn a_replayed_outcome_tells_the_attempts_and_times_of_its_call() {
    let gateway = Setup::new().fake("fake").start().await;
    let batch = json!({"calls": [call("a", "later", json!({"ms": 60}))]});
    let first = outcomes(&gateway, "k", &batch).await;
    let again = outcomes(&gateway, "k", &batch).await;
    for name in ["attempts", "queue_ms", "backend_ms", "executed", "outcome"] {
        assert_eq!(first[0][name], again[0][name]);
    }
    assert_eq!(first[0]["attempts"], 1);
    assert!(first[0]["queue_ms"].as_f64().unwrap() > 0.0, "{}", first[0]);
    assert!(first[0]["backend_ms"].as_f64().unwrap() >= 60.0, "{}", first[0]);
    gateway.stop().await;
}
