//! A graph of calls as batches with keys, while one of two replicas is restarted: all results are
//! right, and no call runs twice.

use std::collections::HashMap;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use crate::support::{Api, Database, Postgres, Serving, Setup, in_time};

const STAGES: usize = 3;
const BATCHES: usize = 8;
const LAYERS: usize = 4;
const WIDTH: usize = 10;
/// The pause before a batch is sent again.
const PAUSE: Duration = Duration::from_millis(50);

fn node(layer: usize, at: usize) -> String {
    format!("n{layer}-{}", at % WIDTH)
}

/// One batch of a stage: each call uses the results of two of the layer before.
fn batch(name: &str) -> Value {
    let mut calls = vec![];
    for layer in 0..LAYERS {
        for at in 0..WIDTH {
            let result = |at| json!({"$result": node(layer - 1, at), "pointer": "/content/0/text"});
            let from = if layer == 0 { json!([]) } else { json!([result(at), result(at + 3)]) };
            let arguments = json!({"batch": name, "node": node(layer, at), "from": from});
            let id = node(layer, at);
            calls.push(json!({"id": id, "server": "fake", "tool": "raw", "arguments": arguments}));
        }
    }
    json!({"calls": calls})
}

/// Sends a batch to one replica after the other until each of its calls has a result.
async fn finish(replicas: &[Api], name: &str) {
    let batch = batch(name).to_string();
    for api in replicas.iter().cycle() {
        let request = api.client.post(api.url("/v1/batch")).body(batch.clone());
        if let Ok(response) = request.header("Idempotency-Key", name).send().await
            && let Ok(body) = response.bytes().await
            && let Ok(answer) = serde_json::from_slice::<Value>(&body)
            && let Some(results) = answer["results"].as_array()
            && results.iter().all(|outcome| outcome["status"] == 200)
        {
            return check(name, results);
        }
        sleep(PAUSE).await;
    }
}

fn check(name: &str, results: &[Value]) {
    let text = |id: &str| {
        let found = results.iter().find(|outcome| outcome["id"] == id).unwrap();
        found["result"]["content"][0]["text"].as_str().unwrap()
    };
    for layer in 0..LAYERS {
        for at in 0..WIDTH {
            let id = node(layer, at);
            let said: Value = serde_json::from_str(text(&id)).unwrap();
            assert_eq!((&said["batch"], &said["node"]), (&json!(name), &json!(id)));
            if layer > 0 {
                let from = [at, at + 3].map(|at| text(&node(layer - 1, at)));
                assert_eq!(said["from"], json!(from));
            }
        }
    }
}

#[tokio::test]
async fn a_graph_of_batches_survives_the_restart_of_a_replica() {
    let Some(server) = Postgres::shared() else { return };
    let database = Database::postgres(server).await;
    let replica = || {
        let keys = "session_keys = [\"0123456789abcdef0123456789abcdef\"]";
        let setup = Setup::new().with_store(&database.url).fake("fake").set(keys);
        setup.set("replicas.listen = \"127.0.0.1:0\"").serve()
    };
    let api = |serving: &Serving| Api::new(serving.addr, None);
    let (mut one, other) = tokio::join!(replica(), replica());
    let fakes = [one.fake("fake"), other.fake("fake")];
    for stage in 0..STAGES {
        let apis = [api(&one), api(&other)];
        let names: Vec<_> = (0..BATCHES).map(|at| format!("s{stage}b{at}")).collect();
        let all = join_all(names.iter().map(|name| finish(&apis, name)));
        let restart = async {
            if stage != 1 {
                return one;
            }
            let mut one = one;
            one.signal(Signal::TERM);
            one.ended().await;
            one.restart().await
        };
        (_, one) = tokio::join!(in_time("the stage", all), restart);
    }
    let mut runs = HashMap::new();
    for call in fakes.iter().flat_map(|fake| fake.calls_of("raw")) {
        let arguments = &call["params"]["arguments"];
        *runs.entry(format!("{} {}", arguments["batch"], arguments["node"])).or_insert(0) += 1;
    }
    assert_eq!(runs.len(), STAGES * BATCHES * LAYERS * WIDTH);
    let twice: Vec<_> = runs.iter().filter(|(_, runs)| **runs > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
