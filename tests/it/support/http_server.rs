//! An MCP server over HTTP, played by the test: of either era, and misbehaving on demand.
//!
//! What it does depends on the tool that is called; see `Shared::call`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, Version};
use futures_util::stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::http_answers::{error, event, reply, result_of, status, tool_result};
use super::{Setup, eventually, tls};

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub verb: Method,
    pub version: Version,
    pub path: String,
    pub headers: HeaderMap,
    pub message: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// The server. It ends with this.
pub struct HttpServer {
    pub addr: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    is_modern: bool,
    seen: Mutex<Vec<Seen>>,
    sessions: Mutex<Vec<String>>,
    /// A session that is not known is a status, and no words.
    is_terse: AtomicBool,
    /// Where `/redirect` leads.
    target: Mutex<String>,
    /// Connections that there were.
    connections: AtomicUsize,
    /// Streams that are open.
    open: Arc<AtomicUsize>,
    /// What the next GET streams begin with, by their `Last-Event-ID`.
    resumed: Mutex<HashMap<String, String>>,
    /// The statuses with which the next streams for what is nobody's answer are refused.
    refused: Mutex<Vec<u16>>,
    notices: Mutex<Option<mpsc::Sender<String>>>,
    tools: Mutex<Value>,
}

impl HttpServer {
    pub async fn legacy() -> Self {
        Self::start(false, "127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn modern() -> Self {
        Self::start(true, "127.0.0.1:0".parse().unwrap()).await
    }

    /// A modern one that speaks TLS, and these protocols over it.
    pub async fn encrypted(protocols: &[&str]) -> Self {
        let tls = Some(tls::acceptor(protocols));
        Self::start_with(true, "127.0.0.1:0".parse().unwrap(), tls).await
    }

    pub async fn start(is_modern: bool, addr: SocketAddr) -> Self {
        Self::start_with(is_modern, addr, None).await
    }

    async fn start_with(is_modern: bool, addr: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        let names = ["echo", "answer", "hang", "status", "resume", "cut"];
        let tools = names.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
        let shared = Arc::new(Shared {
            is_modern,
            seen: Mutex::default(),
            sessions: Mutex::default(),
            is_terse: AtomicBool::new(false),
            target: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: Arc::default(),
            resumed: Mutex::default(),
            refused: Mutex::default(),
            notices: Mutex::default(),
            tools: Mutex::new(tools.into_iter().collect()),
        });
        // The port may still be held by connections of the server before.
        let listener = eventually("the port", async || TcpListener::bind(addr).await.ok()).await;
        let addr = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let serving = tokio::spawn(serve(listener, tls, shared.clone()));
        Self { addr, scheme, shared, serving }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.addr)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// The requests of one MCP method.
    pub fn seen_of(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.message["method"] == method).collect()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// How many streams are open.
    pub fn open_streams(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    pub fn forget_sessions(&self) {
        self.shared.sessions.lock().clear();
    }

    /// Nor says from now on that it was a session it does not know.
    pub fn forget_sessions_silently(&self) {
        self.shared.is_terse.store(true, Ordering::Release);
        self.forget_sessions();
    }

    /// Refuses the next stream for what is nobody's answer.
    pub fn refuse_stream(&self, status: u16) {
        self.shared.refused.lock().push(status);
    }

    pub fn redirect_to(&self, target: String) {
        *self.shared.target.lock() = target;
    }

    /// With none at all it does not answer when it is asked for them.
    pub fn set_tools(&self, tools: Value) {
        *self.shared.tools.lock() = tools;
    }

    /// Says something unasked, once there is a stream for that.
    pub async fn notify(&self, method: &str) {
        let event = event(&json!({"jsonrpc": "2.0", "method": method}));
        let notices = eventually("a stream", async || self.shared.notices.lock().clone()).await;
        notices.send(event).await.unwrap();
    }

    /// Ends it and all its connections.
    pub async fn stop(self) {
        self.serving.abort();
        let _ = (&mut { self.serving }).await;
    }
}

impl Setup {
    /// A server at a URL.
    pub fn http(self, id: &str, url: &str, settings: &str) -> Self {
        self.raw_server(id, &format!("url = {url:?}\n{settings}"))
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let app = Router::new().fallback(handle).with_state(shared.clone());
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.connections.fetch_add(1, Ordering::AcqRel);
        let (app, tls) = (app.clone(), tls.clone());
        connections.spawn(async move {
            match tls {
                None => speak(stream, app).await,
                // Else it was not trusted.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        speak(stream, app).await;
                    }
                }
            }
        });
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, app: Router) {
    let builder = auto::Builder::new(TokioExecutor::new());
    let service = TowerToHyperService::new(app);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default();
    let message: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (verb, version, path) = (parts.method, parts.version, parts.uri.path().to_owned());
    let seen = Seen { verb, version, path, headers: parts.headers, message };
    shared.seen.lock().push(seen.clone());
    if seen.path == "/redirect" {
        let target = shared.target.lock().clone();
        return reply(307).header("location", target).body(Body::empty()).unwrap();
    }
    match seen.verb {
        Method::POST if shared.is_modern => shared.modern(&seen),
        Method::POST => shared.legacy(&seen),
        Method::GET if !shared.is_modern => shared.listen(&seen),
        Method::DELETE if !shared.is_modern => status(200),
        _ => status(405),
    }
}

impl Shared {
    fn modern(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "server/discover" => {
                let capabilities = json!({"tools": {}});
                let caching = json!({"ttlMs": 0, "cacheScope": "public"});
                let mut result = json!({
                    "resultType": "complete",
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": capabilities,
                });
                result.as_object_mut().unwrap().extend(caching.as_object().unwrap().clone());
                result_of(id, result)
            }
            "initialize" => error(400, id, -32022, "no such version"),
            _ => self.answer(seen),
        }
    }

    fn legacy(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "initialize" => {
                let mut sessions = self.sessions.lock();
                let session = format!("session-{}", uuid::Uuid::new_v4());
                sessions.push(session.clone());
                let result = json!({
                    "protocolVersion": "2025-11-25",
                    "serverInfo": {"name": "played", "version": "1"},
                    "capabilities": {"tools": {"listChanged": true}},
                });
                let mut response = result_of(id, result);
                response.headers_mut().insert("mcp-session-id", session.parse().unwrap());
                response
            }
            _ if seen.header("mcp-session-id").is_empty() => {
                error(400, &Value::Null, -32000, "Bad Request: no session")
            }
            _ if !self.sessions.lock().iter().any(|it| it == seen.header("mcp-session-id")) => {
                if self.is_terse.load(Ordering::Acquire) {
                    return status(404);
                }
                error(404, &Value::Null, -32001, "Session not found")
            }
            method if method.starts_with("notifications/") => status(202),
            _ => self.answer(seen),
        }
    }

    fn answer(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        match seen.message["method"].as_str().unwrap_or_default() {
            "tools/list" => {
                let tools = self.tools.lock().clone();
                if tools.is_null() {
                    return self.stream(mpsc::channel(1).1, true, String::new());
                }
                let caching =
                    json!({"resultType": "complete", "ttlMs": 600_000, "cacheScope": "public"});
                let mut result = json!({"tools": tools});
                result.as_object_mut().unwrap().extend(caching.as_object().unwrap().clone());
                result_of(id, result)
            }
            "tools/call" => self.call(seen),
            _ => error(404, id, -32601, "Method not found"),
        }
    }

    /// - `echo {text}`: answers at once, as JSON
    /// - `answer {events?, body, replace_id?}`: with any text; `$id` stands for the id of the request
    /// - `hang`: opens a stream and says nothing more
    /// - `status {status, headers, body}`
    /// - `resume`: ends the stream, and answers where it is asked for again
    /// - `cut`: breaks off
    fn call(&self, seen: &Seen) -> Response<Body> {
        let id = &seen.message["id"];
        let params = &seen.message["params"];
        let arguments = &params["arguments"];
        let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
        let filled = |name: &str| text(name).replace("$id", &id.to_string());
        match params["name"].as_str().unwrap() {
            "echo" => result_of(id, tool_result(&text("text"))),
            "answer" => {
                let kind = arguments["type"].as_str().unwrap_or("application/json");
                reply(200).header("content-type", kind).body(filled("body").into()).unwrap()
            }
            "hang" => self.stream(mpsc::channel(1).1, true, String::new()),
            "status" => {
                let mut response = reply(arguments["status"].as_u64().unwrap() as u16);
                for (name, value) in arguments["headers"].as_object().into_iter().flatten() {
                    response = response.header(name, value.as_str().unwrap());
                }
                response.body(filled("body").into()).unwrap()
            }
            "resume" => {
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": tool_result("resumed")});
                self.resumed.lock().insert("mark-1".to_owned(), event(&answer));
                let start = "id: mark-1\nretry: 60\ndata:\n\n".to_owned();
                self.stream(mpsc::channel(1).1, false, start)
            }
            "cut" => self.stream(mpsc::channel(1).1, false, ": nothing\n\n".to_owned()),
            other => {
                let tools = self.tools.lock();
                assert!(tools.as_array().unwrap().iter().any(|tool| tool["name"] == other));
                result_of(id, tool_result(other))
            }
        }
    }

    fn listen(&self, seen: &Seen) -> Response<Body> {
        if !self.sessions.lock().iter().any(|it| it == seen.header("mcp-session-id")) {
            return status(404);
        }
        if let Some(start) = self.resumed.lock().remove(seen.header("last-event-id")) {
            return self.stream(mpsc::channel(1).1, false, start);
        }
        if let Some(code) = self.refused.lock().pop() {
            return status(code);
        }
        let (sender, events) = mpsc::channel(16);
        *self.notices.lock() = Some(sender);
        self.stream(events, false, String::new())
    }

    /// Events until nobody is left to send any; `hangs`: for ever.
    fn stream(&self, events: mpsc::Receiver<String>, hangs: bool, start: String) -> Response<Body> {
        let open = Open::new(self.open.clone());
        let rest = stream::unfold((events, open), move |(mut events, open)| async move {
            match events.recv().await {
                Some(event) => Some((Ok::<_, Infallible>(Bytes::from(event)), (events, open))),
                None if hangs => std::future::pending().await,
                None => None,
            }
        });
        let start = stream::iter([Ok(Bytes::from(start))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(start, rest));
        reply(200).header("content-type", "text/event-stream").body(body).unwrap()
    }
}

/// Counts a stream for as long as it is there.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
