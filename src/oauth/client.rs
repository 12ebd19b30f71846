//! Proves to an authorization server who asks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde::{Deserialize, Serialize};

use super::OAuthError;
pub use super::assertion::Signer;
use super::discovery::AuthorizationServer;
use super::request::{Form, encoded};
use crate::common::secret::Secret;

const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A client, as an authorization server knows it.
pub struct Client<'a> {
    pub id: &'a str,
    pub credential: Credential<'a>,
}

/// The proof that a client is this one.
pub enum Credential<'a> {
    /// Nothing: everybody may be this client, and codes are bound by PKCE alone.
    None,
    Secret(&'a Secret),
    Key(&'a Signer, Option<&'a str>),
}

/// A client that the gateway has registered, or whose id is the URL of its metadata.
#[derive(Clone, Serialize, Deserialize)]
pub struct KnownClient {
    pub id: String,
    pub secret: Option<String>,
    /// The address that browsers are sent back to.
    pub redirect_uri: String,
    /// In seconds since 1970; 0 if the secret does not expire.
    #[serde(default)]
    pub secret_expires: i64,
}

impl Client<'_> {
    /// Adds the proof to a request.
    pub(super) fn prove(
        &self,
        server: &AuthorizationServer,
        form: &mut Form,
        request: RequestBuilder,
    ) -> Result<RequestBuilder, OAuthError> {
        match self.credential {
            Credential::None => form.add("client_id", self.id),
            Credential::Secret(secret) if server.secret_in_body => {
                form.add("client_id", self.id);
                form.add("client_secret", secret.expose());
            }
            Credential::Secret(secret) => {
                // Both are encoded as in a form (RFC 6749, section 2.3.1).
                let pair = format!("{}:{}", encoded(self.id), encoded(secret.expose()));
                let header = format!("Basic {}", STANDARD.encode(pair));
                let mut header = HeaderValue::from_str(&header).expect("base64 is plain");
                header.set_sensitive(true);
                return Ok(request.header(AUTHORIZATION, header));
            }
            Credential::Key(signer, key_id) => {
                let audience = server.issuer.as_deref();
                let audience = audience.unwrap_or(server.token_endpoint.as_str());
                let assertion = signer.assertion(self.id, audience, key_id);
                form.add("client_id", self.id);
                form.add("client_assertion_type", JWT_BEARER);
                form.add("client_assertion", &assertion.map_err(OAuthError::new)?);
            }
        }
        Ok(request)
    }
}
