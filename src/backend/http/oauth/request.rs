//! Asks a token endpoint for a token (RFC 6749, section 4.4).

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::assertion::Signer;
use super::discovery::TokenEndpoint;
use super::fetch::{Fetch, unexpected};
use super::{Token, TokenError};
use crate::config::UpstreamOAuth;

const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const TOKEN_LEN_MAX: usize = 16 * 1024;
/// The longest error code that is repeated.
const CODE_LEN_MAX: usize = 64;
/// A longer life is not believed.
const LIFE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct TokenRequest<'a> {
    pub(super) config: &'a UpstreamOAuth,
    pub(super) server: &'a Url,
    pub(super) endpoint: &'a TokenEndpoint,
    pub(super) signer: Option<&'a Signer>,
    pub(super) scopes: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: String,
    /// Some servers write it as a text, others with a point.
    expires_in: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl TokenRequest<'_> {
    pub(super) async fn send(self, fetch: &Fetch) -> Result<Token, TokenError> {
        let url = &self.endpoint.url;
        let request = self.write(fetch.post(url)?)?;
        let sent = Instant::now();
        let (status, body) = fetch.send(url, request).await?;
        if status != StatusCode::OK {
            let refusal = serde_json::from_slice::<Refusal>(&body).ok();
            let code = refusal.map(|refusal| refusal.error).filter(|code| is_code(code));
            return Err(match code {
                Some(code) => TokenError::new(format!(
                    "`{}` refused it with `{code}`",
                    url.host_str().unwrap_or_default()
                )),
                None => unexpected(url, status),
            });
        }
        read(&body, sent).ok_or_else(|| {
            let host = url.host_str().unwrap_or_default();
            TokenError::new(format!("the answer of `{host}` has no bearer token"))
        })
    }

    fn write(&self, mut request: RequestBuilder) -> Result<RequestBuilder, TokenError> {
        let UpstreamOAuth { client_id, client_secret, key_id, resource, .. } = self.config;
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        if !self.scopes.is_empty() {
            let scopes: Vec<_> = self.scopes.iter().map(String::as_str).collect();
            form.push(("scope", scopes.join(" ")));
        }
        let server = || self.server.as_str().trim_end_matches('/').to_owned();
        form.push(("resource", resource.clone().unwrap_or_else(server)));
        match (client_secret, self.signer) {
            (Some(secret), _) if self.endpoint.secret_in_body => {
                form.push(("client_id", client_id.clone()));
                form.push(("client_secret", secret.expose().to_owned()));
            }
            (Some(secret), _) => {
                // Both are encoded as in a form (RFC 6749, section 2.3.1).
                let pair = format!("{}:{}", encoded(client_id), encoded(secret.expose()));
                let header = format!("Basic {}", STANDARD.encode(pair));
                let mut header = HeaderValue::from_str(&header).expect("base64 is plain");
                header.set_sensitive(true);
                request = request.header(AUTHORIZATION, header);
            }
            (None, Some(signer)) => {
                let audience = self.endpoint.issuer.as_deref();
                let audience = audience.unwrap_or(self.endpoint.url.as_str());
                let assertion = signer.assertion(client_id, audience, key_id.as_deref());
                let assertion = assertion.map_err(TokenError::new)?;
                form.push(("client_id", client_id.clone()));
                form.push(("client_assertion_type", JWT_BEARER.to_owned()));
                form.push(("client_assertion", assertion));
            }
            (None, None) => return Err(TokenError::new("there are no credentials")),
        }
        let body = form.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
        let body = body.collect::<Vec<_>>().join("&");
        Ok(request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body))
    }
}

fn read(body: &[u8], sent: Instant) -> Option<Token> {
    let answer: Answer = serde_json::from_slice(body).ok()?;
    let is_plain = answer.access_token.bytes().all(|byte| byte.is_ascii_graphic());
    let fits = (1..=TOKEN_LEN_MAX).contains(&answer.access_token.len()) && is_plain;
    if !fits || !answer.token_type.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let mut header = HeaderValue::from_str(&format!("Bearer {}", answer.access_token)).ok()?;
    header.set_sensitive(true);
    let seconds = answer.expires_in.and_then(|value| match value {
        serde_json::Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    });
    let life = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Some(Token { header, obtained: sent, expires: life.map(|life| sent + life.min(LIFE_MAX)) })
}

/// Returns whether a text can be an error code, and no token that is called one.
fn is_code(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (1..=CODE_LEN_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Encodes a text as in a form.
fn encoded(text: &str) -> String {
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
        let token =
            read(r#"{"access_token":"t.1","token_type":"bearer","expires_in":60}"#).unwrap();
        assert_eq!(
            (token.header.as_bytes(), token.header.is_sensitive()),
            (&b"Bearer t.1"[..], true)
        );
        assert_eq!(token.expires, Some(token.obtained + Duration::from_secs(60)));
        for expires in ["\"60\"", "60.0"] {
            let body =
                format!(r#"{{"access_token":"t","token_type":"Bearer","expires_in":{expires}}}"#);
            assert!(read(&body).unwrap().expires.is_some());
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
