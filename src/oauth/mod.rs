//! OAuth 2.1 as a client: how the gateway gets access tokens for servers that want them.
//!
//! - [`discovery`]: finds the authorization server (RFC 9728, RFC 8414)
//! - [`client`]: proves who asks; [`assertion`] signs (`private_key_jwt`), [`registration`]
//!   registers a client where there is none (RFC 7591)
//! - [`authorization`]: sends a person's browser to the authorization server (PKCE)
//! - [`exchange`]: exchanges a caller's own token (RFC 8693, ID-JAG)
//! - [`request`]: asks for tokens, and revokes them (RFC 7009)
//! - [`challenge`]: reads what a refusal of the server asks for
//! - [`provider`]: all of this for one server of the configuration
//! - [`fetch`]: requests to addresses that metadata name

mod assertion;
pub mod authorization;
pub mod challenge;
pub mod client;
pub mod discovery;
pub mod exchange;
pub mod fetch;
pub mod provider;
pub mod registration;
pub mod request;

use std::sync::Arc;

/// Why there is no token. Has nothing of any secret, and of the authorization server's own words an
/// error code alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OAuthError {
    reason: Arc<str>,
    /// The error code of the authorization server's refusal, if it is one.
    code: Option<Arc<str>>,
}

impl OAuthError {
    pub fn new(reason: impl Into<Arc<str>>) -> Self {
        Self { reason: reason.into(), code: None }
    }

    fn refused(reason: String, code: String) -> Self {
        Self { reason: reason.into(), code: Some(code.into()) }
    }

    /// Returns the code with which the authorization server has refused the request.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }
}
