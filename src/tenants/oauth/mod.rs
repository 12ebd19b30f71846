//! Tokens of an identity provider: this gateway as an OAuth 2.1 resource server. Tokens are JWTs and are checked here,
//! with the provider's public keys; the provider is not asked about them.
//!
//! - `token`: what a token says about itself before it is believed
//! - `keys`: the provider's keys, each with the algorithms it is good for
//! - `fetch`: one request for these keys
//! - `jwks`: the keys that are known, and when they are asked for again
//! - `resource`: what clients are told about how to get a token

mod fetch;
mod jwks;
mod keys;
mod resource;
mod token;

use std::sync::Arc;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::common::ids::TenantId;
use crate::config::OAuth;

use jwks::Jwks;
use keys::Requirements;
use token::TokenHeader;

pub use fetch::SetupError;
pub use jwks::RETRY_AFTER;
pub use resource::Resource;
pub use token::looks_like_jwt;

/// Finds out whose a token is.
pub struct Verifier {
    jwks: Arc<Jwks>,
    issuer: String,
    /// Where in the claims the tenant stands, as a JSON pointer.
    tenant_claim: String,
}

/// What a token that is right says.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// Whom it is for.
    pub tenant: TenantId,
    /// Until when, in milliseconds since 1970.
    pub expires: i64,
}

/// Why a token is not accepted. For logs and metrics: callers are told no more than `invalid_token`, except
/// for [`TokenError::KeysUnavailable`], which says nothing about their token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no JWT that could be an access token.
    #[error("the token is no signed JWT, too long, of another kind, or has a `crit` header")]
    Malformed,
    /// Its algorithm is not an accepted one, or not one of the key it names.
    #[error("the token's algorithm is not accepted, or not one of its key's")]
    Algorithm,
    /// The provider has no such key, or the token does not say which of several it is.
    #[error("the token's key is not one of the identity provider's")]
    UnknownKey,
    /// It was not signed with its key, or was changed afterwards.
    #[error("the token's signature is wrong")]
    Signature,
    /// `exp` is in the past, or missing.
    #[error("the token has expired, or does not say when it will")]
    Expired,
    /// `nbf` is in the future.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// `iss` is not the issuer.
    #[error("the token is of another issuer")]
    Issuer,
    /// `aud` does not have the audience.
    #[error("the token is for another audience")]
    Audience,
    /// The tenant's claim is missing, or no tenant id.
    #[error("the token names no tenant, or not by a valid id")]
    Tenant,
    /// The provider's keys have never been loaded: nobody can tell yet.
    #[error("the identity provider's keys are not available")]
    KeysUnavailable,
}

impl Verifier {
    /// A verifier that knows no keys yet: [`Verifier::run`] gets them, or else the first token does.
    pub fn new(config: &OAuth) -> Result<Arc<Self>, SetupError> {
        let requirements = Requirements::new(&config.issuer, &config.audience);
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

    /// The tenant that a token is for, if all of it is right. Waits only for a token whose key is not known, while the
    /// keys are being fetched, and no longer than that may take.
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

    fn tenant(&self, claims: &Value) -> Result<TenantId, TokenError> {
        // A list of issuers would have passed until here.
        if claims.get("iss").and_then(Value::as_str) != Some(&self.issuer) {
            return Err(TokenError::Issuer);
        }
        let tenant = claims.pointer(&self.tenant_claim).and_then(Value::as_str);
        TenantId::parse(tenant.ok_or(TokenError::Tenant)?).map_err(|_| TokenError::Tenant)
    }
}
