//! Servers over the older HTTP+SSE transport, played by the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use futures_util::stream::unfold;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{Answer, Setup, eventually, failed, refused, trunkline};

/// A server of 2024-11-05. It ends with this.
struct Older {
    addr: SocketAddr,
    played: Arc<Played>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Played {
    /// The address that it names for messages.
    address: String,
    /// The present stream.
    events: Mutex<Option<mpsc::Sender<String>>>,
    streams: AtomicUsize,
    seen: Mutex<Vec<Value>>,
    /// Calls that wait until there are so many.
    held: Mutex<Vec<Value>>,
}

impl Older {
    async fn start(address: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let played = Arc::new(Played { address: address.to_owned(), ..Played::default() });
        let app = Router::new()
            .route("/sse", get(open))
            .route("/messages", post(take))
            .with_state(played.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, played, serving }
    }

    fn url(&self) -> String {
        format!("http://{}/sse", self.addr)
    }

    fn has_seen(&self, method: &str) -> bool {
        self.played.seen.lock().iter().any(|message| message["method"] == method)
    }
}

impl Drop for Older {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn open(State(played): State<Arc<Played>>, headers: HeaderMap) -> impl IntoResponse {
    assert_eq!(headers["authorization"], "Bearer t");
    played.streams.fetch_add(1, Ordering::SeqCst);
    let (events, waiting) = mpsc::channel(64);
    events.try_send(format!(": hello\n\nevent: endpoint\ndata: {}\n\n", played.address)).unwrap();
    *played.events.lock() = Some(events);
    let stream = unfold(waiting, |mut waiting: mpsc::Receiver<String>| async move {
        let event = waiting.recv().await?;
        Some((Ok::<_, std::io::Error>(Bytes::from(event)), waiting))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(Box::pin(stream)))
}

async fn take(State(played): State<Arc<Played>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["authorization"], "Bearer t");
    let message: Value = serde_json::from_slice(&body).unwrap();
    played.seen.lock().push(message.clone());
    let send = |id: &Value, result: Value| {
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
        let event = format!("event: message\ndata: {answer}\n\n");
        played.events.lock().as_ref().map(|events| events.try_send(event));
    };
    let id = &message["id"];
    match message["method"].as_str() {
        Some("initialize") => send(
            id,
            json!({
                "protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                "serverInfo": {"name": "older", "version": "1"}
            }),
        ),
        Some("tools/list") => {
            let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
            let names = ["echo", "together", "cut", "never", "refused"];
            send(id, json!({"tools": names.map(tool)}));
        }
        Some("ping") => send(id, json!({})),
        Some("tools/call") => {
            let text = &message["params"]["arguments"]["text"];
            let result = |text: &Value| json!({"content": [{"type": "text", "text": text}]});
            match message["params"]["name"].as_str().unwrap() {
                "echo" => send(id, result(text)),
                // Answers eight calls at once, the last first.
                "together" => {
                    let mut held = played.held.lock();
                    held.push(message.clone());
                    if held.len() == 8 {
                        for call in held.drain(..).rev() {
                            send(&call["id"], result(&call["params"]["arguments"]["text"]));
                        }
                    }
                }
                "cut" => *played.events.lock() = None,
                "refused" => return StatusCode::BAD_REQUEST,
                _ => {}
            }
        }
        _ => {}
    }
    StatusCode::ACCEPTED
}

const HEADERS: &str = "headers = { Authorization = \"Bearer t\" }";

#[tokio::test]
async fn a_server_over_the_older_transport_is_found_out_and_called() {
    let older = Older::start("/messages?session=1").await;
    let gateway = Setup::new().http("older", &older.url(), HEADERS).start().await;
    let server = gateway.server("older").await.text();
    assert!(server.contains("\"era\":\"legacy\"") && server.contains("2024-11-05"), "{server}");
    let answer = gateway.call("older", "echo", json!({"text": "hi"})).await;
    assert_eq!(answer.tool_text(), "hi");
    assert!(older.has_seen("notifications/initialized"));

    let mut calls = JoinSet::new();
    for number in 0..8 {
        let request = gateway.post("older", "together", json!({"text": number.to_string()}));
        calls.spawn(async move { (number, Answer::of(request).await) });
    }
    for (number, answer) in calls.join_all().await {
        assert_eq!(answer.tool_text(), number.to_string());
    }

    let answer = gateway.call_within_ms(50, "older", "never", json!({})).await;
    assert_eq!(answer.problem(), failed(504, "deadline_exceeded"));
    eventually("the cancel", async || older.has_seen("notifications/cancelled").then_some(()))
        .await;
    let answer = gateway.call("older", "refused", json!({})).await;
    assert_eq!(answer.problem(), refused(502, "backend_http"));

    // The stream ends with the calls that it was to answer, and a new one takes its place.
    let answer = gateway.call("older", "cut", json!({})).await;
    assert_eq!(answer.problem(), failed(502, "backend_exited"));
    let answer = gateway.call("older", "echo", json!({"text": "again"})).await;
    assert_eq!(answer.tool_text(), "again");
    assert_eq!(older.played.streams.load(Ordering::SeqCst), 2);
    gateway.stop().await;
}

#[tokio::test]
async fn what_is_not_the_older_transport_is_told() {
    let elsewhere = Older::start("http://elsewhere.example/messages").await;
    let setup = Setup::new()
        .http("elsewhere", &elsewhere.url(), &format!("transport = \"sse\"\n{HEADERS}"))
        .http("strict", &elsewhere.url(), &format!("transport = \"http\"\n{HEADERS}"));
    setup.write();
    let output = trunkline(&setup, &["check"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "elsewhere did not start: its stream names an address elsewhere\n",
        "strict did not start: it answered with the HTTP status 405 to POST http://",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
