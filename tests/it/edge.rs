//! HTTP at its edges: slow, half-sent, idle, HTTP/2.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{Http2, Setup, eventually, in_time, refused};

const ECHO: &str = "/v1/servers/std/tools/echo";

#[tokio::test]
async fn a_request_that_is_not_complete_in_time_is_closed() {
    let gateway = Setup::new().set("header_timeout = \"300ms\"").std().start().await;
    // Nothing at all, the beginning of any method, of HTTP/2, and of a head.
    for beginning in ["", "P", "PRI * HTTP/2.0\r\n", "POST / HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        let mut connection = gateway.connect().await;
        connection.send(beginning).await;
        let began = Instant::now();
        connection.rest().await;
        assert!(began.elapsed() < Duration::from_secs(3), "{beginning:?}: {:?}", began.elapsed());
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_call_may_take_longer_than_its_head() {
    let gateway = Setup::new().set("header_timeout = \"200ms\"").std().start().await;
    let mut connection = gateway.connect().await;
    connection.send_call("/v1/servers/std/tools/sleep", "{\"ms\":1000}").await;
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_connection_serves_one_call_after_another() {
    let gateway = Setup::new().std().start().await;
    let mut connection = gateway.connect().await;
    for n in 0..3 {
        connection.send_call(ECHO, &json!({"text": format!("call {n}")}).to_string()).await;
        let response = connection.response().await;
        assert!(response.contains(&format!("call {n}")), "{response}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_waited_for_until_the_deadline() {
    let gateway = Setup::new().std().start().await;
    let mut connection = gateway.connect().await;
    connection.send_head(ECHO, "content-length: 100\r\ntrunkline-timeout-ms: 300\r\n").await;
    connection.send("{").await;
    let response = connection.response().await;
    assert!(response.starts_with("HTTP/1.1 504 "), "{response}");
    assert!(response.contains("\"executed\":\"no\""), "{response}");
    gateway.stop().await;
}

#[tokio::test]
async fn http2_carries_many_calls_on_one_connection() {
    let gateway = Setup::new().fake("fake").start().await;
    let connection = Http2::connect(gateway.addr).await;
    let mut calls = JoinSet::new();
    for n in 0..50 {
        let call = connection.clone().call("fake", "raw", json!({"n": n}).to_string());
        calls.spawn(async move { (n, call.await) });
    }
    for (n, answer) in calls.join_all().await {
        assert_eq!(answer.tool_text(), json!({"n": n}).to_string());
    }
    let answer = connection.call("fake", "raw", "[]".to_owned()).await;
    assert_eq!(answer.problem(), refused(400, "invalid_arguments"));
    gateway.stop().await;
}

#[tokio::test]
async fn running_out_of_descriptors_passes() {
    let gateway = Setup::new().std().serve().await;
    gateway.ready().await;
    // Some are open already, and one may have been inherited with a high number.
    let limit = 40;
    gateway.limit_descriptors(limit);
    let mut connections = vec![];
    for _ in 0..80 {
        connections.push(TcpStream::connect(gateway.addr).await.unwrap());
    }
    eventually("all in use", async || {
        gateway.descriptors_below(limit).is_none_or(|open| open == limit).then_some(())
    })
    .await;
    drop(connections);
    // By a connection of its own: those that were open before are served in any case.
    let mut connection = gateway.connect().await;
    connection.send_call(ECHO, "{\"text\":\"x\"}").await;
    let response = in_time("served again", connection.response()).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}
