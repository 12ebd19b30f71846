//! Deadlines from end to end: what servers are told of them, and what moves them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{Fake, Gateway, Setup, eventually};

const TIMEOUT: &str = "trunkline/timeoutMs";

async fn start(settings: &str) -> Gateway {
    Setup::new().fake_with("fake", &[], settings).start().await
}

/// Returns the time left that the last call of a tool was told.
fn told(fake: &Fake, tool: &str) -> Option<Value> {
    fake.calls_of(tool).last().unwrap()["params"]["_meta"].get(TIMEOUT).cloned()
}

#[tokio::test]
async fn a_server_is_told_what_is_left_after_the_queue() {
    let gateway = start("tell_deadline = true\nmax_in_flight = 1").await;
    let fake = gateway.fake("fake");
    assert_eq!(gateway.call_within_ms(9000, "fake", "raw", "{}").await.status, 200);
    let left = told(&fake, "raw").unwrap().as_u64().unwrap();
    assert!((7000..=9000).contains(&left), "{left}");
    let first = gateway.spawn_call("fake", "later", r#"{"ms":1500}"#);
    eventually("under way", async || fake.calls_of("later").pop()).await;
    let began = Instant::now();
    assert_eq!(gateway.call_within_ms(9000, "fake", "raw", "{}").await.status, 200);
    let waited = began.elapsed();
    assert_eq!(first.await.unwrap().tool_text(), "later");
    let left = told(&fake, "raw").unwrap().as_u64().unwrap();
    assert!((5000..=8500).contains(&left), "{left} after {waited:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn what_a_caller_says_in_that_place_is_not_passed_on() {
    for (settings, members) in [("tell_deadline = true", 1), ("", 0)] {
        let gateway = start(settings).await;
        let call = gateway.mcp("/mcp/fake").call("raw", json!({}));
        call.meta(TIMEOUT, 7).meta("mine/other", 1).send().await.result();
        let fake = gateway.fake("fake");
        assert_ne!(told(&fake, "raw"), Some(json!(7)));
        // As text: a reader of JSON would not tell that there are two.
        let lines = fake.lines_received();
        let line = lines.iter().find(|line| line.contains("mine/other")).unwrap();
        assert_eq!(line.matches(TIMEOUT).count(), members, "{line}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn progress_moves_the_deadline_but_not_for_ever() {
    let gateway = start("timeout = \"1s\"\nmax_timeout = \"3s\"").await;
    let mcp = gateway.mcp("/mcp/fake");
    let slowly = |steps: u32| mcp.call("slowly", json!({"steps": steps, "ms": 400}));
    // Each word of it gives another second.
    let said = slowly(4).meta("progressToken", 1).send().await;
    assert_eq!((said.tool_text().as_str(), said.before().len()), ("done", 4));
    let began = Instant::now();
    let error = slowly(50).meta("progressToken", 1).send().await.error();
    assert_eq!(error["data"]["code"], "deadline_exceeded");
    let took = began.elapsed();
    assert!((Duration::from_secs(3)..Duration::from_secs(8)).contains(&took), "{took:?}");
    // Whoever names a deadline means it.
    let began = Instant::now();
    let named = slowly(50).meta("progressToken", 1).header("trunkline-timeout-ms", "1000");
    assert_eq!(named.send().await.error()["data"]["code"], "deadline_exceeded");
    assert!(began.elapsed() < Duration::from_millis(2900), "{:?}", began.elapsed());
    gateway.stop().await;
}
