//! An MCP server over HTTP, played by the test: of either era, and misbehaving on demand.
//!
//! The called tool decides what the server does; see `Played::call`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::http_answers::{event, reply, status};
use super::http_played::{Played, Protection};
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
    played: Arc<Played>,
    serving: JoinHandle<()>,
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
        let played = Arc::new(Played::new(is_modern));
        // The port may still be held by connections of the server before.
        let listener = eventually("the port", async || TcpListener::bind(addr).await.ok()).await;
        let addr = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let serving = tokio::spawn(serve(listener, tls, played.clone()));
        Self { addr, scheme, played, serving }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.addr)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.played.seen.lock().clone()
    }

    /// The requests of one MCP method.
    pub fn seen_of(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.message["method"] == method).collect()
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.played.connections.load(Ordering::Acquire)
    }

    /// How many streams are open.
    pub fn open_streams(&self) -> usize {
        self.played.open.load(Ordering::Acquire)
    }

    pub fn forget_sessions(&self) {
        self.played.sessions.lock().clear();
    }

    /// Nor says from now on that it was a session it does not know.
    pub fn forget_sessions_silently(&self) {
        self.played.is_terse.store(true, Ordering::Release);
        self.forget_sessions();
    }

    /// Refuses the next stream for what is nobody's answer.
    pub fn refuse_stream(&self, status: u16) {
        self.played.refused.lock().push(status);
    }

    /// Ends the stream for what is nobody's answer.
    pub fn cut_stream(&self) {
        *self.played.notices.lock() = None;
    }

    /// Answers every request with this status, until told otherwise.
    pub fn refuse_everything(&self, status: Option<u16>) {
        *self.played.refuses.lock() = status;
    }

    /// Refuses whoever shows this in `Authorization`, until told otherwise.
    pub fn revoke(&self, authorization: Option<&str>) {
        *self.played.revoked.lock() = authorization.map(str::to_owned);
    }

    /// Accepts requests with one of these `Authorization` alone; refuses others with this status
    /// and challenge. `metadata` say where tokens are to be had.
    pub fn protect(&self, accepted: Vec<String>, status: u16, challenge: &str, metadata: Value) {
        let challenge = challenge.to_owned();
        let protection = Protection { accepted, status, challenge, metadata };
        *self.played.protection.lock() = Some(protection);
    }

    /// Leaves requests of this method unanswered.
    pub fn ignore(&self, method: &'static str) {
        *self.played.ignores.lock() = Some(method);
    }

    /// Speaks the other era from now on.
    pub fn become_modern(&self, is_modern: bool) {
        self.played.is_modern.store(is_modern, Ordering::Release);
    }

    /// With which error it refuses, as a modern one, what does not say its version.
    pub fn refuse_unversioned(&self, code: i64) {
        self.played.unversioned.store(code, Ordering::Release);
    }

    /// Closes all connections, without a word.
    pub fn cut_connections(&self) {
        self.played.cut.notify_waiters();
    }

    pub fn redirect_to(&self, target: String) {
        self.redirect_with(307, target);
    }

    pub fn redirect_with(&self, status: u16, target: String) {
        *self.played.redirect.lock() = (status, target);
    }

    /// With none at all it does not answer when it is asked for them.
    pub fn set_tools(&self, tools: Value) {
        *self.played.tools.lock() = tools;
    }

    /// Says something unasked, once there is a stream for that.
    pub async fn notify(&self, method: &str) {
        let event = event(&json!({"jsonrpc": "2.0", "method": method}));
        let notices = eventually("a stream", async || self.played.notices.lock().clone()).await;
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

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, played: Arc<Played>) {
    let app = Router::new().fallback(handle).with_state(played.clone());
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        played.connections.fetch_add(1, Ordering::AcqRel);
        let (app, tls) = (app.clone(), tls.clone());
        let played = played.clone();
        let spoken = async move {
            match tls {
                None => speak(stream, app).await,
                // Else it was not trusted.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        speak(stream, app).await;
                    }
                }
            }
        };
        connections.spawn(async move {
            tokio::select! {
                () = spoken => {}
                () = played.cut.notified() => {}
            }
        });
    }
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, app: Router) {
    let builder = auto::Builder::new(TokioExecutor::new());
    let service = TowerToHyperService::new(app);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn handle(State(played): State<Arc<Played>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 24).await.unwrap_or_default();
    let message: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (verb, version, path) = (parts.method, parts.version, parts.uri.path().to_owned());
    let seen = Seen { verb, version, path, headers: parts.headers, message };
    played.seen.lock().push(seen.clone());
    if let Some(code) = played.refusal_of(&seen) {
        return status(code);
    }
    if let Some(response) = played.protect(&seen) {
        return response;
    }
    if seen.path == "/redirect" {
        let (code, target) = played.redirect.lock().clone();
        return reply(code).header("location", target).body(Body::empty()).unwrap();
    }
    let is_modern = played.is_modern.load(Ordering::Acquire);
    match seen.verb {
        Method::POST if played.is_silent_about(&seen) => played.hang(),
        Method::POST if is_modern => played.modern(&seen),
        Method::POST => played.legacy(&seen),
        Method::GET if !is_modern => played.listen(&seen),
        Method::DELETE if !is_modern => status(200),
        _ => status(405),
    }
}
