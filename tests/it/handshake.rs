//! Servers of both eras, and those that take their time to say so.

use serde_json::{Value, json};

use crate::support::{Setup, eventually};

fn view(id: &str, version: &str, era: &str, server: &Value) -> Value {
    let (tools, since) = (&server["tools"], &server["since"]);
    json!({
        "id": id, "state": "ready", "since": since, "ready": 1, "instance_count": 1,
        "protocol_version": version, "era": era, "tools": tools
    })
}

#[tokio::test]
async fn any_error_to_the_modern_greeting_means_a_legacy_server() {
    let codes = ["-32601", "-32602", "-32600", "-32700", "-32000", "7"];
    let mut setup = Setup::new();
    for (n, code) in codes.iter().enumerate() {
        setup = setup.fake_with(&format!("s{n}"), &[&format!("discover={code}")], "");
    }
    let gateway = setup.start().await;
    for n in 0..codes.len() {
        let id = format!("s{n}");
        let server = gateway.server(&id).await.json();
        assert_eq!(server, view(&id, "2025-11-25", "legacy", &server));
        assert_eq!(gateway.call(&id, "raw", "{}").await.tool_text(), "{}");
        assert_eq!(gateway.fake(&id).received_of("notifications/initialized").len(), 1);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_ignores_the_modern_greeting_is_greeted_the_old_way() {
    let gateway = Setup::new().fake_with("fake", &["discover=ignore"], "").start().await;
    let server = gateway.server("fake").await.json();
    assert_eq!(server, view("fake", "2025-11-25", "legacy", &server));
    assert_eq!(gateway.call("fake", "raw", "{}").await.tool_text(), "{}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_modern_server_stays_modern_however_slow_it_starts() {
    let gateway = Setup::new()
        .fake_with("quick", &["discover=modern"], "")
        .fake_with("slow", &["discover=slow"], "")
        .start()
        .await;
    for id in ["quick", "slow"] {
        let server = gateway.server(id).await.json();
        assert_eq!(server, view(id, "2026-07-28", "modern", &server));
        assert_eq!(gateway.call(id, "raw", "{}").await.tool_text(), "{}");
        let call = &gateway.fake(id).calls_of("raw")[0];
        let version = &call["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(version, "2026-07-28");
    }
    // Nobody asked the quick one for the old greeting.
    assert!(gateway.fake("quick").received_of("initialize").is_empty());
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_at_start_timeout() {
    let gateway = Setup::new()
        .fake_with("fake", &["start=mute"], "start_timeout = \"300ms\"")
        .start_at_once()
        .await;
    let server = eventually("given up", async || {
        let server = gateway.server("fake").await.json();
        (server["state"] == "backoff").then_some(server)
    })
    .await;
    let reason = server["reason"].as_str().unwrap();
    assert_eq!(reason, "it did not answer in time (`start_timeout`)");
    gateway.stop().await;
}
