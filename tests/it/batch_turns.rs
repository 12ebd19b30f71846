//! A batch gains no place in the queue, and its calls carry its fairness key, labels and ids.

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Answer, Gateway, Setup, eventually, kill};

fn call(id: &str, tool: &str, arguments: Value) -> Value {
    json!({"id": id, "server": "fake", "tool": tool, "arguments": arguments})
}

/// The values of `n` in the calls that the server has got, in their order.
fn order(gateway: &Gateway) -> Vec<i64> {
    let calls = gateway.fake("fake").calls_of("later");
    calls.iter().map(|call| call["params"]["arguments"]["n"].as_i64().unwrap()).collect()
}

#[tokio::test]
async fn calls_of_a_batch_take_turns_under_its_fairness_key() {
    for key in [None, Some("k")] {
        let gateway = Setup::new().fake_with("fake", &[], "max_in_flight = 1").start().await;
        // While it is stopped the calls line up, one after another.
        kill(gateway.fake("fake").pids()[0], Signal::STOP);
        let mut calls = JoinSet::new();
        let long: Vec<Value> =
            (0..20).map(|n| call(&n.to_string(), "later", json!({"ms": 1, "n": n}))).collect();
        let batch = json!({"calls": long}).to_string();
        let batch = gateway.client.post(gateway.url("/v1/batch")).body(batch);
        let batch = key.into_iter().fold(batch, |it, key| it.header("Idempotency-Key", key));
        calls.spawn(Answer::of(batch.header("Trunkline-Fairness-Key", "long run")));
        gateway.has_in_flight("fake", 20.0).await;
        // A call without a key and one of the same run.
        for (n, run) in [(20, "long run"), (21, "short run")] {
            let single = gateway.post("fake", "later", json!({"ms": 1, "n": n}));
            calls.spawn(Answer::of(single.header("Trunkline-Fairness-Key", run)));
            gateway.has_in_flight("fake", f64::from(n + 1)).await;
        }
        kill(gateway.fake("fake").pids()[0], Signal::CONT);
        for answer in calls.join_all().await {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let order = order(&gateway);
        let place = |n: i64| order.iter().position(|it| *it == n).unwrap();
        // The first call had the slot; one of the long run's was next in line.
        assert_eq!((place(21), place(20)), (2, 21), "{order:?}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn labels_and_ids_of_a_batch_are_those_of_its_calls() {
    let gateway = Setup::new().set("log.calls = \"all\"").fake("fake").serve().await;
    let batch = json!({"calls": [
        call("a", "raw", json!({})), call("b", "nothing", json!({})),
    ]});
    for key in [None, Some("k")] {
        let url = format!("http://{}/v1/batch", gateway.addr);
        let request = gateway.client.post(url).body(batch.to_string());
        let request = key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
        let request = request.header("Trunkline-Labels", "run=7,task=a");
        let answer = Answer::of(request.header("X-Request-Id", "r-9")).await;
        assert_eq!(answer.header("x-request-id"), "r-9");
        for outcome in answer.json()["results"].as_array().unwrap() {
            let id = outcome["call_id"].clone();
            let line = eventually("logged", async || {
                let lines = gateway.log();
                let mut lines =
                    lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
                lines.find(|line| line["target"] == "call" && line["call"] == id)
            })
            .await;
            assert_eq!(line["labels"], json!(["run=7", "task=a"]), "{line}");
            assert_eq!(line["request_id"], "r-9", "{line}");
        }
    }
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for key in [None, Some("traced")] {
        let url = format!("http://{}/v1/batch", gateway.addr);
        let request = gateway.client.post(url).body(batch.to_string());
        let request = key.into_iter().fold(request, |it, key| it.header("Idempotency-Key", key));
        Answer::of(request.header("traceparent", trace)).await;
        let last = gateway.fake("fake").calls_of("raw").pop().unwrap();
        assert_eq!(last["params"]["_meta"]["traceparent"], trace, "{last}");
    }
    let kept = gateway.get("/v1/calls?label=run%3D7").await.json();
    assert_eq!(kept["calls"].as_array().unwrap().len(), 1, "{kept}");
    assert_eq!(kept["calls"][0]["request_id"], "r-9");
}
