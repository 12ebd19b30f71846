//! Tokens of an identity provider: the gateway as an OAuth 2.1 resource server. Tokens are JWTs,
//! verified here with the provider's public keys.
//!
//! - `token`: a token's header, before it is verified
//! - `keys`: the provider's keys with their algorithms
//! - `jwks`: the known keys, and their fetches
//! - `resource`: tells clients how to get a token
//! - `caller`: a valid token, for servers that are called in the caller's name

mod caller;
mod jwks;
mod keys;
mod resource;
mod token;

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::common::ids::TenantName;
use crate::config::OAuth;

use jwks::Jwks;
use token::TokenHeader;

pub use caller::CallerToken;
pub use jwks::{FetchSetupError, RETRY_AFTER};
pub use resource::Resource;
pub use token::looks_like_jwt;

/// Verifies tokens.
pub struct Verifier {
    jwks: Arc<Jwks>,
    issuer: String,
    /// A JSON pointer to the tenant's id in the claims.
    tenant_claim: String,
}

/// The claims of a valid token.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    pub tenant: TenantName,
    /// In milliseconds since 1970.
    pub expires: i64,
}

/// For logs and metrics. Callers are told `invalid_token` only, except for
/// [`TokenError::KeysUnavailable`], which is not about their token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token is no signed JWT, too long, of another kind, or has a `crit` header")]
    Malformed,
    #[error("the token's algorithm is not accepted, or not one of its key's")]
    Algorithm,
    #[error("the token's key is not one of the identity provider's")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has expired, or has no expiry")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("the token is of another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token has no valid tenant id")]
    Tenant,
    /// The keys have never been fetched.
    #[error("the identity provider's keys are not available")]
    KeysUnavailable,
}

impl Verifier {
    /// Starts without keys: [`Verifier::run`] or the first token fetches them.
    pub fn new(config: &OAuth) -> Result<Arc<Self>, FetchSetupError> {
        let client = config.client_id.as_deref();
        let audiences: Vec<_> = [config.audience.as_str()].into_iter().chain(client).collect();
        let requirements = keys::requirements(&config.issuer, &audiences);
        Ok(Arc::new(Self {
            jwks: Arc::new(Jwks::new(&config.jwks_url, requirements)?),
            issuer: config.issuer.clone(),
            tenant_claim: config.tenant_claim.clone(),
        }))
    }

    /// Keeps the keys up to date until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.jwks.keep_up_to_date()).await;
    }

    /// Returns the tenant of a valid token. Waits only if the token's key is unknown, while keys
    /// are fetched.
    pub async fn verify(&self, token: &str) -> Result<Verified, TokenError> {
        let header = TokenHeader::parse(token)?;
        let claims = match self.jwks.check(token, &header) {
            Err(TokenError::UnknownKey | TokenError::KeysUnavailable) => {
                self.jwks.fetched().await;
                self.jwks.check(token, &header)?
            }
            checked => checked?,
        };
        let tenant = self.tenant(&claims)?;
        let expires = claims.get("exp").and_then(Value::as_f64).ok_or(TokenError::Expired)?;
        Ok(Verified { tenant, expires: (expires * 1000.0) as i64 })
    }

    fn tenant(&self, claims: &Value) -> Result<TenantName, TokenError> {
        // A list of issuers passes the checks before.
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(TokenError::Issuer);
        }
        let tenant = claims.pointer(&self.tenant_claim).and_then(Value::as_str);
        TenantName::parse(tenant.ok_or(TokenError::Tenant)?).map_err(|_| TokenError::Tenant)
    }
}
