//! Few descriptors, and callers who take as many as they get.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::timeout;

use crate::support::{RawHttp, Serving, Setup, eventually, kill};

/// An unanswered connection waits in the backlog.
const UNANSWERED: Duration = Duration::from_secs(1);

async fn start(descriptors: u32) -> Serving {
    let setup = Setup::new().fake("fake").fake_with("own", &[], "sharing = \"tenant\"");
    let limit = format!("ulimit -n {descriptors}; exec \"$@\"");
    let setup = setup.set("ops_listen = \"127.0.0.1:0\"");
    Serving::start_by("sh", &["-c", &limit, "sh"], setup).await
}

/// Returns a connection that has been served, and stays open.
async fn connect(addr: SocketAddr) -> Option<RawHttp> {
    let mut connection = RawHttp::connect(addr).await;
    connection.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    timeout(UNANSWERED, connection.response()).await.ok()?;
    Some(connection)
}

/// Calls a tool that tells the process of its server, until it answers.
async fn pid(connection: &mut RawHttp, server: &str, not: i32) -> i32 {
    let mut ask = async || {
        connection.send_call(&format!("/v1/servers/{server}/tools/pid"), "{}").await;
        let response = connection.response().await;
        let body = response.split_once("\r\n\r\n")?.1;
        let answer: Value = serde_json::from_str(body).ok()?;
        let pid = answer["content"][0]["text"].as_str()?.parse().ok()?;
        (pid != not).then_some(pid)
    };
    eventually("a server answers", async || ask().await).await
}

fn operators(gateway: &Serving) -> SocketAddr {
    let address = |line: &String| {
        let event: Value = serde_json::from_str(line).ok()?;
        let url = event["message"].as_str()?.strip_prefix("metrics on http://")?;
        url.strip_suffix("/metrics")?.parse().ok()
    };
    gateway.log().iter().find_map(address).expect("the address is logged")
}

#[tokio::test]
async fn connections_leave_servers_and_operators_the_descriptors_that_they_need() {
    let gateway = start(256).await;
    gateway.logged("because 256 open files are allowed").await;
    let mut first = connect(gateway.addr).await.expect("there is room");
    let before = pid(&mut first, "fake", 0).await;

    let mut connections = vec![];
    while let Some(connection) = connect(gateway.addr).await {
        connections.push(connection);
        assert!(connections.len() < 256, "more connections than descriptors");
    }
    assert!(connections.len() > 64, "{}", connections.len());

    // A server is restarted, another starts for a tenant, and operators are let in.
    kill(before, Signal::KILL);
    pid(&mut first, "fake", before).await;
    pid(&mut first, "own", 0).await;
    let mut operator = RawHttp::connect(operators(&gateway)).await;
    operator.send("GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let response = operator.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");

    // Callers in the backlog are served when others leave.
    let waiting = RawHttp::connect(gateway.addr);
    let mut waiting = waiting.await;
    waiting.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    drop(connections);
    assert!(waiting.response().await.starts_with("HTTP/1.1 200 "));
}
