//! The address at an authorization server that a person's browser is sent to (RFC 6749, section
//! 4.1), with PKCE (RFC 7636, S256).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use sha2::{Digest, Sha256};

use super::OAuthError;
use super::discovery::AuthorizationServer;

const OFFLINE_ACCESS: &str = "offline_access";

/// A request for a code.
pub struct AuthorizationRequest<'a> {
    pub client_id: &'a str,
    pub redirect_uri: &'a str,
    pub state: &'a str,
    /// The secret that redeems the code.
    pub verifier: &'a str,
    pub scopes: Vec<String>,
    pub resource: Option<&'a str>,
}

impl AuthorizationRequest<'_> {
    /// Returns the address to send the browser to. Refuses an authorization server that would give
    /// the code to whoever has seen it.
    pub fn url(&self, server: &AuthorizationServer) -> Result<Url, OAuthError> {
        let Some(endpoint) = &server.authorization_endpoint else {
            let problem = "the authorization server names no `authorization_endpoint`";
            return Err(OAuthError::new(problem));
        };
        if !server.has_pkce {
            let problem = "the authorization server does not say that it binds codes to their \
                 client (PKCE): its metadata lack `S256` in `code_challenge_methods_supported`";
            return Err(OAuthError::new(problem));
        }
        let mut url: Url = (**endpoint).clone();
        let mut scopes = self.scopes.clone();
        let is_offline = |scope: &String| scope == OFFLINE_ACCESS;
        if server.has_offline_access && !scopes.iter().any(is_offline) {
            scopes.push(OFFLINE_ACCESS.to_owned());
        }
        let mut query = url.query_pairs_mut();
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", self.client_id)
            .append_pair("redirect_uri", self.redirect_uri)
            .append_pair("state", self.state)
            .append_pair("code_challenge", &challenge(self.verifier))
            .append_pair("code_challenge_method", "S256");
        if let Some(resource) = self.resource {
            query.append_pair("resource", resource);
        }
        if !scopes.is_empty() {
            query.append_pair("scope", &scopes.join(" "));
        }
        if scopes.iter().any(is_offline) {
            // OpenID Connect gives refresh tokens only if the person is asked.
            query.append_pair("prompt", "consent");
        }
        drop(query);
        Ok(url)
    }
}

/// Makes a text that nobody can guess: a state, or the verifier of a code.
pub fn unguessable() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>())
}

fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_the_standard() {
        let verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(challenge(verifier), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }
}
