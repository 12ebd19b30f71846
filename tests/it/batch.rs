//! Many calls in one request: `POST /v1/batch`.

use serde_json::{Value, json};
use tokio::time::Instant;
use trunkline::common::ids::TenantName;
use trunkline::store::Actor;

use crate::support::{Answer, Api, Setup, eventually, refused};

pub async fn send(api: &Api, batch: Value) -> Answer {
    Answer::of(api.client.post(api.url("/v1/batch")).body(batch.to_string())).await
}

/// Returns the outcomes of a batch that was answered with 200.
pub async fn outcomes(api: &Api, batch: Value) -> Vec<Value> {
    let answer = send(api, batch).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["results"].as_array().unwrap().clone()
}

fn echo(id: &str, text: impl Into<Value>) -> Value {
    json!({"id": id, "server": "std", "tool": "echo", "arguments": {"text": text.into()}})
}

/// Returns how many calls of `echo` were answered.
async fn answered(api: &Api) -> f64 {
    let series = r#"trunkline_calls_total{outcome="ok",server="std",tool="echo"}"#;
    api.metrics().await.value(series).unwrap_or(0.0)
}

fn text(outcome: &Value) -> &str {
    outcome["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{outcome}"))
}

pub fn statuses(outcomes: &[Value]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome["status"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn outcomes_come_in_the_order_of_the_request_with_their_results() {
    let gateway = Setup::new().std().start().await;
    let sleep = json!({"id": "slow", "server": "std", "tool": "sleep", "arguments": {"ms": 50}});
    let outcomes =
        outcomes(&gateway, json!({"calls": [sleep, echo("a", "A"), echo("b", "B")]})).await;
    let ids: Vec<&str> = outcomes.iter().map(|outcome| outcome["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["slow", "a", "b"]);
    assert_eq!((text(&outcomes[1]), text(&outcomes[2])), ("A", "B"));
    let first = &outcomes[0];
    assert_eq!((&first["status"], &first["outcome"]), (&json!(200), &json!("ok")));
    assert_eq!((&first["executed"], &first["attempts"]), (&json!("yes"), &json!(1)));
    assert!(
        first["backend_ms"].as_f64().unwrap() >= 50.0 && first["queue_ms"].as_f64().unwrap() > 0.0,
        "{first}"
    );
    assert_eq!(first["call_id"].as_str().unwrap().len(), 32);
    // Counted like single calls.
    assert_eq!(answered(&gateway).await, 2.0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_uses_the_result_of_an_earlier_one_byte_for_byte() {
    let gateway = Setup::new().std().start().await;
    let query = json!({"id": "q", "server": "std", "tool": "json_query", "arguments": {
        "json": {"items": [{"url": "http://a/é"}]}, "pointer": "/items/0/url",
    }});
    let found = json!({"$result": "q", "pointer": "/content/0/text"});
    let literal = json!({"id": "l", "server": "std", "tool": "json_query", "arguments": {
        "json": {"$literal": {"$result": "x"}}, "pointer": "/$result",
    }});
    let calls = json!({"calls": [echo("use", found), query, literal]});
    let outcomes = outcomes(&gateway, calls).await;
    assert_eq!(text(&outcomes[0]), "\"http://a/é\"");
    assert_eq!(text(&outcomes[2]), "\"x\"");
    gateway.stop().await;
}

#[tokio::test]
async fn a_failure_fails_what_depends_on_it_with_424() {
    let gateway = Setup::new().std().start().await;
    let fail = json!({"id": "f", "server": "std", "tool": "fail", "arguments": {"message": "no"}});
    let mut waits = echo("waits", "x");
    waits["depends_on"] = json!(["f"]);
    let mut runs = waits.clone();
    (runs["id"], runs["if_dependency_fails"]) = (json!("runs"), json!("run"));
    let missing = echo("missing", json!({"$result": "runs", "pointer": "/nothing"}));
    let nowhere = json!({"id": "n", "server": "nowhere", "tool": "t"});
    let calls = json!([fail, waits, runs, missing, nowhere]);
    let answer = send(&gateway, json!({"calls": calls})).await;
    let outcomes = answer.json()["results"].as_array().unwrap().clone();
    assert_eq!(statuses(&outcomes), [200, 424, 200, 424, 404]);
    assert_eq!(outcomes[0]["outcome"], "tool_error");
    let problem = &outcomes[1]["problem"];
    assert_eq!(problem["code"], "dependency_failed");
    assert_eq!((&outcomes[1]["executed"], &outcomes[1]["attempts"]), (&json!("no"), &json!(0)));
    assert!(problem["detail"].as_str().unwrap().contains("`f`"), "{problem}");
    assert!(outcomes[3]["problem"]["detail"].as_str().unwrap().contains("`runs`"));
    assert_eq!(outcomes[4]["problem"]["code"], "server_not_found");

    // The caller may ask for a status that says so.
    let batch = json!({"calls": calls}).to_string();
    let request = gateway.client.post(gateway.url("/v1/batch")).body(batch);
    let strict = Answer::of(request.header("trunkline-tool-errors", "fail")).await;
    assert_eq!(strict.status, 422);
    let outcomes = strict.json()["results"].as_array().unwrap().clone();
    assert_eq!(statuses(&outcomes), [422, 424, 200, 424, 404]);
    assert_eq!(text(&outcomes[0]), "no");
    gateway.stop().await;
}

#[tokio::test]
async fn after_a_failure_a_batch_that_stops_starts_nothing_further() {
    let gateway = Setup::new().std().start().await;
    let fail = json!({"id": "f", "server": "std", "tool": "fail", "arguments": {"message": "no"}});
    let outcomes = outcomes(&gateway, json!({
        "on_error": "stop", "max_concurrency": 1, "calls": [echo("a", "A"), fail, echo("b", "B")],
    }))
    .await;
    assert_eq!(statuses(&outcomes), [200, 200, 424]);
    assert_eq!(answered(&gateway).await, 1.0);
    gateway.stop().await;
}

#[tokio::test]
async fn as_ndjson_each_outcome_comes_when_its_call_ends() {
    let gateway = Setup::new().fake("fake").std().start().await;
    let fake = gateway.fake("fake");
    let hold = json!({"id": "held", "server": "fake", "tool": "hold"});
    let batch = json!({"calls": [hold, echo("a", "A")]}).to_string();
    let request = gateway.client.post(gateway.url("/v1/batch")).body(batch);
    let mut response = request.header("accept", "application/x-ndjson").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let first = response.chunk().await.unwrap().unwrap();
    let first: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!((&first["id"], text(&first)), (&json!("a"), "A"));
    // The echo may be answered before the held call reaches its server.
    eventually("held", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    gateway.call("fake", "release", "").await.tool_text();
    let mut rest = String::new();
    while let Some(chunk) = response.chunk().await.unwrap() {
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let lines: Vec<Value> = rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["id"], "held");
    assert_eq!(lines[1], json!({"summary": {"calls": 2, "ok": 2, "tool_error": 0, "error": 0}}));
    assert_eq!(lines.len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn hanging_up_cancels_the_calls() {
    for accept in ["application/json", "application/x-ndjson"] {
        let gateway = Setup::new().fake("fake").start().await;
        let fake = gateway.fake("fake");
        let calls: Vec<Value> = (0..3)
            .map(|n| json!({"id": n.to_string(), "server": "fake", "tool": "hold"}))
            .collect();
        let batch = json!({"max_concurrency": 2, "calls": calls}).to_string();
        let request = gateway.new_client().post(gateway.url("/v1/batch")).body(batch);
        let sent = tokio::spawn(request.header("accept", accept).send());
        eventually("held", async || (fake.calls_of("hold").len() == 2).then_some(())).await;
        sent.abort();
        drop(sent.await);
        eventually("cancelled", async || {
            (fake.received_of("notifications/cancelled").len() == 2).then_some(())
        })
        .await;
        assert_eq!(fake.calls_of("hold").len(), 2);
        gateway.stop().await;
    }
}

#[tokio::test]
async fn calls_wait_for_the_tenants_own_rate_or_fail() {
    let policy = "rate = \"20/s\"\nburst = 2\nservers = [\"std\"]";
    let setup = Setup::new().without_anonymous().std().with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    let calls: Vec<Value> = (0..12).map(|n| echo(&n.to_string(), "x")).collect();
    let began = Instant::now();
    let waited = outcomes(&acme, json!({"calls": calls})).await;
    assert_eq!(statuses(&waited), [200; 12]);
    assert!(began.elapsed().as_millis() >= 490, "{:?}", began.elapsed());

    let failed = outcomes(&acme, json!({"when_limited": "fail", "calls": calls})).await;
    let refused = failed.iter().filter(|outcome| outcome["status"] == 429).count();
    assert!(refused >= 9, "{failed:?}");
    // Beyond the deadline nothing waits.
    let late = outcomes(&acme, json!({"timeout_ms": 60, "calls": calls})).await;
    let refused = late.iter().filter(|outcome| outcome["status"] == 429).count();
    assert!(refused >= 8, "{late:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_batch_is_charged_before_it_is_read_and_that_pays_for_its_first_call() {
    let policy = "rate = \"1/min\"\nburst = 3\nservers = [\"std\"]";
    let setup = Setup::new().without_anonymous().std().with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    assert_eq!(send(&acme, json!([])).await.problem(), refused(400, "invalid_request"));
    let both = json!({"calls": [echo("a", "A"), echo("b", "B")]});
    assert_eq!(statuses(&outcomes(&acme, both).await), [200, 200]);
    let spent = send(&acme, json!([])).await;
    assert_eq!((spent.status, &spent.json()["code"]), (429, &json!("rate_limited")));
    gateway.stop().await;
}

#[tokio::test]
async fn a_tenants_own_bound_on_calls_in_flight_holds() {
    let policy = "max_in_flight = 2\nservers = [\"std\"]";
    let setup = Setup::new().without_anonymous().std().with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    let sleep = |n: usize| {
        let arguments = json!({"ms": 20});
        json!({"id": n.to_string(), "server": "std", "tool": "sleep", "arguments": arguments})
    };
    let calls: Vec<Value> = (0..10).map(sleep).collect();
    let batch = json!({"max_concurrency": 100, "calls": calls});
    let (one, other) = tokio::join!(outcomes(&acme, batch.clone()), outcomes(&acme, batch));
    assert_eq!(statuses(&one), [200; 10]);
    assert_eq!(statuses(&other), [200; 10]);
    gateway.stop().await;
}

#[tokio::test]
async fn a_result_for_which_there_is_no_room_is_named() {
    let gateway = Setup::new().std().set("batch.max_results = \"2KiB\"").start().await;
    let long = "x".repeat(1500);
    let mut after = echo("after", "A");
    after["depends_on"] = json!(["second"]);
    let outcomes = outcomes(
        &gateway,
        json!({"max_concurrency": 1, "calls": [
            echo("first", long.clone()),
            echo("second", long),
            after,
            echo("uses", json!({"$result": "second", "pointer": "/content/0/text"})),
        ]}),
    )
    .await;
    assert_eq!(statuses(&outcomes), [200, 502, 200, 424]);
    assert_eq!(outcomes[1]["problem"]["code"], "result_too_large");
    assert_eq!(outcomes[1]["executed"], "yes");
    gateway.stop().await;
}

#[tokio::test]
async fn composed_arguments_are_bounded_like_a_body() {
    let gateway = Setup::new().std().set("max_body = \"1KiB\"").start().await;
    let outcomes = outcomes(
        &gateway,
        json!({"calls": [
            echo("a", "x".repeat(700)),
            echo("b", json!([{"$result": "a", "pointer": ""}, {"$result": "a", "pointer": ""}])),
        ]}),
    )
    .await;
    assert_eq!(statuses(&outcomes), [200, 413]);
    assert_eq!(outcomes[1]["problem"]["code"], "payload_too_large");
    gateway.stop().await;
}

#[tokio::test]
async fn a_batch_that_is_wrong_runs_nothing() {
    let gateway = Setup::new().std().start().await;
    let mut cycle = [echo("a", "A"), echo("b", "B")];
    cycle[0]["depends_on"] = json!(["b"]);
    cycle[1]["depends_on"] = json!(["a"]);
    for (batch, part) in [
        (json!({"calls": cycle}), "wait for each other: a → b"),
        (json!({"calls": [echo("a", "A"), echo("a", "B")]}), "`a` is used by an earlier call"),
        (json!({"calls": []}), "from 1 to 1000 calls"),
        (json!([]), "not a batch"),
    ] {
        let answer = send(&gateway, batch).await;
        assert_eq!(answer.problem(), refused(400, "invalid_request"));
        assert!(answer.detail().contains(part), "{}", answer.detail());
    }
    let long = outcomes(
        &gateway,
        json!({"calls": [
            {"id": "a", "server": "std", "tool": "echo", "timeout_ms": 600_000},
        ]}),
    )
    .await;
    assert!(long[0]["problem"]["detail"].as_str().unwrap().contains("`timeout_ms` may be at most"));
    assert_eq!(answered(&gateway).await, 0.0);
    gateway.stop().await;
}

#[tokio::test]
async fn rights_are_checked_when_each_call_begins() {
    let gateway = Setup::new().fake("fake").start().await;
    let fake = gateway.fake("fake");
    let store = gateway.setup().store().await;
    let acme = TenantName::parse("acme").unwrap();
    let policy = serde_json::from_str(r#"{"servers": ["fake"]}"#).unwrap();
    store.add_tenant(&Actor::cli("test"), &acme, &policy).await.unwrap();
    let api = eventually("known", async || {
        let api = gateway.as_tenant("acme").await;
        (api.servers().await.status == 200).then_some(api)
    })
    .await;
    let second = json!({"id": "b", "server": "fake", "tool": "hold", "depends_on": ["a"]});
    let batch = json!({"calls": [{"id": "a", "server": "fake", "tool": "hold"}, second]});
    let running = tokio::spawn({
        let api = api.clone();
        async move { outcomes(&api, batch).await }
    });
    eventually("held", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    store.remove_tenant(&Actor::cli("test"), &acme).await.unwrap();
    eventually("gone", async || (api.servers().await.status == 401).then_some(())).await;
    gateway.call("fake", "release", "").await.tool_text();
    let outcomes = running.await.unwrap();
    assert_eq!(outcomes[1]["problem"]["code"], "unauthenticated");
    assert_eq!(fake.calls_of("hold").len(), 1);
    gateway.stop().await;
}
