//! Who calls, as a parameter of the handlers: none can forget to ask.

pub(crate) mod cors;
pub(crate) mod origin;
pub(crate) mod store_quota;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use jiff::Timestamp;
use tokio::time::Instant;

use super::Front;
use super::replicas::Relayed;
use crate::common::keys::{ApiKey, KeyId};
use crate::gateway::{CallError, Caller, Rights};
use crate::tenants::oauth::{TokenError, looks_like_jwt};
use crate::tenants::{Holder, Key, KeyError};

static X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A caller that may call.
pub(super) struct Authenticated(pub(super) Caller);

/// An administrator, by the key.
pub(super) struct Administrator(pub(super) KeyId);

impl FromRequestParts<Arc<Front>> for Authenticated {
    type Rejection = CallError;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, CallError> {
        // Where it came in first, that was done.
        if parts.extensions.get::<Relayed>().is_none() {
            front.web.check(parts)?;
        }
        let caller = match credential(&parts.headers)? {
            None => anonymous(front)?,
            Some(text) if front.oauth.is_some() && looks_like_jwt(text) => {
                by_token(front, text).await?
            }
            Some(text) => by_key(front, text).await?,
        };
        Ok(Self(caller))
    }
}

impl FromRequestParts<Arc<Front>> for Administrator {
    type Rejection = CallError;

    async fn from_request_parts(parts: &mut Parts, front: &Arc<Front>) -> Result<Self, CallError> {
        front.web.check(parts)?;
        let text = credential(&parts.headers)?.ok_or_else(|| nobody(front))?;
        let key = holder(front, text).await?;
        match key.holder {
            Holder::Admin => Ok(Self(key.id())),
            Holder::Tenant(_) => Err(CallError::Forbidden(
                "this needs the key of an administrator (`trunkline key create --admin`)",
            )),
        }
    }
}

/// The refusal of those who do not say who they are.
fn nobody(front: &Front) -> CallError {
    let detail = "a key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`";
    CallError::Unauthenticated { detail, challenge: challenge(front, false) }
}

/// The refusal of unknown, wrong, revoked and expired keys and tokens, the same for all.
fn unknown(front: &Front) -> CallError {
    let detail = "the key or token is not valid";
    CallError::Unauthenticated { detail, challenge: challenge(front, true) }
}

fn challenge(front: &Front, is_shown: bool) -> String {
    match &front.resource {
        Some(resource) => resource.challenge(is_shown).to_str().unwrap_or_default().to_owned(),
        None if is_shown => "Bearer error=\"invalid_token\"".to_owned(),
        None => "Bearer".to_owned(),
    }
}

/// What a caller shows. Two different things would mean something else to whoever looks at the other.
pub(super) fn credential(headers: &HeaderMap) -> Result<Option<&str>, CallError> {
    let mut shown = headers.get_all(header::AUTHORIZATION).iter().map(|value| {
        let value = value.to_str().ok()?;
        let (scheme, text) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| text.trim_matches(' '))
    });
    let keys = headers.get_all(&X_API_KEY).iter().map(|value| value.to_str().ok());
    let mut shown = shown.by_ref().chain(keys);
    let Some(first) = shown.next() else { return Ok(None) };
    if shown.next().is_some() {
        return Err(CallError::InvalidRequest(
            "send one key or token, in `Authorization` or in `X-API-Key`".to_owned(),
        ));
    }
    // What is no `Bearer`, or no text, is no key that anybody could have.
    Ok(Some(first.unwrap_or_default()))
}

fn anonymous(front: &Front) -> Result<Caller, CallError> {
    let tenant = front.directory.anonymous().ok_or_else(|| nobody(front))?;
    Ok(Caller::of(tenant))
}

async fn by_key(front: &Front, text: &str) -> Result<Caller, CallError> {
    let key = holder(front, text).await?;
    match &key.holder {
        Holder::Tenant(tenant) => {
            let rights = Rights { gone: key.gone.clone(), until: key.expires().map(instant) };
            Ok(Caller { rights, ..Caller::of(tenant.clone()) })
        }
        Holder::Admin => Err(CallError::Forbidden(
            "the key of an administrator calls no tools; create one for a tenant (`trunkline key create TENANT`)",
        )),
    }
}

async fn holder(front: &Front, text: &str) -> Result<Arc<Key>, CallError> {
    let key = ApiKey::parse(text).ok_or_else(|| unknown(front))?;
    front.directory.authenticate(&key).await.map_err(|error| match error {
        KeyError::Invalid => unknown(front),
        KeyError::Unavailable => CallError::AuthUnavailable,
    })
}

async fn by_token(front: &Front, token: &str) -> Result<Caller, CallError> {
    let verifier = front.oauth.as_ref().expect("asked before");
    let verified = verifier.verify(token).await.map_err(|error| {
        tracing::debug!(%error, "a token was refused");
        match error {
            TokenError::KeysUnavailable => CallError::AuthUnavailable,
            _ => unknown(front),
        }
    })?;
    if front.directory.is_stale() {
        return Err(CallError::AuthUnavailable);
    }
    let tenant = front.directory.tenant(&verified.tenant).ok_or(CallError::Forbidden(
        "the token is valid, and the tenant that it names is not known here",
    ))?;
    let caller = Caller::of(tenant);
    let rights = Rights { until: Some(instant(verified.expires)), ..caller.rights };
    Ok(Caller { rights, ..caller })
}

/// A time in milliseconds since 1970, by the clock that deadlines have.
fn instant(ms: i64) -> Instant {
    let left = ms.saturating_sub(Timestamp::now().as_millisecond());
    Instant::now() + Duration::from_millis(left.max(0).unsigned_abs())
}
