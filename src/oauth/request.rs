//! Asks an authorization server for tokens (RFC 6749), and has it revoke them (RFC 7009).

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::OAuthError;
use super::client::Client;
use super::discovery::AuthorizationServer;
use super::fetch::{Fetch, unexpected};
use crate::common::secret::Secret;

const TOKEN_LEN_MAX: usize = 12 * 1024;
/// The longest error code that is repeated.
const CODE_LEN_MAX: usize = 64;
/// A longer life is not believed.
const LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The form of a request.
#[derive(Default)]
pub struct Form(Vec<(&'static str, String)>);

impl Form {
    pub fn new(grant: &str) -> Self {
        let mut form = Self::default();
        form.add("grant_type", grant);
        form
    }

    pub fn add(&mut self, name: &'static str, value: &str) {
        self.0.push((name, value.to_owned()));
    }

    /// Adds scopes, if there are any.
    pub fn add_scopes<'s>(&mut self, scopes: impl IntoIterator<Item = &'s String>) {
        let scopes: Vec<&str> = scopes.into_iter().map(String::as_str).collect();
        if !scopes.is_empty() {
            self.add("scope", &scopes.join(" "));
        }
    }

    /// Adds a value, if there is one.
    pub fn add_some(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn body(&self) -> String {
        let pairs = self.0.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        pairs.collect::<Vec<_>>().join("&")
    }
}

/// Tokens that an authorization server has given.
pub struct Tokens {
    pub access: Secret,
    /// `None` if the authorization server did not say.
    pub life: Option<Duration>,
    /// When they were asked for.
    pub asked: Instant,
    pub refresh: Option<Secret>,
    /// `None` if it gave the scopes that were asked for.
    pub scope: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: String,
    /// Some servers write it as a text, others with a point.
    expires_in: Option<serde_json::Value>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// The answer to a request for an assertion, which is called a token for historical reasons.
#[derive(Deserialize)]
struct AssertionAnswer {
    access_token: String,
    issued_token_type: String,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

/// Asks for tokens.
pub async fn tokens(
    fetch: &Fetch,
    server: &AuthorizationServer,
    client: &Client<'_>,
    form: Form,
) -> Result<Tokens, OAuthError> {
    let (url, asked) = (&server.token_endpoint, Instant::now());
    let (status, body) = post(fetch, url, server, client, form).await?;
    if status != StatusCode::OK {
        return Err(refused(url, status, &body));
    }
    read(&body, asked).ok_or_else(|| {
        let host = url.host_str().unwrap_or_default();
        OAuthError::new(format!("the answer of `{host}` has no bearer token"))
    })
}

/// Asks for an assertion of this type (RFC 8693, section 2.2).
pub async fn assertion(
    fetch: &Fetch,
    server: &AuthorizationServer,
    client: &Client<'_>,
    form: Form,
    of_type: &str,
) -> Result<Secret, OAuthError> {
    let url = &server.token_endpoint;
    let (status, body) = post(fetch, url, server, client, form).await?;
    if status != StatusCode::OK {
        return Err(refused(url, status, &body));
    }
    let answer = serde_json::from_slice::<AssertionAnswer>(&body).ok();
    let answer = answer.filter(|it| it.issued_token_type == of_type && is_token(&it.access_token));
    answer.map(|it| Secret::new(it.access_token)).ok_or_else(|| {
        let host = url.host_str().unwrap_or_default();
        OAuthError::new(format!("the answer of `{host}` has no assertion (`{of_type}`)"))
    })
}

/// Has a token revoked. An authorization server without an endpoint for that forgets it in time.
pub async fn revoke(
    fetch: &Fetch,
    server: &AuthorizationServer,
    client: &Client<'_>,
    token: &Secret,
    hint: &str,
) -> Result<(), OAuthError> {
    let Some(url) = &server.revocation_endpoint else { return Ok(()) };
    let mut form = Form::default();
    form.add("token", token.expose());
    form.add("token_type_hint", hint);
    let (status, body) = post(fetch, url, server, client, form).await?;
    if status.is_success() { Ok(()) } else { Err(refused(url, status, &body)) }
}

async fn post(
    fetch: &Fetch,
    url: &Url,
    server: &AuthorizationServer,
    client: &Client<'_>,
    mut form: Form,
) -> Result<(StatusCode, Vec<u8>), OAuthError> {
    let request = client.prove(server, &mut form, fetch.post(url)?)?;
    let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
    fetch.send(url, request.header(CONTENT_TYPE, content_type).body(form.body())).await
}

/// Describes a refusal by its error code alone.
pub(super) fn refused(url: &Url, status: StatusCode, body: &[u8]) -> OAuthError {
    let refusal = serde_json::from_slice::<Refusal>(body).ok();
    match refusal.map(|refusal| refusal.error).filter(|code| is_code(code)) {
        Some(code) => {
            let host = url.host_str().unwrap_or_default();
            OAuthError::refused(format!("`{host}` refused it with `{code}`"), code)
        }
        None => unexpected(url, status),
    }
}

fn read(body: &[u8], asked: Instant) -> Option<Tokens> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    if !is_token(&answer.access_token) || !answer.token_type.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let seconds = answer.expires_in.and_then(|value| match value {
        serde_json::Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    });
    let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Some(Tokens {
        access: Secret::new(answer.access_token),
        life: life.map(|life| life.min(LIFE_MAX)),
        asked,
        refresh: answer.refresh_token.filter(|token| is_token(token)).map(Secret::new),
        scope: answer.scope,
    })
}

fn is_token(text: &str) -> bool {
    (1..=TOKEN_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether a text can be an error code, and no token that is called one.
pub fn is_code(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (1..=CODE_LEN_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Encodes a text as in a form.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_taken() {
        let read = |body: &str| read(body.as_bytes(), Instant::now());
        let tokens =
            read(r#"{"access_token":"t.1","token_type":"bearer","expires_in":60}"#).unwrap();
        assert_eq!(tokens.access.expose(), "t.1");
        assert_eq!(tokens.life, Some(Duration::from_secs(60)));
        for expires in ["\"60\"", "60.0"] {
            let body =
                format!(r#"{{"access_token":"t","token_type":"Bearer","expires_in":{expires}}}"#);
            assert!(read(&body).unwrap().life.is_some());
        }
        for body in [
            "{}",
            r#"{"access_token":"","token_type":"bearer"}"#,
            r#"{"access_token":"a b","token_type":"bearer"}"#,
            r#"{"access_token":"a\nb","token_type":"bearer"}"#,
            r#"{"access_token":"t","token_type":"mac"}"#,
        ] {
            assert!(read(body).is_none(), "{body}");
        }
    }

    #[test]
    fn values_are_encoded_as_in_a_form() {
        assert_eq!(encoded("a b&c=d/é~"), "a%20b%26c%3Dd%2F%C3%A9~");
        assert!(is_code("invalid_client") && !is_code("eyJhbGciOi") && !is_code(""));
    }
}
