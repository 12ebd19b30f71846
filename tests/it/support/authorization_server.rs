//! An authorization server that people sign in to: codes bound by PKCE, refresh tokens good
//! once, registration and revocation. Notes all that it is asked.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A code that was given to a person's browser.
struct Code {
    person: String,
    challenge: String,
    redirect_uri: String,
    client: String,
}

#[derive(Default)]
struct Kept {
    codes: HashMap<String, Code>,
    /// The person of each refresh token that is still good.
    refresh: HashMap<String, String>,
    /// All tokens ever given.
    given: Vec<String>,
    revoked: Vec<String>,
    /// The forms at the token endpoint.
    asked: Vec<HashMap<String, String>>,
    /// The documents of clients that were registered.
    registered: Vec<Value>,
    /// Members of metadata that differ from the usual ones.
    metadata: Value,
    /// In seconds.
    life: u64,
    numbers: u64,
}

struct Shared {
    url: String,
    kept: Mutex<Kept>,
}

/// The server. It ends with this. Access tokens are `access-PERSON-NUMBER`.
pub struct AuthorizationServer {
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

/// The parameters that a browser brings back.
pub struct Brought {
    /// The path of the page that the browser was sent back to.
    pub path: String,
    pub body: Value,
}

impl AuthorizationServer {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = Kept { metadata: json!({}), life: 3600, ..Kept::default() };
        let shared = Arc::new(Shared { url, kept: Mutex::new(kept) });
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { shared, serving }
    }

    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// A person signs in and agrees. Returns the parameters that the browser brings back.
    pub fn agree(&self, redirect: &str, person: &str) -> Brought {
        let url = Url::parse(redirect).unwrap();
        assert_eq!((url.origin().ascii_serialization().as_str(), url.path()), (self.url(), "/ask"));
        let asked: HashMap<_, _> = url.query_pairs().into_owned().collect();
        assert_eq!((&*asked["response_type"], &*asked["code_challenge_method"]), ("code", "S256"));
        let mut kept = self.shared.kept.lock();
        kept.numbers += 1;
        let code = format!("code-{person}-{}", kept.numbers);
        let [challenge, redirect_uri, client] =
            ["code_challenge", "redirect_uri", "client_id"].map(|name| asked[name].clone());
        let path = Url::parse(&redirect_uri).unwrap().path().to_owned();
        kept.codes.insert(
            code.clone(),
            Code { person: person.to_owned(), challenge, redirect_uri, client },
        );
        let mut body = json!({"state": asked["state"], "code": code});
        if kept.metadata["authorization_response_iss_parameter_supported"] != json!(false) {
            body["iss"] = json!(self.url());
        }
        if let Some(server) = path.strip_prefix("/oauth/callback/") {
            body["server"] = json!(server);
        }
        Brought { path, body }
    }

    pub fn set_metadata(&self, members: Value) {
        self.shared.kept.lock().metadata = members;
    }

    pub fn set_life(&self, seconds: u64) {
        self.shared.kept.lock().life = seconds;
    }

    /// Forgets all refresh tokens, as if all people had taken their consent back.
    pub fn forget(&self) {
        self.shared.kept.lock().refresh.clear();
    }

    /// The forms at the token endpoint with this grant.
    pub fn asked(&self, grant: &str) -> Vec<HashMap<String, String>> {
        let kept = self.shared.kept.lock();
        kept.asked.iter().filter(|form| form["grant_type"] == grant).cloned().collect()
    }

    pub fn given(&self) -> Vec<String> {
        self.shared.kept.lock().given.clone()
    }

    pub fn revoked(&self) -> Vec<String> {
        self.shared.kept.lock().revoked.clone()
    }

    pub fn registered(&self) -> Vec<Value> {
        self.shared.kept.lock().registered.clone()
    }
}

impl Drop for AuthorizationServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let mut kept = shared.kept.lock();
    match path.as_str() {
        "/.well-known/oauth-authorization-server" => {
            metadata(&shared.url, &kept.metadata).into_response()
        }
        "/register" => {
            kept.registered.push(serde_json::from_slice(&body).unwrap());
            let id = format!("client-{}", kept.registered.len());
            (StatusCode::CREATED, json!({"client_id": id}).to_string()).into_response()
        }
        "/revoke" => {
            let form = form(&body);
            kept.refresh.remove(&form["token"]);
            kept.revoked.push(form["token"].clone());
            StatusCode::OK.into_response()
        }
        "/token" => {
            let form = form(&body);
            kept.asked.push(form.clone());
            match person(&mut kept, &form) {
                Some(person) => tokens(&mut kept, &person).into_response(),
                None => {
                    let refusal = json!({"error": "invalid_grant"}).to_string();
                    (StatusCode::BAD_REQUEST, refusal).into_response()
                }
            }
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

fn metadata(url: &str, changed: &Value) -> String {
    let mut metadata = json!({
        "issuer": url,
        "token_endpoint": format!("{url}/token"),
        "authorization_endpoint": format!("{url}/ask"),
        "registration_endpoint": format!("{url}/register"),
        "revocation_endpoint": format!("{url}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
        "authorization_response_iss_parameter_supported": true,
    });
    for (name, value) in changed.as_object().unwrap() {
        metadata[name] = value.clone();
    }
    metadata.to_string()
}

/// Returns the person whose right a request has, once.
fn person(kept: &mut Kept, form: &HashMap<String, String>) -> Option<String> {
    match form["grant_type"].as_str() {
        "authorization_code" => {
            let code = kept.codes.remove(&form["code"])?;
            let verifier = Sha256::digest(&form["code_verifier"]);
            let is_bound = code.challenge == URL_SAFE_NO_PAD.encode(verifier)
                && code.redirect_uri == form["redirect_uri"]
                && form.get("client_id").is_none_or(|client| *client == code.client);
            is_bound.then_some(code.person)
        }
        "refresh_token" => kept.refresh.remove(&form["refresh_token"]),
        _ => None,
    }
}

fn tokens(kept: &mut Kept, person: &str) -> String {
    kept.numbers += 1;
    let access = format!("access-{person}-{}", kept.numbers);
    let mut answer = json!({"access_token": access, "token_type": "Bearer",
        "expires_in": kept.life});
    kept.given.push(access);
    let refresh = format!("refresh-{person}-{}", kept.numbers);
    answer["refresh_token"] = json!(refresh);
    kept.given.push(refresh.clone());
    kept.refresh.insert(refresh, person.to_owned());
    answer.to_string()
}

fn form(body: &[u8]) -> HashMap<String, String> {
    let url = Url::parse(&format!("http://x/?{}", String::from_utf8_lossy(body))).unwrap();
    url.query_pairs().into_owned().collect()
}
