//! An executor's work: a graph of 200 calls, each of which needs the results of others.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::calls::{Call, Outcome, Server};
use crate::report::Case;
use crate::stack::Stack;

/// How many calls each layer has; the first one fans out to fifty, the last one gathers all before
/// it.
const LAYERS: [usize; 6] = [1, 50, 50, 50, 48, 1];
const WITHIN: Duration = Duration::from_secs(30);

/// A node of the graph.
struct Node {
    parents: Vec<usize>,
    /// The answers of the parents, once all are known.
    waits_for: usize,
}

pub async fn run(stack: &Stack, case: &mut Case) -> Result<()> {
    let mut graph = graph();
    let total = graph.len();
    let children = children(&graph);
    let callers = stack.callers(&stack.amber, 6).await?;
    let mut results: Vec<Option<String>> = vec![None; total];
    let mut running = JoinSet::new();
    let (mut right, mut most) = (0, 0);
    let began = Instant::now();
    let mut ready = vec![0];
    loop {
        for node in std::mem::take(&mut ready) {
            let (call, hex) = call_of(&graph[node], node, &results)?;
            let caller = callers[node % callers.len()].clone();
            running.spawn(async move { (node, hex, caller.call(&call).await) });
        }
        most = most.max(running.len());
        let Some(ended) = running.join_next().await else { break };
        let (node, hex, outcome) = ended?;
        if outcome != Outcome::Right {
            bail!("node {node}: {outcome:?}");
        }
        right += 1;
        results[node] = Some(hex);
        for child in &children[node] {
            graph[*child].waits_for -= 1;
            if graph[*child].waits_for == 0 {
                ready.push(*child);
            }
        }
    }
    case.all("calls with the right result", right, total);
    case.note("at once, at most", most);
    case.within("from the first call to the last answer", began.elapsed(), WITHIN);
    Ok(())
}

/// Each node hashes what its parents have found out; the right result is worked out here as well.
fn call_of(node: &Node, number: usize, results: &[Option<String>]) -> Result<(Call, String)> {
    let mut text = format!("node {number}");
    for parent in &node.parents {
        text += results[*parent].as_deref().context("called before its parents were done")?;
    }
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let call = Call {
        server: Server::Std,
        tool: "hash",
        arguments: json!({"algorithm": "sha256", "text": text}),
        expected: json!({"algorithm": "sha256", "hex": hex}).to_string(),
        within: None,
    };
    Ok((call, hex))
}

fn graph() -> Vec<Node> {
    let mut graph: Vec<Node> = vec![];
    let mut before = 0..0;
    for (layer, size) in LAYERS.into_iter().enumerate() {
        let start = graph.len();
        for n in 0..size {
            let parent = |step: usize| before.start + (n + step) % before.len();
            let parents: Vec<_> = match layer {
                0 => vec![],
                1 => vec![before.start],
                5 => before.clone().collect(),
                _ => vec![parent(0), parent(1), parent(7)],
            };
            graph.push(Node { waits_for: parents.len(), parents });
        }
        before = start..graph.len();
    }
    graph
}

fn children(graph: &[Node]) -> Vec<Vec<usize>> {
    let mut children = vec![vec![]; graph.len()];
    for (number, node) in graph.iter().enumerate() {
        for parent in &node.parents {
            children[*parent].push(number);
        }
    }
    children
}
