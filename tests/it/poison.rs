//! A tenant whose calls end a server that others share.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use trunkline::store::{Actor, KeyOwner};

use crate::support::{Answer, Api, Gateway, Setup, eventually, failed, refused};

const POISON_EVERY: Duration = Duration::from_millis(200);
/// The calls that each neighbour has at once.
const CALLS_AT_ONCE: usize = 2;

/// Starts a server that these tenants share with the anonymous one.
async fn start(tenants: &[&str], settings: &str) -> (Gateway, Vec<Api>) {
    let with = |setup: Setup, id: &&str| setup.with_tenant(id, "servers = [\"*\"]");
    let setup = tenants.iter().fold(Setup::new(), with).fake_with("fake", &[], settings);
    let gateway = setup.start().await;
    let mut apis = vec![];
    for tenant in tenants {
        apis.push(gateway.as_tenant(tenant).await);
    }
    gateway.ready().await;
    (gateway, apis)
}

/// Calls all the time; returns the answers that are no results.
async fn keep_calling(api: Api, until: Instant) -> Vec<Answer> {
    let mut failures = vec![];
    while Instant::now() < until {
        let answer = api.call("fake", "later", r#"{"ms":5}"#).await;
        if answer.status != 200 {
            failures.push(answer);
        }
    }
    failures
}

/// Has a tenant end whatever process it calls, until it is refused. Returns the calls that did so
/// and the refusal.
async fn poison_until_refused(hostile: &Api) -> (usize, Answer) {
    for ended in 0.. {
        let answer = hostile.call("fake", "exit", r#"{"code":3}"#).await;
        if answer.status == 429 {
            return (ended, answer);
        }
        assert_eq!(answer.problem(), failed(502, "backend_exited"));
        sleep(POISON_EVERY).await;
    }
    unreachable!()
}

async fn admin_server(gateway: &Gateway) -> Value {
    let store = gateway.setup().store().await;
    let key = store.create_key(&Actor::cli("test"), &KeyOwner::Admin, None, None).await.unwrap();
    let servers = gateway.with_key(key.key.expose()).get("/admin/v1/servers").await.json();
    servers["servers"][0].clone()
}

#[tokio::test]
async fn a_tenant_that_keeps_ending_a_shared_server_is_refused_and_its_neighbours_are_served() {
    let (gateway, neighbours) = start(&["one", "two", "three"], "").await;
    let until = Instant::now() + Duration::from_secs(8);
    let mut calling = JoinSet::new();
    for neighbour in neighbours.iter().flat_map(|it| vec![it.clone(); CALLS_AT_ONCE]) {
        calling.spawn(keep_calling(neighbour, until));
    }
    let (ended, refusal) = poison_until_refused(&gateway).await;
    assert_eq!(refusal.problem(), refused(429, "tenant_quarantined").for_now());
    assert!(refusal.retry_after().is_some_and(|seconds| (20..=33).contains(&seconds)));
    // Two make suspects, two halve four, three are its own.
    assert!(ended <= 7, "{ended}");
    let server = admin_server(&gateway).await;
    let suspect = &server["suspects"][0];
    assert_eq!((&suspect["tenant"], &suspect["state"]), (&json!("local"), &json!("quarantined")));
    assert_eq!(server["state"], "ready");
    let metric = "trunkline_server_quarantined_tenants{server=\"fake\"}";
    assert_eq!(gateway.metrics().await.value(metric), Some(1.0));
    while Instant::now() < until {
        assert_eq!(gateway.call("fake", "raw", "{}").await.status, 429);
        sleep(POISON_EVERY).await;
    }
    // At each of the at most four crashes beside others, the calls that were in flight.
    let failures = calling.join_all().await;
    for failures in &failures {
        assert!(failures.len() <= 4, "{failures:?}");
        for failure in failures {
            assert_eq!(failure.problem(), failed(502, "backend_exited"));
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_busy_tenant_whose_calls_are_in_flight_at_each_crash_is_never_refused() {
    let (gateway, tenants) = start(&["busy"], "").await;
    let busy = tenants[0].clone();
    let mut held = busy.spawn_call("fake", "hold", "{}");
    let hostile = async {
        let mut ended = 0;
        loop {
            // Only while the other one has a call in flight.
            gateway.has_in_flight("fake", 1.0).await;
            let answer = gateway.call("fake", "exit", "{}").await;
            if answer.status == 429 {
                return ended;
            }
            ended += 1;
        }
    };
    let stays_busy = async {
        loop {
            let answer = (&mut held).await.unwrap();
            assert_eq!(answer.problem(), failed(502, "backend_exited"));
            held = busy.spawn_call("fake", "hold", "{}");
        }
    };
    let ended = tokio::select! {
        ended = hostile => ended,
        () = stays_busy => unreachable!(),
    };
    assert!((3..=7).contains(&ended), "{ended}");
    assert!(!held.is_finished());
    assert_eq!(busy.call("fake", "raw", "{}").await.tool_text(), "{}");
    held.abort();
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_ends_without_a_call_is_quarantined_itself() {
    let (gateway, _) = start(&[], "").await;
    let fake = gateway.fake("fake");
    for start in 0..5 {
        let pid = eventually("a start", async || fake.pids().get(start).copied()).await;
        crate::support::kill(pid, rustix::process::Signal::KILL);
    }
    eventually("quarantine", async || {
        (gateway.server("fake").await.json()["state"] == "quarantined").then_some(())
    })
    .await;
    let answer = gateway.call("fake", "raw", "{}").await;
    assert_eq!(answer.problem(), refused(503, "server_unavailable").for_now());
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_that_ends_its_instance_is_tried_again_once() {
    let (gateway, _) = start(&[], "retry = \"safe\"\n").await;
    let answer = gateway.call("fake", "steps", json!({"steps": ["exit"]})).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    assert_eq!(answer.header("trunkline-attempts"), "2");
    assert_eq!(gateway.fake("fake").calls_of("steps").len(), 2);
    gateway.stop().await;
}
