//! Few descriptors, and callers who take as many as they get.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RawHttp, Serving, Setup, eventually, kill};

const DESCRIPTORS: u32 = 256;

async fn start() -> Serving {
    let setup = Setup::new().fake("fake").fake_with("own", &[], "sharing = \"tenant\"");
    let limit = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    let setup = setup.set("ops_listen = \"127.0.0.1:0\"");
    Serving::start_by("sh", &["-c", &limit, "sh"], setup).await
}

/// Returns a connection that has been served, and stays open.
async fn connect(addr: SocketAddr) -> RawHttp {
    let mut connection = RawHttp::connect(addr).await;
    connection.get("/healthz", None).await;
    connection
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

#[tokio::test]
async fn connections_leave_servers_and_operators_the_descriptors_that_they_need() {
    let gateway = start().await;
    gateway.logged("because 256 open files are allowed").await;
    let mut first = connect(gateway.addr).await;
    let before = pid(&mut first, "fake", 0).await;

    // Each is served, at the cost of the one that was left idle for longest.
    let mut connections = vec![];
    for _ in 0..DESCRIPTORS {
        connections.push(connect(gateway.addr).await);
    }

    // A server is restarted, another starts for a tenant, and operators are let in.
    kill(before, Signal::KILL);
    pid(&mut first, "fake", before).await;
    pid(&mut first, "own", 0).await;
    let mut operator = RawHttp::connect(gateway.operators().await).await;
    let response = operator.get("/readyz", None).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
}
