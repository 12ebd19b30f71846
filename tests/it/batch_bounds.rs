//! Bounds of a batch: its size, its arguments, and what it takes of its tenant.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::batch::{outcomes, send, statuses};
use crate::kept_calls::{problem, said};
use crate::support::{Answer, Api, Setup, eventually, in_time, refused};

fn post(api: &Api, batch: &Value) -> RequestBuilder {
    api.client.post(api.url("/v1/batch")).body(batch.to_string())
}

fn call(id: &str, tool: &str, arguments: Value) -> Value {
    json!({"id": id, "server": "fake", "tool": tool, "arguments": arguments})
}

#[tokio::test]
async fn a_batch_has_at_most_8_mib_and_1000_calls() {
    let gateway = Setup::new().fake("fake").start().await;
    let long = |count: usize| {
        let text = "x".repeat(1_000_000);
        let calls = (0..count).map(|n| call(&n.to_string(), "pid", json!({"text": text})));
        json!({"calls": calls.collect::<Vec<_>>()})
    };
    let all = outcomes(&gateway, long(8)).await;
    assert_eq!(statuses(&all), [200; 8]);
    assert_eq!(send(&gateway, long(9)).await.problem(), refused(413, "payload_too_large"));
    let many = |count: usize| {
        let calls = (0..count).map(|n| call(&n.to_string(), "nothing", json!({})));
        json!({"calls": calls.collect::<Vec<_>>()})
    };
    let more = send(&gateway, many(1001)).await;
    assert_eq!(more.problem(), refused(400, "invalid_request"));
    assert!(more.detail().contains("at most 1000 calls"), "{}", more.detail());
    assert_eq!(outcomes(&gateway, many(1000)).await.len(), 1000);
    gateway.stop().await;
}

/// A result that is nested so deep.
fn nested(levels: usize) -> Value {
    let deep = (0..levels).fold(json!(1), |inner, _| json!([inner]));
    json!({"value": {"content": [], "structuredContent": {"deep": deep}}})
}

#[tokio::test]
async fn composed_arguments_are_checked_as_a_body_is() {
    let setup = Setup::new().fake("fake").server(
        "std",
        "trunkline",
        &["std".to_owned()],
        "validate = true",
    );
    let gateway = setup.start().await;
    let deep = json!({"$result": "deep", "pointer": "/structuredContent/deep"});
    let wrapped = (0..20).fold(deep.clone(), |inner, _| json!([inner]));
    let text = json!({"text": {"$result": "deep", "pointer": "/structuredContent"}});
    let whole = json!({"$result": "list", "pointer": "/structuredContent/deep"});
    let misfit = json!({"id": "misfit", "server": "std", "tool": "echo", "arguments": text});
    let batch = json!({"calls": [
        call("deep", "result", nested(45)), call("list", "result", nested(1)),
        call("fits", "raw", json!({"x": deep})), call("too_deep", "raw", json!({"x": wrapped})),
        misfit, call("no_object", "raw", whole),
    ]});
    for key in [None, Some("k")] {
        let request = post(&gateway, &batch);
        let request = key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
        let answer = Answer::of(request).await.json();
        let outcomes = answer["results"].as_array().unwrap();
        assert_eq!(statuses(outcomes), [200, 200, 200, 400, 400, 400], "{answer}");
        let codes: Vec<_> = outcomes[3..].iter().map(|it| &it["problem"]["code"]).collect();
        assert_eq!(codes, ["invalid_arguments"; 3]);
        assert!(outcomes[3..].iter().all(|it| it["executed"] == "no"), "{answer}");
    }
    // Line breaks between tokens do not reach the server: a line is a message.
    let pretty = serde_json::to_string_pretty(&json!({"calls": [
        call("a", "pid", json!({})),
        call("b", "raw", json!({"from": {"$result": "a", "pointer": "/content"}, "n": [1, 2]})),
    ]}));
    let request = gateway.client.post(gateway.url("/v1/batch")).body(pretty.unwrap());
    let answer = Answer::of(request).await.json();
    assert_eq!(statuses(answer["results"].as_array().unwrap()), [200, 200], "{answer}");
    let lines = gateway.fake("fake").lines_received();
    assert!(lines.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()));
    gateway.stop().await;
}

#[tokio::test]
async fn a_batch_alone_is_never_over_its_tenants_own_bound() {
    let policy = "max_in_flight = 2\nservers = [\"fake\"]";
    let setup = Setup::new().without_anonymous().fake("fake").with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    let calls: Vec<Value> =
        (0..8).map(|n| call(&n.to_string(), "later", json!({"ms": 20}))).collect();
    let batch = json!({"max_concurrency": 100, "when_limited": "fail", "calls": calls});
    assert_eq!(statuses(&outcomes(&acme, batch.clone()).await), [200; 8]);
    let keyed = Answer::of(post(&acme, &batch).header("Idempotency-Key", "k")).await.json();
    assert_eq!(statuses(keyed["results"].as_array().unwrap()), [200; 8]);
    let accepted = post(&acme, &batch).header("Prefer", "respond-async, wait=20");
    let accepted = in_time("the batch", Answer::of(accepted)).await.json();
    assert_eq!(statuses(accepted["results"].as_array().unwrap()), [200; 8]);
    gateway.stop().await;
}

#[tokio::test]
async fn each_call_costs_one_of_the_rate_and_one_without_a_key_that_is_not_made_nothing() {
    for key in [None, Some("k")] {
        let policy = "rate = \"1/h\"\nburst = 5\nservers = [\"fake\"]";
        let setup = Setup::new().without_anonymous().fake("fake").with_tenant("acme", policy);
        let gateway = setup.start().await;
        let acme = gateway.as_tenant("acme").await;
        let mut not_made = call("not_made", "raw", json!({}));
        not_made["depends_on"] = json!(["fails"]);
        let calls = |count: usize| (0..count).map(|n| call(&n.to_string(), "raw", json!({})));
        let fails = call("fails", "error", json!({"code": -32602}));
        let some = calls(2).chain([fails, not_made]).collect::<Vec<_>>();
        let send = async |calls: Vec<Value>| {
            let batch = json!({"when_limited": "fail", "calls": calls});
            let request = post(&acme, &batch);
            let request =
                key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
            let answer = Answer::of(request).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            statuses(answer.json()["results"].as_array().unwrap())
        };
        assert_eq!(send(some).await, [200, 200, 502, 424]);
        // With a key it may have been made before, and looking for that is charged.
        let left = if key.is_some() { 1 } else { 2 };
        let rest: Vec<Value> = (10..13).map(|n| call(&n.to_string(), "raw", json!({}))).collect();
        let rest = send(rest).await;
        assert_eq!(rest.iter().filter(|status| **status == 200).count(), left, "{rest:?}");
        assert_eq!(rest.iter().filter(|status| **status == 429).count(), 3 - left, "{rest:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn a_batch_with_any_failure_is_422_if_its_caller_asks_for_that() {
    let gateway = Setup::new().fake("fake").start().await;
    let tool_error = json!({"value": {"content": [], "isError": true}});
    for (failing, status) in
        [(call("b", "nothing", json!({})), 404), (call("b", "result", tool_error), 422)]
    {
        for key in [None, Some("k")] {
            let batch = json!({"calls": [call("a", "pid", json!({})), failing]});
            let request = post(&gateway, &batch).header("Trunkline-Tool-Errors", "fail");
            let request =
                key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
            let answer = Answer::of(request).await;
            assert_eq!(answer.status, 422, "{answer:?}");
            assert_eq!(statuses(answer.json()["results"].as_array().unwrap()), [200, status]);
        }
    }
    let good = json!({"calls": [call("a", "pid", json!({}))]});
    let good = post(&gateway, &good).header("Trunkline-Tool-Errors", "fail");
    assert_eq!(Answer::of(good).await.status, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn as_ndjson_the_last_line_counts_outcomes_of_each_kind() {
    let gateway = Setup::new().fake("fake").start().await;
    let tool_error = json!({"value": {"content": [], "isError": true}});
    let mut waits = call("d", "pid", json!({}));
    waits["depends_on"] = json!(["b"]);
    let batch = json!({"calls": [
        call("a", "pid", json!({})), call("b", "result", tool_error),
        call("c", "nothing", json!({})), waits, call("e", "error", json!({"code": 7})),
    ]});
    let request = post(&gateway, &batch).header("Accept", "application/x-ndjson");
    let answer = Answer::of(request).await;
    let text = answer.text();
    let lines: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!((answer.status, lines.len()), (200, 6), "{text}");
    let mut ids: Vec<_> = lines[..5].iter().map(|line| line["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b", "c", "d", "e"]);
    assert_eq!(lines[5], json!({"summary": {"calls": 5, "ok": 1, "tool_error": 1, "error": 3}}));
    gateway.stop().await;
}

#[tokio::test]
async fn rights_of_an_accepted_batch_are_checked_before_each_call() {
    let setup = Setup::new().fake("fake").tenant("acme");
    let gateway = setup.with_tenant("acme", "servers = [\"*\"]").start().await;
    let mut second = call("b", "raw", json!({}));
    second["depends_on"] = json!(["a"]);
    let batch = json!({"calls": [call("a", "hold", json!({})), second]});
    let accepted = Answer::of(post(&gateway, &batch).header("Prefer", "respond-async")).await;
    let path = format!("{}/result?wait=30", accepted.header("location"));
    let fake = gateway.fake("fake");
    eventually("held", async || (fake.calls_of("hold").len() == 1).then_some(())).await;
    let narrowed = "servers = [\"fake/hold\", \"fake/release\"]";
    let setup = gateway.setup().clone().without_tenants().with_tenant("acme", narrowed);
    assert!(gateway.apply(&setup).await);
    eventually("narrowed", async || {
        (gateway.call("fake", "pid", "{}").await.status == 404).then_some(())
    })
    .await;
    gateway.call("fake", "release", "{}").await.tool_text();
    let answer = in_time("the batch", gateway.get(&path)).await.json();
    assert_eq!(statuses(answer["results"].as_array().unwrap()), [200, 404], "{answer}");
    assert_eq!(answer["results"][1]["problem"]["code"], "tool_not_found");
    assert!(fake.calls_of("raw").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn the_rate_is_charged_when_a_call_or_batch_is_accepted() {
    let policy = "rate = \"1/h\"\nburst = 2\nservers = [\"fake\"]";
    let setup = Setup::new().without_anonymous().fake("fake").with_tenant("acme", policy);
    let gateway = setup.start().await;
    let acme = gateway.as_tenant("acme").await;
    for left in [2, 1, 0] {
        let call = acme.post("fake", "pid", "{}").header("Prefer", "respond-async");
        let answer = Answer::of(call).await;
        match left {
            0 => assert_eq!(said(&answer), problem(429, "rate_limited", true, "no")),
            _ => assert_eq!(answer.status, 202, "{answer:?}"),
        }
    }
    gateway.stop().await;
}
