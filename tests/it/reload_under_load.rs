//! The promise: the configuration changes under load, and not one call fails.
//!
//! `TRUNKLINE_RELOADS=100 cargo test --test it -- reload_under_load --nocapture` makes it a hundred
//! times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use tokio::task::JoinSet;

use crate::support::mcp_legacy::Session;
use crate::support::{Gateway, Mcp, Setup, eventually};

/// Unless told otherwise.
const RELOADS: usize = 10;
/// Of one of the servers.
const INSTANCES: usize = 3;

/// The calls that run while the configuration changes.
struct Load {
    is_over: AtomicBool,
    calls: AtomicUsize,
}

impl Load {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Counts calls that were answered well.
    fn note(&self, calls: usize) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_one_call_fails_while_the_configuration_changes_again_and_again() {
    let reloads = std::env::var("TRUNKLINE_RELOADS").map_or(RELOADS, |text| text.parse().unwrap());
    let none = Setup::new();
    let gateway = Arc::new(with_servers(&none, "", "").start().await);
    eventually("ready", async || (ready_instances(&gateway).await == INSTANCES).then_some(()))
        .await;
    let load = Arc::new(Load { is_over: AtomicBool::new(false), calls: AtomicUsize::new(0) });
    let mut callers = JoinSet::new();
    for n in 0..4 {
        callers.spawn(call_by_rest(gateway.clone(), load.clone(), n));
        callers.spawn(call_by_mcp(gateway.mcp("/mcp"), load.clone(), n));
    }
    callers.spawn(call_in_session(gateway.clone(), load.clone()));
    callers.spawn(watch_instances(gateway.clone(), load.clone()));
    for round in 0..reloads {
        let changed = format!("timeout = \"{}s\"", 31 + round);
        let setup = match round % 6 {
            // Replaced, one after the other and both together.
            0 => with_servers(&none, &changed, ""),
            1 => with_servers(&none, "", &changed),
            2 => with_servers(&none, &changed, &changed).fake("third"),
            // Never two at once.
            3 => with_servers(&none, "", &format!("exclusive = true\n{changed}")),
            4 => with_servers(&none, "", &format!("start = \"lazy\"\n{changed}")),
            // What does not start keeps nobody from calling.
            _ => failing(&none),
        };
        assert!(gateway.apply(&setup).await);
        // Every other change comes while the one before is still under way.
        if round % 2 == 0 {
            settled(&gateway).await;
        }
    }
    assert!(gateway.apply(&with_servers(&none, "", "")).await);
    settled(&gateway).await;
    load.is_over.store(true, Ordering::Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let calls = load.calls.load(Ordering::Relaxed);
    let starts = gateway.fake("fake").pids().len();
    println!("{calls} calls, {reloads} reloads, {starts} starts of one server, no call failed");
    assert!(calls > 10 * reloads && starts > reloads / 6, "{calls} calls, {starts} starts");
    Arc::into_inner(gateway).expect("no caller is left").stop().await;
}

/// Calls a process of each tenant and a server of three instances as well as `fake`.
fn with_servers(none: &Setup, of_fake: &str, of_std: &str) -> Setup {
    servers(none, &[], of_fake).server("std", "trunkline", &["std".to_owned()], of_std)
}

fn failing(none: &Setup) -> Setup {
    servers(none, &["start=fail"], "").server("std", "trunkline", &["std".to_owned()], "")
}

fn servers(none: &Setup, options: &[&str], settings: &str) -> Setup {
    none.clone()
        .fake_with("fake", options, settings)
        .fake_with("own", options, &format!("sharing = \"tenant\"\n{settings}"))
        .fake_with("three", options, &format!("instances = {INSTANCES}\n{settings}"))
}

/// Nothing is on its way any more.
async fn settled(gateway: &Gateway) {
    eventually("settled", async || {
        let servers = gateway.servers().await.json();
        let mut servers = servers["servers"].as_array().unwrap().iter();
        servers.all(|server| server.get("replacement").is_none()).then_some(())
    })
    .await;
}

async fn call_by_rest(gateway: Arc<Gateway>, load: Arc<Load>, n: u32) {
    while load.goes_on() {
        let text = format!("rest {n}");
        let answer = gateway.call("std", "echo", json!({"text": text})).await;
        assert_eq!(answer.tool_text(), text);
        let answer = gateway.call("fake", "later", json!({"ms": 10 * n})).await;
        assert_eq!(answer.tool_text(), "later");
        for server in ["own", "three"] {
            assert_eq!(gateway.call(server, "later", json!({"ms": n})).await.tool_text(), "later");
        }
        assert_eq!(gateway.tools("std").await.status, 200);
        load.note(5);
    }
}

async fn call_by_mcp(mcp: Mcp, load: Arc<Load>, n: u32) {
    while load.goes_on() {
        let text = format!("mcp {n}");
        let said = mcp.call("std__echo", json!({"text": text})).send().await;
        assert_eq!(said.tool_text(), text);
        let said = mcp.call("fake__later", json!({"ms": 10 * n})).send().await;
        assert_eq!(said.tool_text(), "later");
        let names = mcp.tool_names().await;
        assert!(["fake__later", "std__echo"].iter().all(|it| names.iter().any(|name| name == it)));
        load.note(3);
    }
}

async fn call_in_session(gateway: Arc<Gateway>, load: Arc<Load>) {
    let session = Session::open(&gateway, "/mcp").await;
    while load.goes_on() {
        assert_eq!(session.tool_text("std__echo", json!({"text": "legacy"})).await, "legacy");
        load.note(1);
    }
}

/// A server that is replaced is never less than it was.
async fn watch_instances(gateway: Arc<Gateway>, load: Arc<Load>) {
    while load.goes_on() {
        assert_eq!(ready_instances(&gateway).await, INSTANCES);
        load.note(1);
    }
}

async fn ready_instances(gateway: &Gateway) -> usize {
    gateway.server("three").await.json()["ready"].as_u64().unwrap() as usize
}
