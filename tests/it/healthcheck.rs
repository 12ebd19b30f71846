//! `trunkline healthcheck`: what container engines and orchestrators hear of a gateway.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::support::{Setup, eventually, trunkline, trunkline_with};

/// The exit code, and what standard error says.
async fn healthcheck(setup: &Setup, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let args = [&["healthcheck"][..], args].concat();
    let output = trunkline_with(setup, &args, env).await;
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn ready() -> (Option<i32>, String) {
    (Some(0), String::new())
}

fn not_ready(why: &str) -> (Option<i32>, String) {
    (Some(1), format!("not ready: {why}\n"))
}

/// A configuration file for a gateway on all addresses, one of which is where another one is
/// already.
fn listening_everywhere(addr: SocketAddr) -> Setup {
    let setup = Setup::new();
    let file = setup.dir.path().join("trunkline.toml");
    fs::write(file, format!("listen = \"0.0.0.0:{}\"\n", addr.port())).unwrap();
    setup
}

#[tokio::test]
async fn a_gateway_that_is_ready_is_found_by_url_by_file_and_by_variable() {
    let gateway = Setup::new().std().start().await;
    let url = gateway.url("");
    let nowhere = Setup::new();
    assert_eq!(healthcheck(&nowhere, &["--url", &url], &[]).await, ready());
    assert_eq!(healthcheck(&nowhere, &[], &[("TRUNKLINE_URL", &url)]).await, ready());

    let setup = listening_everywhere(gateway.addr);
    assert_eq!(healthcheck(&setup, &[], &[]).await, ready());
    let file = setup.dir.path().join("trunkline.toml");
    let variable = [("TRUNKLINE_CONFIG", file.to_str().unwrap())];
    assert_eq!(healthcheck(&nowhere, &[], &variable).await, ready());
    assert_eq!(healthcheck(&nowhere, &["--config", variable[0].1], &[]).await, ready());
    gateway.stop().await;
}

#[tokio::test]
async fn a_mistake_in_the_file_does_not_make_a_gateway_look_ill_whose_address_is_a_variable() {
    let gateway = Setup::new().std().start().await;
    let setup = Setup::new().set("header_timeout = \"soon\"");
    setup.write();
    let listen = gateway.addr.to_string();
    assert_eq!(healthcheck(&setup, &[], &[("TRUNKLINE_LISTEN", &listen)]).await, ready());
    let (code, why) = healthcheck(&setup, &[], &[]).await;
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("trunkline.toml:2: `header_timeout`"), "{why}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_is_not_ready_before_its_servers_have_been_tried() {
    let gateway = Setup::new().fake_with("fake", &["start=mute"], "").start_at_once().await;
    let why = "starting: not every server has been tried yet";
    let url = gateway.url("");
    assert_eq!(healthcheck(&Setup::new(), &["--url", &url], &[]).await, not_ready(why));
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_whose_servers_fail_is_ready() {
    let setup = Setup::new().std().fake_with("failing", &["start=fail"], "");
    let gateway = setup.start().await;
    assert_eq!(healthcheck(&Setup::new(), &["--url", &gateway.url("")], &[]).await, ready());
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_that_was_told_to_end_is_not_ready_though_it_serves() {
    let mut gateway = Setup::new().set("drain_delay = \"10s\"").std().serve().await;
    gateway.signal(Signal::TERM);
    eventually("not ready", async || (gateway.get("/readyz").await.status == 503).then_some(()))
        .await;
    let url = format!("http://{}", gateway.addr);
    assert_eq!(healthcheck(&Setup::new(), &["--url", &url], &[]).await, not_ready("shutting down"));
    gateway.signal(Signal::TERM);
    gateway.ended().await;
}

#[tokio::test]
async fn where_no_gateway_is_none_is_ready() {
    let gateway = Setup::new().start().await;
    let (url, setup) = (gateway.url(""), listening_everywhere(gateway.addr));
    gateway.stop().await;
    let (code, why) = healthcheck(&Setup::new(), &["--url", &url], &[]).await;
    assert_eq!(code, Some(1), "{why}");
    assert!(why.starts_with("not ready: no gateway answers at http://127.0.0.1:"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
    assert_eq!(healthcheck(&setup, &[], &[]).await.0, Some(1));
    let (code, why) = healthcheck(&setup, &["--url", "mailto:a@b.example"], &[]).await;
    assert_eq!((code, why.contains("is not the address of a gateway")), (Some(1), true), "{why}");
}

#[tokio::test]
async fn whoever_takes_connections_and_does_not_answer_is_not_waited_for() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let began = Instant::now();
    let (code, why) = healthcheck(&Setup::new(), &["--url", &url], &[]).await;
    assert_eq!(code, Some(1), "{why}");
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test]
async fn nobody_else_is_asked_in_the_gateways_stead() {
    let gateway = Setup::new().std().start().await;
    let url = gateway.url("");
    // Whoever this proxy were, it is not there.
    let proxy = [("http_proxy", "http://127.0.0.1:1"), ("HTTP_PROXY", "http://127.0.0.1:1")];
    assert_eq!(healthcheck(&Setup::new(), &["--url", &url], &proxy).await, ready());

    let elsewhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let redirecting = format!("http://{}", elsewhere.local_addr().unwrap());
    let location = format!("{url}/readyz");
    tokio::spawn(async move {
        let (mut connection, _) = elsewhere.accept().await.unwrap();
        let _ = connection.read(&mut [0; 4096]).await.unwrap();
        let head =
            format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        connection.write_all(head.as_bytes()).await.unwrap();
    });
    let (code, why) = healthcheck(&Setup::new(), &["--url", &redirecting], &[]).await;
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("is not a gateway: it has 302 Found for /readyz"), "{why}");
    gateway.stop().await;
}

#[tokio::test]
async fn every_command_reads_the_file_that_the_variable_names() {
    let setup = Setup::new().std();
    let file = setup.write();
    let elsewhere = Setup::new();
    let variable = [("TRUNKLINE_CONFIG", file.to_str().unwrap())];
    let added = trunkline_with(&elsewhere, &["tenant", "add", "acme", "--create"], &variable).await;
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let list = trunkline(&setup, &["tenant", "list"]).await;
    assert!(String::from_utf8(list.stdout).unwrap().contains("acme"));
}
