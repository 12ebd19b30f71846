//! The program as a process: told to end, or killed.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::support::{
    Serving, Setup, arguments_of, environment_of, eventually, is_alive, kill, within,
};

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_nothing_behind() {
    for round in 0..5 {
        let mut gateway = Setup::new().fake_with("fake", &["stubborn=yes"], "").std().serve().await;
        let others = gateway.call("fake", "spawn", "{}").await.tool_text();
        let mut pids: Vec<i32> = serde_json::from_str(&others).unwrap();
        pids.extend(gateway.processes());
        // Two servers, their guards, and what one of them has started.
        assert!(pids.len() >= 6, "{pids:?}");
        gateway.signal(Signal::KILL);
        gateway.ended().await;
        within(Duration::from_secs(2), "nothing left", async || {
            (!pids.iter().any(|pid| is_alive(*pid))).then_some(())
        })
        .await;
        assert!(gateway.processes().is_empty(), "round {round}");
    }
}

#[tokio::test]
async fn a_gateway_sees_how_servers_end_whatever_it_inherits() {
    let setup = Setup::new().fake("fake");
    let gateway = Serving::start_by("env", &["--ignore-signal=CHLD"], setup).await;
    gateway.ready().await;
    kill(gateway.fake("fake").pids()[0], Signal::KILL);
    gateway.logged("it was ended by signal 9").await;
    eventually("back", async || {
        (gateway.call("fake", "pid", "").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn told_to_end_the_gateway_finishes_what_it_has_begun() {
    let mut gateway = Setup::new().fake("fake").serve().await;
    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/fake/tools/later", "{\"ms\":1000}").await;
    let fake = gateway.fake("fake");
    eventually("under way", async || fake.calls_of("later").pop()).await;
    gateway.signal(Signal::TERM);
    gateway.logged("shutting down").await;
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
    assert_eq!(gateway.ended().await, Some(0));
    assert!(gateway.processes().is_empty());
}

#[tokio::test]
async fn before_it_drains_the_gateway_is_not_ready_but_serves() {
    let mut gateway = Setup::new().set("drain_delay = \"3s\"").std().serve().await;
    gateway.signal(Signal::TERM);
    eventually("not ready", async || (gateway.get("/readyz").await.status == 503).then_some(()))
        .await;
    let answer = gateway.call("std", "echo", json!({"text": "still here"})).await;
    assert_eq!(answer.tool_text(), "still here");
    // New connections too.
    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/std/tools/uuid", "{}").await;
    assert!(connection.response().await.starts_with("HTTP/1.1 200 "));
    assert_eq!(gateway.get("/healthz").await.status, 200);
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn two_signals_at_once_count_as_one() {
    let mut gateway = Setup::new().fake("fake").serve().await;
    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/fake/tools/later", "{\"ms\":1500}").await;
    let fake = gateway.fake("fake");
    eventually("under way", async || fake.calls_of("later").pop()).await;
    // All before anything is waited for: however busy the machine is, they come within a second.
    for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
        gateway.signal(signal);
    }
    gateway.logged("shutting down").await;
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test]
async fn told_twice_the_gateway_ends_at_once() {
    let mut gateway = Setup::new().fake_with("fake", &["stubborn=yes"], "").serve().await;
    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/fake/tools/hold", "{}").await;
    let fake = gateway.fake("fake");
    eventually("under way", async || fake.calls_of("hold").pop()).await;
    gateway.signal(Signal::INT);
    gateway.logged("shutting down").await;
    // Within a second of the first, it would count as the same.
    sleep(Duration::from_millis(1100)).await;
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(130));
    eventually("nothing left", async || gateway.processes().is_empty().then_some(())).await;
}

#[tokio::test]
async fn secrets_and_what_callers_send_are_nowhere_to_be_read() {
    let settings = "env.TOKEN = \"${TEST_TOKEN}\"\nenv.PLAIN = \"hunter2-plain\"";
    let mut gateway = Setup::new()
        .fake_with("fake", &[], settings)
        .fake_with("failing", &["start=fail"], settings)
        .serve_with(&[("TEST_TOKEN", "hunter2-token"), ("RUST_LOG", "trace")])
        .await;
    let environment = environment_of(gateway.fake("fake").pids()[0]);
    assert!(environment.contains(&"TOKEN=hunter2-token".to_owned()));

    let mut seen = String::new();
    let body = json!({"code": -32000, "message": "hunter2-body"});
    for (server, tool) in [("fake", "raw"), ("failing", "raw"), ("fake", "no_such_tool")] {
        gateway.call(server, tool, &body).await;
    }
    gateway.call("fake", "error", &body).await;
    gateway.call("fake", "raw", "{hunter2-body").await;
    for path in ["/v1/servers", "/v1/servers/failing", "/metrics"] {
        seen += &gateway.get(path).await.text();
    }
    for pid in gateway.processes() {
        seen += &arguments_of(pid).join(" ");
    }
    gateway.call("fake", "exit", "{}").await;
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended().await, Some(0));
    gateway.logged("shut down").await;
    let log = gateway.log();
    // What the failing server wrote to standard error is there, so this looks at the right place.
    assert!(log.iter().any(|line| line.contains("cannot find my bearings")));
    seen += &log.join("\n");
    let found = seen.lines().find(|line| line.contains("hunter2"));
    assert_eq!(found, None);
}
