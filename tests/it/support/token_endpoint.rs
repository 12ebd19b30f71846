//! An authorization server: its metadata, and a token endpoint that notes what it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A request for a token.
#[derive(Clone, Debug)]
pub struct Asked {
    pub authorization: String,
    /// The form, decoded.
    pub form: Vec<(String, String)>,
}

impl Asked {
    pub fn get(&self, name: &str) -> &str {
        let found = self.form.iter().find(|(it, _)| it == name);
        found.map_or("", |(_, value)| value)
    }
}

struct Shared {
    url: String,
    asked: Mutex<Vec<Asked>>,
    /// Members of metadata and answers that differ from the usual ones.
    metadata: Mutex<Value>,
    answer: Mutex<Value>,
    status: Mutex<u16>,
    redirect: Mutex<Option<String>>,
    /// The answers to requests wait for this, if set.
    held: Mutex<Option<Arc<Notify>>>,
    tokens: AtomicUsize,
}

/// The server. It ends with this. Its tokens are `token-1`, `token-2` and so on.
pub struct TokenEndpoint {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl TokenEndpoint {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            url,
            asked: Mutex::default(),
            metadata: Mutex::new(json!({})),
            answer: Mutex::new(json!({"expires_in": 3600})),
            status: Mutex::new(200),
            redirect: Mutex::default(),
            held: Mutex::default(),
            tokens: AtomicUsize::new(0),
        });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, serving }
    }

    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// The requests for tokens so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().clone()
    }

    /// Changes members of its metadata.
    pub fn set_metadata(&self, members: Value) {
        *self.shared.metadata.lock() = members;
    }

    /// Changes members of its answers.
    pub fn set_answer(&self, members: Value) {
        *self.shared.answer.lock() = members;
    }

    pub fn refuse(&self, status: u16) {
        *self.shared.status.lock() = status;
    }

    pub fn redirect_to(&self, url: &str) {
        *self.shared.redirect.lock() = Some(url.to_owned());
    }

    /// Leaves requests unanswered until they are released.
    pub fn hold(&self) {
        *self.shared.held.lock() = Some(Arc::default());
    }

    /// Answers a request that is held, and all that follow.
    pub fn release(&self) {
        if let Some(held) = self.shared.held.lock().take() {
            held.notify_one();
        }
    }
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == "/.well-known/oauth-authorization-server" {
        let url = &shared.url;
        let mut metadata = json!({"issuer": url, "token_endpoint": format!("{url}/token")});
        merge(&mut metadata, &shared.metadata.lock());
        return metadata.to_string().into_response();
    }
    if path != "/token" {
        return StatusCode::NOT_FOUND.into_response();
    }
    let authorization = request.headers().get(header::AUTHORIZATION);
    let authorization = authorization.map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let pairs = reqwest::Url::parse(&format!("http://x/?{}", String::from_utf8_lossy(&body)));
    let form = pairs.unwrap().query_pairs().into_owned().collect();
    shared.asked.lock().push(Asked { authorization, form });
    let held = shared.held.lock().clone();
    if let Some(held) = held {
        held.notified().await;
    }
    if let Some(url) = shared.redirect.lock().clone() {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, url)]).into_response();
    }
    let status = StatusCode::from_u16(*shared.status.lock()).unwrap();
    if status != StatusCode::OK {
        let said = json!({"error": "invalid_client", "error_description": "token-secret"});
        return (status, said.to_string()).into_response();
    }
    let number = shared.tokens.fetch_add(1, Ordering::AcqRel) + 1;
    let mut said = json!({"access_token": format!("token-{number}"), "token_type": "Bearer"});
    merge(&mut said, &shared.answer.lock());
    said.to_string().into_response()
}

fn merge(into: &mut Value, members: &Value) {
    for (name, value) in members.as_object().unwrap() {
        into[name] = value.clone();
    }
}
