//! More connections than the gateway has: newcomers, other tenants and operators get in.

use std::time::Duration;

use tokio::time::Instant;

use crate::support::{Http2, RawHttp, Serving, Setup, eventually};

/// Leaves callers some hundred connections.
const DESCRIPTORS: &str = "ulimit -n 256; exec \"$@\"";
/// More connections than there are.
const FLOOD: usize = 250;
/// The policy of a tenant that may use all servers.
const ALL: &str = "servers = [\"*\"]";
/// Far less than any connection may be idle.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn start(settings: &str) -> Serving {
    let setup = Setup::new().set(settings).std().without_anonymous();
    let setup = setup.with_tenant("greedy", ALL).with_tenant("other", ALL);
    Serving::start_by("sh", &["-c", DESCRIPTORS, "sh"], setup).await
}

/// Calls a tool on a connection of its own.
async fn call(gateway: &Serving, key: &str, tool: &str, arguments: &str) -> RawHttp {
    let mut connection = gateway.connect().await;
    let length = arguments.len();
    let headers = format!("content-length: {length}\r\nauthorization: Bearer {key}\r\n");
    connection.send_head(&format!("/v1/servers/std/tools/{tool}"), &headers).await;
    connection.send(arguments).await;
    connection
}

/// Asserts that a newcomer with a key is served, and that everybody's pages are.
async fn lets_in(gateway: &Serving, key: &str) {
    let began = Instant::now();
    let response = call(gateway, key, "echo", "{\"text\":\"x\"}").await.response().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    for path in ["/healthz", "/readyz", "/metrics"] {
        let response = gateway.connect().await.get(path, None).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{path}: {response}");
    }
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

async fn metric(gateway: &Serving, series: &str) -> f64 {
    let response = gateway.connect().await.get("/metrics", None).await;
    let line = response.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("{series} is missing")).trim().parse().unwrap()
}

/// Returns the connections that callers may have, from the log.
async fn all(gateway: &Serving) -> f64 {
    gateway.logged("because 256 open files are allowed").await;
    let log = gateway.log();
    let line = log.iter().find(|line| line.contains("because 256 open files")).unwrap();
    let event: serde_json::Value = serde_json::from_str(line).unwrap();
    event["connections"].as_f64().unwrap()
}

#[tokio::test]
async fn http2_connections_without_a_key_keep_nobody_out() {
    let gateway = start("").await;
    let key = gateway.setup().new_key("other").await;
    gateway.ready().await;
    let mut flood = vec![];
    for _ in 0..FLOOD {
        let mut connection = Http2::connect(gateway.addr).await;
        assert_eq!(connection.get("/healthz").await.unwrap(), 200);
        flood.push(connection);
    }
    lets_in(&gateway, &key).await;
    let evicted = "trunkline_evicted_connections_total{listener=\"callers\",reason=\"room\"}";
    assert!(metric(&gateway, evicted).await >= FLOOD as f64 - all(&gateway).await);
    let open = "trunkline_connections{authenticated=\"no\",listener=\"callers\"}";
    assert!(metric(&gateway, open).await <= all(&gateway).await);
}

#[tokio::test]
async fn half_sent_heads_keep_nobody_out() {
    let gateway = start("header_timeout = \"1h\"").await;
    let key = gateway.setup().new_key("other").await;
    gateway.ready().await;
    let mut flood = vec![];
    for n in 0..FLOOD {
        let mut connection = gateway.connect().await;
        connection.send(["", "PRI * HTTP/2.0\r\n", "GET / HTTP/1.1\r\nx-slow: "][n % 3]).await;
        flood.push(connection);
    }
    lets_in(&gateway, &key).await;
}

#[tokio::test]
async fn connections_that_take_much_memory_are_fewer_and_keep_nobody_out() {
    let gateway = start("").await;
    let key = gateway.setup().new_key("other").await;
    gateway.ready().await;
    // The head of a request that fills the header table with paths of one letter.
    let paths = "\u{44}\u{1}/".repeat(120);
    let head = format!("\0\u{1}\u{68}\u{1}\u{5}\0\0\0\u{1}{paths}");
    let settings = "\0\0\0\u{4}\0\0\0\0\0";
    let mut flood = vec![];
    for _ in 0..FLOOD {
        let mut connection = gateway.connect().await;
        connection.send(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{settings}{head}")).await;
        flood.push(connection);
    }
    lets_in(&gateway, &key).await;
    let open = "trunkline_connections{authenticated=\"no\",listener=\"callers\"}";
    // Some 2 MiB each, of 128.
    assert!(metric(&gateway, open).await < all(&gateway).await / 2.0);
}

#[tokio::test]
async fn idle_connections_of_one_tenant_leave_room_for_others() {
    let gateway = start("").await;
    let [greedy, other] =
        [gateway.setup().new_key("greedy").await, gateway.setup().new_key("other").await];
    gateway.ready().await;
    let mut flood = vec![];
    for _ in 0..FLOOD {
        let mut connection = gateway.connect().await;
        let response = connection.get("/v1/servers", Some(&greedy)).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        flood.push(connection);
    }
    lets_in(&gateway, &other).await;
    let held = "trunkline_connections{authenticated=\"yes\",listener=\"callers\"}";
    assert!(metric(&gateway, held).await <= all(&gateway).await * 3.0 / 4.0);
}

#[tokio::test]
async fn busy_connections_of_one_tenant_leave_room_and_none_of_its_calls_is_ended() {
    let gateway = start("").await;
    let [greedy, other] =
        [gateway.setup().new_key("greedy").await, gateway.setup().new_key("other").await];
    gateway.ready().await;
    let all = all(&gateway).await;
    let share = all - (all / 4.0).ceil();
    let mut flood = vec![];
    for _ in 0..share as usize {
        flood.push(call(&gateway, &greedy, "sleep", "{\"ms\":20000}").await);
    }
    let held = "trunkline_connections{authenticated=\"yes\",listener=\"callers\"}";
    eventually("all are held", async || (metric(&gateway, held).await >= share).then_some(()))
        .await;
    let mut refused = gateway.connect().await;
    let response = refused.get("/v1/servers", Some(&greedy)).await;
    assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
    assert!(response.contains("\"tenant_busy\"") && response.contains("connections"), "{response}");
    assert!(response.contains("\"executed\":\"no\""), "{response}");
    // The connection of the refused call is of use to another tenant.
    let response = refused.get("/v1/servers", Some(&other)).await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let began = Instant::now();
    assert!(gateway.connect().await.get("/readyz", None).await.starts_with("HTTP/1.1 200 "));
    assert!(began.elapsed() < AT_ONCE);
}

#[tokio::test]
async fn a_proxy_keeps_its_connection_when_one_of_its_tenants_has_too_many() {
    let gateway = start("").await;
    let [greedy, other] =
        [gateway.setup().new_key("greedy").await, gateway.setup().new_key("other").await];
    gateway.ready().await;
    let mut proxied = gateway.connect().await;
    for key in [&greedy, &other] {
        proxied.get("/v1/servers", Some(key)).await;
    }
    let mut flood = vec![];
    for _ in 0..FLOOD {
        let mut connection = gateway.connect().await;
        connection.get("/v1/servers", Some(&greedy)).await;
        flood.push(connection);
    }
    // The oldest and longest idle of all is still there, for both.
    for key in [&other, &greedy] {
        let response = proxied.get("/v1/servers", Some(key)).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
}

#[tokio::test]
async fn operators_get_in_at_their_own_port() {
    let gateway = start("ops_listen = \"127.0.0.1:0\"").await;
    let operators = gateway.operators().await;
    let mut flood = vec![];
    for _ in 0..64 {
        let mut connection = RawHttp::connect(operators).await;
        connection.get("/metrics", None).await;
        flood.push(connection);
    }
    let began = Instant::now();
    let response = RawHttp::connect(operators).await.get("/readyz", None).await;
    assert!(response.starts_with("HTTP/1.1 "), "{response}");
    assert!(began.elapsed() < AT_ONCE);
}

#[tokio::test]
async fn a_peer_may_have_no_more_connections_than_configured() {
    let gateway = start("max_connections_per_peer = 3").await;
    let mut connections = vec![];
    for _ in 0..3 {
        let mut connection = gateway.connect().await;
        assert!(connection.get("/healthz", None).await.starts_with("HTTP/1.1 200 "));
        connections.push(connection);
    }
    assert!(!gateway.connect().await.is_served().await);
    drop(connections);
    eventually("let in again", async || gateway.connect().await.is_served().await.then_some(()))
        .await;
}
