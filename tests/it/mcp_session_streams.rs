//! The stream of a session for what is nobody's answer: changes of lists.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::mcp_legacy::{Session, Stream};
use crate::support::{Gateway, Setup, eventually};

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";

/// Has the server say something.
async fn say(gateway: &Gateway, server: &str, methods: &[&str]) {
    let messages: Vec<Value> = methods.iter().map(|method| json!({"method": method})).collect();
    gateway.call(server, "say", json!({"messages": messages})).await.tool_text();
}

/// The messages that the streams get in this order, each once.
async fn hear(streams: &mut [Stream], expected: &[&str]) {
    for stream in streams {
        for method in expected {
            assert_eq!(stream.message().await, json!({"method": method, "params": {}}));
        }
    }
}

#[tokio::test]
async fn every_session_is_told_once_of_each_change() {
    let gateway = Setup::new().fake("fake").std().start().await;
    let mut streams = vec![];
    for path in ["/mcp", "/mcp", "/mcp/fake"] {
        streams.push(Session::open(&gateway, path).await.listen().await);
    }
    let mut of_another = Session::open(&gateway, "/mcp/std").await.listen().await;
    say(&gateway, "fake", &[PROMPTS]).await;
    hear(&mut streams, &[PROMPTS]).await;
    say(&gateway, "fake", &[RESOURCES]).await;
    hear(&mut streams, &[RESOURCES]).await;
    // Told when the new list is here.
    gateway.fake("fake").set_extra_tools("new");
    say(&gateway, "fake", &[TOOLS]).await;
    hear(&mut streams, &[TOOLS]).await;
    let tools = gateway.tools("fake").await.text();
    assert!(tools.contains("\"new\""), "{tools}");
    say(&gateway, "fake", &[PROMPTS]).await;
    hear(&mut streams, &[PROMPTS]).await;
    gateway.shut_down();
    for mut stream in streams {
        assert_eq!(stream.next().await, None);
    }
    assert_eq!(of_another.next().await, None);
    gateway.stop().await;
}

#[tokio::test]
async fn a_new_stream_takes_the_place_of_the_old() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let mut first = session.listen().await;
    say(&gateway, "fake", &[PROMPTS]).await;
    assert_eq!(first.method().await, PROMPTS);
    let mut second = session.listen().await;
    assert_eq!(first.next().await, None);
    say(&gateway, "fake", &[RESOURCES]).await;
    assert_eq!(second.method().await, RESOURCES);
    gateway.stop().await;
}

/// However the two overlap, nothing is told to the one that is closed.
#[tokio::test]
async fn nothing_is_lost_between_two_streams() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp").await;
    let mut stream = session.listen().await;
    for _ in 0..20 {
        let (_, next) = tokio::join!(say(&gateway, "fake", &[PROMPTS]), session.listen());
        let old = stream.next().await;
        if let Some(told) = old {
            assert_eq!(told["method"], PROMPTS);
            assert_eq!(stream.next().await, None);
            stream = next;
        } else {
            stream = next;
            assert_eq!(stream.method().await, PROMPTS);
        }
    }
    gateway.stop().await;
}

#[tokio::test]
async fn changes_without_a_stream_are_told_when_one_is_open_again() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp").await;
    drop(session.listen().await);
    for _ in 0..5 {
        say(&gateway, "fake", &[RESOURCES, PROMPTS]).await;
    }
    let mut stream = session.listen().await;
    gateway.fake("fake").set_extra_tools("fence");
    say(&gateway, "fake", &[TOOLS]).await;
    // Many become few: those that the old stream may have taken, and those after a pause.
    let mut told = vec![];
    loop {
        match stream.method().await.as_str() {
            TOOLS => break,
            other => told.push(other.to_owned()),
        }
    }
    assert!((1..=6).contains(&told.len()), "{told:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_server_that_was_started_again_may_have_changed_its_lists() {
    let gateway = Setup::new().fake("fake").start().await;
    let mut streams = [Session::open(&gateway, "/mcp").await.listen().await];
    gateway.call("fake", "exit", "{}").await;
    hear(&mut streams, &[TOOLS]).await;
    assert_eq!(gateway.fake("fake").pids().len(), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_stream_and_no_other() {
    let gateway = Setup::new().fake("fake").start().await;
    let (one, other) =
        (Session::open(&gateway, "/mcp").await, Session::open(&gateway, "/mcp").await);
    let (mut stream, mut stays) = (one.listen().await, other.listen().await);
    assert_eq!(one.delete().await.status, 204);
    assert_eq!(stream.next().await, None);
    say(&gateway, "fake", &[PROMPTS]).await;
    assert_eq!(stays.method().await, PROMPTS);
    gateway.stop().await;
}

#[tokio::test]
async fn open_streams_do_not_hold_up_the_end_of_the_gateway() {
    let own = r#"sharing = "session""#;
    let gateway = Setup::new().std().fake_with("own", &[], own).start().await;
    let mut streams = vec![];
    for path in ["/mcp", "/mcp/std", "/mcp/own"] {
        streams.push(Session::open(&gateway, path).await.listen().await);
    }
    let began = Instant::now();
    gateway.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for mut stream in streams {
        while stream.next().await.is_some() {}
    }
}

#[tokio::test]
async fn a_client_that_went_away_leaves_its_session_usable() {
    let gateway = Setup::new().fake("fake").start().await;
    let session = Session::open(&gateway, "/mcp").await;
    for _ in 0..3 {
        drop(session.listen().await);
    }
    assert_eq!(session.tool_text("fake__raw", json!({})).await, "{}");
    let mut stream = session.listen().await;
    say(&gateway, "fake", &[PROMPTS]).await;
    eventually("told", async || (stream.method().await == PROMPTS).then_some(())).await;
    gateway.stop().await;
}
