//! Bursts of notifications: what waits, what comes, and what is left out.

use serde_json::{Value, json};

use crate::support::mcp_legacy::{Session, messages};
use crate::support::mcp_modern::LOG_LEVEL;
use crate::support::{Answer, Setup};

fn log(n: usize) -> Value {
    json!({"method": "notifications/message", "params": {"level": "info", "data": n}})
}

#[tokio::test]
async fn a_caller_that_reads_gets_all_of_a_burst_of_progress() {
    let gateway = Setup::new().fake("fake").start().await;
    let call = gateway.mcp("/mcp/fake").call("burst", json!({"progress": 100}));
    let said = call.meta("progressToken", 1).send().await;
    let heard: Vec<_> =
        said.before().iter().map(|it| it["params"]["progress"].as_u64().unwrap()).collect();
    assert_eq!(heard, (1..=100).collect::<Vec<_>>());
    gateway.stop().await;
}

#[tokio::test]
async fn a_session_gets_all_lines_of_its_own_server() {
    let gateway = Setup::new().fake_with("own", &[], "sharing = \"session\"").start().await;
    let session = Session::open(&gateway, "/mcp/own").await;
    let answer = Answer::of(session.call(1, "burst", json!({"lines": 500}))).await;
    let heard: Vec<_> =
        messages(&answer).iter().filter_map(|it| it["params"]["data"].as_u64()).collect();
    assert_eq!(heard, (0..500).collect::<Vec<_>>());
    gateway.stop().await;
}

#[tokio::test]
async fn what_an_own_server_says_while_nobody_listens_waits_for_the_next_stream() {
    let setup = Setup::new().talker_with("own", "legacy", &[], "sharing = \"session\"");
    let gateway = setup.start().await;
    let session = Session::open(&gateway, "/mcp/own").await;
    let lines: Vec<_> = (0..200).map(log).collect();
    let answer = Answer::of(session.call(1, "say", json!({"after": lines}))).await;
    let mut heard: Vec<_> =
        messages(&answer).iter().filter_map(|it| it["params"]["data"].as_u64()).collect();
    let mut stream = session.listen().await;
    while heard.len() < 200 {
        let message = stream.message().await;
        heard.extend(message["params"]["data"].as_u64());
    }
    assert_eq!(heard, (0..200).collect::<Vec<_>>());
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_caller_gets_all_log_lines_of_a_burst() {
    let gateway = Setup::new().talker("talker", "modern").start().await;
    let lines: Vec<_> = (0..500).map(log).collect();
    let call = gateway.mcp("/mcp/talker").call("say", json!({"say": lines}));
    let said = call.meta(LOG_LEVEL, "debug").send().await;
    assert_eq!(said.before().len(), 500);
    gateway.stop().await;
}
