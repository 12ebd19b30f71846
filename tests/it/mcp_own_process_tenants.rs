//! `sharing = "session"` with several tenants: each gets its part of `max_sessions` and of the
//! starts, whatever another one opens.

use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::mcp_legacy::{Session, Stream, initialize, post};
use crate::support::{Answer, Api, Gateway, Setup, eventually};

async fn start(options: &[&str], settings: &str) -> (Gateway, [Api; 3]) {
    let settings = format!("sharing = \"session\"\n{settings}");
    let mut setup = Setup::new().fake_with("own", options, &settings);
    for tenant in ["a", "b", "c"] {
        setup = setup.with_tenant(tenant, "servers = [\"own\"]");
    }
    let gateway = setup.start().await;
    let [a, b, c] = ["a", "b", "c"].map(|tenant| gateway.as_tenant(tenant));
    let tenants = [a.await, b.await, c.await];
    (gateway, tenants)
}

/// Opens sessions with a stream each until one is refused; returns them and the refusal.
async fn open_all(api: &Api) -> (Vec<(Session, Stream)>, Answer) {
    let mut open = vec![];
    loop {
        let opened = Session::try_open(api, "/mcp/own", json!({})).await;
        if !opened.json()["result"].is_object() {
            return (open, opened);
        }
        let session = Session::of(api, "/mcp/own", opened.header("mcp-session-id"));
        let stream = session.listen().await;
        open.push((session, stream));
    }
}

async fn alive(sessions: &[(Session, Stream)]) -> Vec<bool> {
    let mut alive = vec![];
    for (session, _) in sessions {
        alive.push(session.ask("ping", json!({})).await.status == 200);
    }
    alive
}

#[tokio::test]
async fn a_tenant_that_opens_all_it_can_leaves_a_quarter_to_others() {
    let (gateway, [a, b, c]) = start(&[], "max_sessions = 8").await;
    let (of_a, refusal) = open_all(&a).await;
    assert_eq!(of_a.len(), 6);
    let error = &refusal.json()["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(429), &json!("tenant_busy")));
    // The second tenant takes one of the two that are kept, and then of the first one's.
    let (of_b, refusal) = open_all(&b).await;
    assert_eq!(of_b.len(), 3);
    assert_eq!(refusal.json()["error"]["code"], 429);
    assert_eq!(alive(&of_a).await, [false, false, true, true, true, true]);
    // The last one is for a tenant that has none.
    Session::open(&c, "/mcp/own").await;
    assert_eq!(alive(&of_b).await, [true; 3]);
    gateway.stop().await;
}

#[tokio::test]
async fn sessions_that_have_a_call_are_not_ended_and_the_reserve_serves_others() {
    let (gateway, [a, b, c]) = start(&[], "max_sessions = 4").await;
    let (of_a, _) = open_all(&a).await;
    assert_eq!(of_a.len(), 3);
    let held: Vec<JoinHandle<Answer>> = of_a
        .iter()
        .map(|(session, _)| tokio::spawn(Answer::of(session.call(7, "hold", json!({})))))
        .collect();
    eventually("held", async || (gateway.fake("own").calls_of("hold").len() == 3).then_some(()))
        .await;
    let one = Session::open(&b, "/mcp/own").await;
    one.tool_text("pid", json!({})).await;
    let refusal = Session::try_open(&c, "/mcp/own", json!({})).await;
    assert_eq!(refusal.json()["error"]["data"]["code"], "overloaded", "none of its own: ours");
    assert_eq!(alive(&of_a).await, [true; 3]);
    held.iter().for_each(JoinHandle::abort);
    gateway.stop().await;
}

/// The processes of 12 sessions of one tenant start 1 s each.
#[tokio::test]
async fn starts_take_turns_by_tenant() {
    let (gateway, [a, b, _]) = start(&["start=slow"], "").await;
    let greet = |api: &Api| post(api, "/mcp/own", initialize("2025-11-25", &json!({})));
    let crowd: Vec<_> = (0..12).map(|_| tokio::spawn(Answer::of(greet(&a)))).collect();
    let fake = gateway.fake("own");
    eventually("some started", async || (fake.pids().len() >= 3).then_some(())).await;
    let neighbour = Session::open(&b, "/mcp/own").await;
    let pid: i32 = neighbour.tool_text("pid", json!({})).await.parse().unwrap();
    let before = fake.pids().iter().position(|it| *it == pid).unwrap();
    assert!(before < 8, "{before} processes of another tenant started first");
    for opened in crowd {
        assert!(opened.await.unwrap().json()["result"].is_object());
    }
    gateway.stop().await;
}
