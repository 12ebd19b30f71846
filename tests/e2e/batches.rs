//! An executor's work as batches with keys: a graph of 10,000 calls, while a replica is restarted.
//! A batch that fails, wholly or in part, is sent again until each call has its result.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use crate::docker::{docker, eventually};
use crate::report::Case;
use crate::stack::{Stack, Tenant};

/// Columns run beside each other; in each, a batch uses the last result of the one before.
const COLUMNS: usize = 10;
const BATCHES: usize = 10;
/// Each call of a layer uses the result of one of the layer before, and waits for another.
const LAYERS: usize = 10;
const WIDTH: usize = 10;
const NODES: usize = COLUMNS * BATCHES * LAYERS * WIDTH;
/// The pause before a batch is sent again, and how often that may be.
const PAUSE: Duration = Duration::from_millis(200);
const TRIES: usize = 300;
const WITHIN: Duration = Duration::from_secs(120);
/// Replicas write their tenants' usage every few seconds.
const USAGE_WITHIN: Duration = Duration::from_secs(60);

/// The number of requests that had to be repeated.
type Repeated = usize;

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    let tenant = stack.add_tenant("executor", &["--servers", "std"]).await?;
    let before = executed(stack, &tenant).await?;
    let began = Instant::now();
    let columns = try_join_all((0..COLUMNS).map(|column| run_column(stack, &tenant, column)));
    let gateway = &stack.gateways[0];
    let restart = async {
        docker(["restart", "--timeout", "40", &gateway.container]).await?;
        stack.serves_again(gateway).await
    };
    let (columns, restarted) = tokio::join!(columns, restart);
    restarted.context("the restart")?;
    let repeated: Repeated = columns?.into_iter().sum();
    let took = began.elapsed();
    case.note("calls with the right result", NODES);
    case.note("batches that were sent again", repeated);
    let aim = before + NODES as u64;
    let known = async || (executed(stack, &tenant).await.ok()? >= aim).then_some(());
    eventually("the executions are counted", USAGE_WITHIN, known).await?;
    let runs = usize::try_from(executed(stack, &tenant).await? - before)?;
    case.all("executions", runs, NODES);
    case.within("from the first batch to the last answer", took, WITHIN);
    Ok(())
}

/// Returns how many calls of `hash` were executed for a tenant.
async fn executed(stack: &Stack, tenant: &Tenant) -> Result<u64> {
    let usage = stack.caller(tenant, &stack.balancer).get("/v1/usage").await?.json;
    let usage = usage.context("no usage")?;
    let rows = usage["usage"].as_array().context("no usage")?;
    let hash = rows.iter().filter(|row| row["tool"] == "hash");
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or_default();
    Ok(hash.map(|row| number(row, "calls") - number(row, "errors")).sum())
}

async fn run_column(stack: &Stack, tenant: &Tenant, column: usize) -> Result<Repeated> {
    let (mut before, mut repeated) = (String::new(), 0);
    for batch in 0..BATCHES {
        let name = format!("c{column}b{batch}");
        let (last, again) = run_batch(stack, tenant, &name, &before).await?;
        (before, repeated) = (last, repeated + again);
    }
    Ok(repeated)
}

/// Sends a batch until each call has its result; returns the last one.
async fn run_batch(
    stack: &Stack,
    tenant: &Tenant,
    name: &str,
    before: &str,
) -> Result<(String, Repeated)> {
    let text = batch(name, before).to_string();
    for again in 0..TRIES {
        let request = stack.http.post(format!("{}/v1/batch", stack.balancer));
        let request = request.bearer_auth(&tenant.key).header("idempotency-key", name);
        if let Ok(response) = request.body(text.clone()).send().await
            && let Ok(body) = response.bytes().await
            && let Ok(answer) = serde_json::from_slice::<Value>(&body)
            && let Some(results) = answer["results"].as_array()
            && results.iter().all(|outcome| outcome["status"] == 200)
        {
            return Ok((check(name, before, results)?, again));
        }
        sleep(PAUSE).await;
    }
    bail!("the batch {name} was never done");
}

fn id(layer: usize, at: usize) -> String {
    format!("n{layer}-{}", at % WIDTH)
}

/// The text that a call of the first layer hashes.
fn first(name: &str, at: usize, before: &str) -> String {
    format!("{name} {at} {before}")
}

fn batch(name: &str, before: &str) -> Value {
    let call = |layer: usize, at: usize| {
        let (text, waits_for) = match layer.checked_sub(1) {
            None => (json!(first(name, at, before)), vec![]),
            Some(above) => (
                json!({"$result": id(above, at + 1), "pointer": "/content/0/text"}),
                vec![id(above, at + 7)],
            ),
        };
        json!({
            "id": id(layer, at), "server": "std", "tool": "hash", "depends_on": waits_for,
            "arguments": {"algorithm": "sha256", "text": text},
        })
    };
    let calls = (0..LAYERS).flat_map(|layer| (0..WIDTH).map(move |at| (layer, at)));
    json!({"calls": calls.map(|(layer, at)| call(layer, at)).collect::<Vec<_>>()})
}

/// Works out each result here as well. Returns the last one.
fn check(name: &str, before: &str, results: &[Value]) -> Result<String> {
    let mut above: Vec<String> = (0..WIDTH).map(|at| first(name, at, before)).collect();
    for (layer, outcomes) in results.chunks(WIDTH).enumerate() {
        let mut texts = vec![];
        for (at, outcome) in outcomes.iter().enumerate() {
            let from = if layer == 0 { at } else { (at + 1) % WIDTH };
            let digest = Sha256::digest(above[from].as_bytes());
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = json!({"algorithm": "sha256", "hex": hex}).to_string();
            let seen = &outcome["result"]["content"][0]["text"];
            if outcome["id"] != id(layer, at) || *seen != json!(text) {
                bail!("{name}, {}: {outcome}", id(layer, at));
            }
            texts.push(text);
        }
        above = texts;
    }
    above.pop().context("no results")
}
