//! An identity provider: keys, the tokens they sign, and a server that publishes the keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RSA_PSS_SHA384, RsaKeyPair, RsaPublicKeyComponents,
};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use trunkline::config::OAuth;
use trunkline::tenants::oauth::Verifier;

pub const ISSUER: &str = "https://id.example";
pub const AUDIENCE: &str = "https://gateway.example/mcp";

/// A key that signs tokens.
pub struct SigningKey {
    pub id: String,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// The server that publishes keys, on a port of its own.
pub struct Provider {
    shared: Arc<Shared>,
    url: String,
    serving: JoinHandle<()>,
}

struct Shared {
    reply: Mutex<Reply>,
    requests: AtomicUsize,
}

#[derive(Clone)]
enum Reply {
    Document(String),
    Redirect(String),
    Nothing,
}

impl SigningKey {
    pub fn rsa(id: &str) -> Self {
        Self::new(id, Pair::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()))
    }

    pub fn ec(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING);
        Self::new(id, Pair::Ec(pair.unwrap()))
    }

    pub fn ed(id: &str) -> Self {
        Self::new(id, Pair::Ed(Ed25519KeyPair::generate().unwrap()))
    }

    fn new(id: &str, pair: Pair) -> Self {
        Self { id: id.to_owned(), pair }
    }

    /// The public half.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            Pair::Rsa(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "n": base64(public.n), "e": base64(public.e)})
            }
            Pair::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "x": base64(x), "y": base64(y)})
            }
            Pair::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": base64(pair.public_key())})
            }
        };
        jwk["kid"] = json!(self.id);
        jwk
    }

    /// The default signing key.
    pub fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Ec(_) => "ES256",
            Pair::Ed(_) => "EdDSA",
        }
    }

    /// A token as providers make them.
    pub fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": self.id, "typ": "at+jwt"}), claims)
    }

    /// A token with any header.
    pub fn token_with(&self, header: &Value, claims: &Value) -> String {
        token_of(header, claims, |message| self.sign(&header["alg"], message))
    }

    fn sign(&self, algorithm: &Value, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                if algorithm == "PS384" {
                    pair.sign(&RSA_PSS_SHA384, &random, message, &mut signature).unwrap();
                } else {
                    pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                }
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Pair::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// A token with any header and any signature.
pub fn token_of(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
    let signature = base64(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// The claims of a good token for `acme`, changed by `change`.
pub fn claims(change: impl FnOnce(&mut Value)) -> Value {
    let mut claims = json!({
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": now_s() + 300,
        "iat": now_s(),
        "sub": "someone",
        "tenant": "acme",
    });
    change(&mut claims);
    claims
}

impl Provider {
    pub async fn start(keys: &[&SigningKey]) -> Self {
        let shared =
            Arc::new(Shared { reply: Mutex::new(Reply::Nothing), requests: AtomicUsize::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let provider = Self { shared, url, serving };
        provider.publish(keys);
        provider
    }

    /// From now on these are its keys.
    pub fn publish(&self, keys: &[&SigningKey]) {
        let keys: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
        self.publish_text(json!({"keys": keys}).to_string());
    }

    /// From now on it answers with this text.
    pub fn publish_text(&self, text: String) {
        *self.shared.reply.lock() = Reply::Document(text);
    }

    /// From now on it sends those who ask elsewhere.
    pub fn redirect_to(&self, url: &str) {
        *self.shared.reply.lock() = Reply::Redirect(url.to_owned());
    }

    /// From now on it accepts requests and does not answer.
    pub fn fall_silent(&self) {
        *self.shared.reply.lock() = Reply::Nothing;
    }

    /// From now on nobody is there.
    pub async fn stop(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    /// How often it was asked.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The gateway's side of it, which has fetched nothing yet.
    pub fn verifier(&self) -> Arc<Verifier> {
        let config = OAuth {
            issuer: ISSUER.to_owned(),
            audience: AUDIENCE.to_owned(),
            jwks_url: self.url.parse().unwrap(),
            tenant_claim: "/tenant".to_owned(),
            client_id: None,
        };
        Verifier::new(&config).unwrap()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>) -> Response {
    shared.requests.fetch_add(1, Ordering::SeqCst);
    let reply = shared.reply.lock().clone();
    match reply {
        Reply::Document(text) => text.into_response(),
        Reply::Redirect(url) => (StatusCode::FOUND, [(header::LOCATION, url)]).into_response(),
        Reply::Nothing => std::future::pending().await,
    }
}

pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
