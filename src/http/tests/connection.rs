use std::net::{IpAddr, Ipv4Addr};

use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::StatusCode;
use axum::routing::{get, post};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::common::byte_budget::ByteBudget;
use crate::common::ids::TenantId;
use crate::http::connections::{ConnectionBounds, ConnectionHandle, Connections};
use crate::http::unsent::ListenerUnsent;
use crate::telemetry::metrics::Metrics;

const HOUR: Duration = Duration::from_secs(3600);

/// Serves one connection; returns the client's end. `/wait` takes ten minutes; `/key`
/// authenticates; `/refuse` reads no body.
async fn served() -> DuplexStream {
    served_with(64 * 1024).await.0
}

/// Serves one connection with so much room for bytes on their way. Returns the client's end, and a
/// way to learn for how many bytes the connection counts.
async fn served_with(room: usize) -> (DuplexStream, impl Fn() -> usize) {
    let routes = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/refuse", post(async || StatusCode::NOT_FOUND))
        .route("/wait", get(async || sleep(10 * Duration::from_secs(60)).await))
        .route(
            "/key",
            get(async |Extension(connection): Extension<ConnectionHandle>| {
                connection.used_by(&TenantId::testing("a")).is_ok().to_string()
            }),
        );
    let bounds =
        ConnectionBounds { all: 16_384, per_peer: None, head_timeout: Duration::from_secs(10) };
    let connections = Connections::new(bounds, Metrics::new().connections("callers"));
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let admitted = connections.admit(peer, &CancellationToken::new()).await.unwrap();
    let (ours, theirs) = duplex(room);
    let connection = admitted.connection.clone();
    let budget = ByteBudget::new(1 << 20, 4 << 20);
    let ended = Metrics::new().stuck_responses();
    let unsent = ListenerUnsent { nobody: budget.tenant(), operators: budget.tenant(), ended };
    tokio::spawn(async move {
        let (routes, abort) = (Routes::new(routes, None, unsent), CancellationToken::new());
        serve_connection(ours, &admitted, routes, abort).await;
    });
    (theirs, move || connection.size())
}

/// Serves one HTTP/2 connection.
async fn connection() -> (SendRequest<Body>, impl Future<Output = Duration>) {
    let theirs = served().await;
    let (requests, client) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(theirs)).await.unwrap();
    let client = tokio::spawn(client);
    let ended = async move {
        let began = Instant::now();
        // An error would mean that the connection broke off without GOAWAY.
        timeout(HOUR, client).await.expect("the connection ends").unwrap().unwrap();
        began.elapsed()
    };
    (requests, ended)
}

async fn ask(requests: &mut SendRequest<Body>, path: &str) {
    let request = Request::get(format!("http://localhost{path}")).body(Body::empty()).unwrap();
    let response = requests.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

fn about(duration: Duration, seconds: u64) {
    let expected = Duration::from_secs(seconds);
    assert!(duration.abs_diff(expected) < Duration::from_secs(1), "{duration:?}, not {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn an_idle_http2_connection_without_a_key_is_closed_soon() {
    let (mut requests, ended) = connection().await;
    ask(&mut requests, "/healthz").await;
    about(ended.await, 12);
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_with_a_key_may_be_idle_for_longer() {
    let (mut requests, ended) = connection().await;
    ask(&mut requests, "/key").await;
    about(ended.await, 120);
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_that_sends_no_request_is_closed() {
    let (_requests, ended) = connection().await;
    about(ended.await, 10);
}

#[tokio::test(start_paused = true)]
async fn an_http2_connection_with_an_open_stream_stays() {
    let (mut requests, ended) = connection().await;
    ask(&mut requests, "/healthz").await;
    ask(&mut requests, "/wait").await;
    about(ended.await, 12);
}

/// Sends a request for `/refuse` and the parts of its body, with a pause before each. Returns the
/// head of the response and the time that it took.
async fn refused(client: &mut DuplexStream, len: usize, parts: &[&str]) -> (String, Duration) {
    let began = Instant::now();
    let head = format!("POST /refuse HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    for part in parts {
        sleep(Duration::from_millis(100)).await;
        client.write_all(part.as_bytes()).await.unwrap();
    }
    let mut response = vec![];
    while !response.ends_with(b"\r\n\r\n") {
        assert_ne!(client.read_buf(&mut response).await.unwrap(), 0, "an end without a response");
    }
    (String::from_utf8(response).unwrap(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_refused_requests_body_may_come_later_and_its_connection_stays() {
    let mut client = served().await;
    for parts in [&["{}"][..], &["{", "}"], &["{}"]] {
        let (response, _) = refused(&mut client, 2, parts).await;
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        assert!(!response.contains("connection: close"), "{response}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_with_an_unread_body_says_that_it_closes() {
    for (len, parts, wait) in
        [(2, &["{"][..], Duration::from_secs(1)), (70_000, &[], Duration::ZERO)]
    {
        let mut client = served().await;
        let (response, elapsed) = refused(&mut client, len, parts).await;
        assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
        assert!(response.contains("connection: close"), "{response}");
        assert_eq!(elapsed.as_secs(), wait.as_secs(), "{response}");
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the connection is closed");
    }
}

/// Sends this, and returns the status of the answer to it.
async fn get_over(client: &mut DuplexStream, request: &str) -> String {
    client.write_all(request.as_bytes()).await.unwrap();
    answer(client).await
}

/// Reads an answer with the body `ok`. Returns its first line.
async fn answer(client: &mut DuplexStream) -> String {
    let mut answer = vec![];
    while !answer.ends_with(b"ok") {
        assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "an end without an answer");
    }
    String::from_utf8(answer).unwrap().lines().next().unwrap().to_owned()
}

const HEALTHZ: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK";

#[tokio::test(start_paused = true)]
async fn an_idle_connection_gives_its_memory_back_and_answers_again() {
    let (mut client, size) = served_with(64 * 1024).await;
    let mut sizes = vec![size()];
    for _ in 0..3 {
        assert_eq!(get_over(&mut client, HEALTHZ).await, OK);
        sizes.push(size());
        sleep(Duration::from_secs(8)).await;
        sizes.push(size());
    }
    let (bare, used) = (sizes[0], sizes[1]);
    assert!(bare < used);
    assert_eq!(sizes[1..], [used, bare, used, bare, used, bare]);
}

#[tokio::test(start_paused = true)]
async fn nothing_that_came_early_is_lost_while_a_connection_is_idle() {
    let mut client = served().await;
    // Nine bytes of a head come with the request before it, and a half before the rest.
    let (with_it, rest) = HEALTHZ.split_at(9);
    let (half, end) = rest.split_at(9);
    assert_eq!(get_over(&mut client, &format!("{HEALTHZ}{with_it}")).await, OK);
    for part in [half, end] {
        sleep(Duration::from_secs(6)).await;
        client.write_all(part.as_bytes()).await.unwrap();
    }
    assert_eq!(answer(&mut client).await, OK);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_answer_is_not_taken_is_not_idle() {
    let (mut client, size) = served_with(16).await;
    let bare = size();
    client.write_all(HEALTHZ.as_bytes()).await.unwrap();
    sleep(Duration::from_secs(8)).await;
    assert!(size() > bare, "a part of the answer waits in its buffer");
    assert_eq!(answer(&mut client).await, OK);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(size(), bare);
}

#[tokio::test(start_paused = true)]
async fn http2_does_not_come_after_http1() {
    let mut client = served().await;
    assert_eq!(get_over(&mut client, HEALTHZ).await, OK);
    sleep(Duration::from_secs(8)).await;
    client.write_all(crate::http::socket::PREFACE).await.unwrap();
    // Its frames would count for less than they take.
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the connection is closed");
}
