//! A receiver of callbacks, over TLS, with a certificate of the tests' own CA.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use super::{eventually, tls};

/// A callback as it came in.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: String,
    pub timestamp: u64,
    pub signature: String,
    pub body: String,
}

#[derive(Default)]
struct Played {
    got: Mutex<Vec<Delivery>>,
    /// The next answers: a status and a header. Afterwards it accepts.
    answers: Mutex<VecDeque<(u16, &'static str, String)>>,
}

pub struct Receiver {
    pub addr: SocketAddr,
    played: Arc<Played>,
    serving: JoinHandle<()>,
}

impl Delivery {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Receiver {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub async fn start_at(addr: SocketAddr) -> Self {
        // The port may still be held by connections of the receiver before.
        let listener = eventually("the port", async || TcpListener::bind(addr).await.ok()).await;
        let (addr, played) = (listener.local_addr().unwrap(), Arc::<Played>::default());
        let serving = tokio::spawn(serve(listener, played.clone()));
        Self { addr, played, serving }
    }

    /// The URL by a name that the certificate has.
    pub fn url(&self) -> String {
        format!("https://localhost:{}/hook", self.addr.port())
    }

    pub fn got(&self) -> Vec<Delivery> {
        self.played.got.lock().clone()
    }

    pub async fn has_got(&self, count: usize) -> Vec<Delivery> {
        eventually("delivered", async || Some(self.got()).filter(|got| got.len() >= count)).await
    }

    /// Answers the next callback so.
    pub fn answer_next(&self, status: u16, header: &'static str, value: &str) {
        self.played.answers.lock().push_back((status, header, value.to_owned()));
    }

    /// Ends it and all its connections.
    pub async fn stop(self) {
        self.serving.abort();
        let _ = self.serving.await;
    }
}

async fn serve(listener: TcpListener, played: Arc<Played>) {
    let app = Router::new().fallback(handle).with_state(played);
    let acceptor = tls::acceptor(&["h2", "http/1.1"]);
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (app, acceptor) = (app.clone(), acceptor.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let builder = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(app);
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn handle(
    State(played): State<Arc<Played>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    played.got.lock().push(Delivery {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp").parse().unwrap(),
        signature: header("webhook-signature"),
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let answer = played.answers.lock().pop_front();
    let (status, name, value) = answer.unwrap_or((204, "x-end", String::new()));
    Response::builder().status(status).header(name, value).body(Body::empty()).unwrap()
}
