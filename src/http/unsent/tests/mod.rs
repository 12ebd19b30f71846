//! Clients that take nothing, over connections in memory and in paused time.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus::IntCounter;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ListenerUnsent;
use crate::common::byte_budget::{ByteBudget, TenantBytes};
use crate::http::auth::origin::Routes;
use crate::http::connection::serve_connection;
use crate::http::connections::Connections;
use crate::http::server::ConnectionBounds;
use crate::telemetry::metrics::Metrics;

const LARGE: usize = 100_000;
/// Given to h2 in one piece.
const SHORT: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3600);

struct Server {
    unsent: Arc<TenantBytes>,
    ended: IntCounter,
    serving: JoinHandle<()>,
}

/// Serves one connection, with a buffer of 1 KiB in between.
fn serve() -> (Server, DuplexStream) {
    let text = |len: usize| get(move || async move { "x".repeat(len) });
    // A stream with one event, and nothing after it.
    let events = || async {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"event"))]);
        Body::from_stream(stream::StreamExt::chain(first, stream::pending()))
    };
    let router = Router::new()
        .route("/large", text(LARGE))
        .route("/short", text(SHORT))
        .route("/ok", text(2))
        .route("/events", get(events));
    let budget = ByteBudget::new(1 << 20, 4 << 20);
    let (unsent, ended) = (budget.tenant(), IntCounter::new("ended", "ended").unwrap());
    let listener =
        ListenerUnsent { nobody: unsent.clone(), operators: budget.tenant(), ended: ended.clone() };
    let (ours, theirs) = duplex(1024);
    let routes = Routes::new(router, None, listener);
    let serving = tokio::spawn(async move {
        let bounds = ConnectionBounds { all: 4, per_peer: None, head_timeout: MINUTE };
        let connections = Connections::new(bounds, Metrics::new().connections("callers"));
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let admitted = connections.admit(peer, &CancellationToken::new()).await.unwrap();
        admitted.handle().used_by_operator();
        serve_connection(ours, &admitted, routes, CancellationToken::new()).await;
    });
    (Server { unsent, ended, serving }, theirs)
}

impl Server {
    fn ended(&self) -> u64 {
        self.ended.get()
    }
}

/// Opens a connection whose streams have this window.
async fn connect(stream: DuplexStream, window: u32) -> SendRequest<Empty<Bytes>> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    let connected = builder.initial_stream_window_size(window).handshake(TokioIo::new(stream));
    let (requests, connection) = connected.await.unwrap();
    tokio::spawn(connection);
    requests
}

async fn ask(requests: &mut SendRequest<Empty<Bytes>>, path: &str) -> Response<Incoming> {
    let request = Request::get(format!("http://localhost{path}")).body(Empty::new()).unwrap();
    timeout(LONG, requests.send_request(request)).await.expect("no head").unwrap()
}

async fn goes_on(requests: &mut SendRequest<Empty<Bytes>>) {
    let body = ask(requests, "/ok").await.into_body().collect();
    assert_eq!(timeout(MINUTE, body).await.expect("no body").unwrap().to_bytes(), "xx");
}

/// Reads until the stream is reset, and returns what came before.
async fn read_to_reset(response: Response<Incoming>) -> usize {
    let (mut body, mut len) = (response.into_body(), 0);
    loop {
        match timeout(LONG, body.frame()).await.expect("it is neither sent nor ended") {
            Some(Ok(frame)) => len += frame.into_data().unwrap().len(),
            Some(Err(_)) => return len,
            None => panic!("it was sent whole"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stuck_stream_is_reset_after_a_minute_and_the_connection_goes_on() {
    // A closed window, one that takes a part, and one that takes all but the last byte.
    for window in [0, 1000, LARGE as u32 - 1] {
        let (server, stream) = serve();
        let mut requests = connect(stream, window).await;
        let stuck = ask(&mut requests, "/large").await;
        let since = Instant::now();
        assert!(server.unsent.held() >= LARGE);
        sleep(MINUTE - Duration::from_secs(2)).await;
        assert_eq!(server.ended(), 0);
        while server.ended() == 0 {
            assert!(since.elapsed() < 2 * MINUTE, "it is never ended");
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(server.unsent.held(), 0, "bytes of the ended response are still held");
        drop(stuck);
        if window > 0 {
            goes_on(&mut requests).await;
        }
        assert!(!server.serving.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn the_client_of_a_stuck_stream_learns_that_it_was_reset() {
    let (_server, stream) = serve();
    let mut requests = connect(stream, 1000).await;
    let stuck = ask(&mut requests, "/large").await;
    sleep(2 * MINUTE).await;
    assert_eq!(read_to_reset(stuck).await, 1000);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_served_to_the_end() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 5000).await;
    let mut body = ask(&mut requests, "/large").await.into_body();
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        len += frame.unwrap().into_data().unwrap().len();
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!((len, server.ended()), (LARGE, 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_nothing_to_say_is_not_stuck() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 1000).await;
    let mut events = ask(&mut requests, "/events").await.into_body();
    assert_eq!(events.frame().await.unwrap().unwrap().into_data().unwrap(), "event");
    // Real streams send a comment every 15 s; without any, the connection itself is idle for long.
    assert!(timeout(MINUTE + MINUTE / 2, events.frame()).await.is_err());
    assert_eq!((server.ended(), server.unsent.held()), (0, 0));
    goes_on(&mut requests).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_events_nobody_takes_is_reset() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 0).await;
    let _events = ask(&mut requests, "/events").await;
    assert_eq!(server.unsent.held(), 5);
    sleep(MINUTE + Duration::from_secs(2)).await;
    assert_eq!((server.ended(), server.unsent.held()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_h2_has_and_cannot_send_ends_with_its_connection() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 1000).await;
    let _stuck = ask(&mut requests, "/short").await;
    assert!(server.unsent.held() >= SHORT);
    sleep(2 * MINUTE - Duration::from_secs(20)).await;
    assert!(!server.serving.is_finished());
    timeout(5 * MINUTE, server.serving).await.expect("the connection is never ended").unwrap();
    assert_eq!(server.unsent.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn short_responses_beside_one_that_h2_has_are_reset_like_long_ones() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 1000).await;
    let mut stuck = vec![];
    for _ in 0..4 {
        stuck.push(ask(&mut requests, "/short").await);
    }
    assert!(server.unsent.held() >= 4 * SHORT);
    sleep(MINUTE + Duration::from_secs(2)).await;
    assert_eq!(server.ended(), 3);
    assert!(server.unsent.held() < 2 * SHORT, "{}", server.unsent.held());
    assert_eq!(read_to_reset(stuck.pop().unwrap()).await, 1000);
    assert!(!server.serving.is_finished());
    goes_on(&mut requests).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_http1_whose_client_does_not_read_is_closed_after_a_minute() {
    let (server, mut stream) = serve();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    sleep(MINUTE - Duration::from_secs(2)).await;
    assert!(server.unsent.held() >= LARGE && !server.serving.is_finished());
    let since = Instant::now();
    timeout(MINUTE, server.serving).await.expect("it is never closed").unwrap();
    assert!(since.elapsed() < Duration::from_secs(20));
    assert_eq!(server.unsent.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_http1_is_served_to_the_end() {
    let (server, mut stream) = serve();
    stream.write_all(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut left = LARGE;
    while left > 0 {
        sleep(Duration::from_secs(20)).await;
        left = left.saturating_sub(stream.read(&mut [0; 1024]).await.unwrap());
    }
    assert_eq!(server.ended(), 0);
}

#[tokio::test(start_paused = true)]
async fn bytes_count_no_longer_when_the_client_is_gone() {
    let (server, stream) = serve();
    let mut requests = connect(stream, 1000).await;
    let stuck = [ask(&mut requests, "/large").await, ask(&mut requests, "/short").await];
    assert!(server.unsent.held() >= LARGE + SHORT);
    drop((stuck, requests));
    timeout(MINUTE, server.serving).await.expect("it never notices").unwrap();
    tokio::task::yield_now().await;
    assert_eq!(server.unsent.held(), 0);
}
