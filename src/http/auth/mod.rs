//! Authentication as a parameter of the handlers: a handler cannot forget it.

pub(crate) mod origin;
pub(crate) mod store_quota;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Response, Uri, header};
use axum::response::IntoResponse;
use jiff::Timestamp;
use tokio::time::Instant;

use super::connections::ConnectionHandle;
use super::error::{HttpError, no_such_path};
use super::headers::X_API_KEY;
use super::pages::session::{OperatorSession, SessionEnd, TenantSession, forwarded};
use super::replicas::Forwarded;
use super::state::AppState;
use super::unsent::Account;
use crate::common::keys::ApiKey;
use crate::gateway::{Caller, CredentialLifetime};
use crate::store::Actor;
use crate::tenants::oauth::{CallerToken, TokenError, looks_like_jwt};
use crate::tenants::{Holder, Key, KeyError};

pub(super) const NEEDS_ADMINISTRATOR: &str =
    "this needs the key of an administrator (`trunkline key create --admin`)";

pub(super) struct Authenticated(pub(super) Caller);

pub(super) struct Administrator {
    pub(super) actor: Actor,
    pub(super) session: SessionEnd,
}

impl FromRequestParts<Arc<AppState>> for Authenticated {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, HttpError> {
        let caller = match parts.extensions.remove::<TenantSession>() {
            Some(TenantSession(caller)) => caller,
            None => caller(parts, app).await?,
        };
        Account::set_tenant(parts, &caller.tenant);
        if let Some(connection) = parts.extensions.get::<ConnectionHandle>() {
            connection.used_by(&caller.tenant.id)?;
        }
        Ok(Self(caller))
    }
}

async fn caller(parts: &Parts, app: &AppState) -> Result<Caller, HttpError> {
    // The replica that received the request has checked it.
    if parts.extensions.get::<Forwarded>().is_none() {
        app.origins.check(parts)?;
    }
    let credential = credential(&parts.headers)?;
    check_scheme(app, &parts.headers)?;
    match credential {
        None => anonymous(app),
        Some(text) if app.oauth.is_some() && looks_like_jwt(text) => by_token(app, text).await,
        Some(text) => by_key(app, text).await,
    }
}

/// Returns the caller of a request without key or token, if there may be such.
pub(super) fn anonymous(app: &AppState) -> Result<Caller, HttpError> {
    let access = app.directory.anonymous().map_err(|error| match error {
        KeyError::Invalid => no_credential(app),
        KeyError::Unavailable => HttpError::AuthUnavailable,
    })?;
    let credential = CredentialLifetime { gone: access.gone.clone(), until: None };
    Ok(Caller { credential, ..Caller::of(access.tenant.clone()) })
}

impl FromRequestParts<Arc<AppState>> for Administrator {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, HttpError> {
        let own = parts.extensions.remove::<OperatorSession>().map(Ok);
        let administrator = match own.or_else(|| forwarded(app, parts)) {
            Some(session) => {
                let OperatorSession { actor, end } = session?;
                Self { actor, session: end }
            }
            None => Self::by_key(parts, app).await?,
        };
        Account::set_operator(parts);
        if let Some(connection) = parts.extensions.get::<ConnectionHandle>() {
            connection.used_by_operator();
        }
        Ok(administrator)
    }
}

impl Administrator {
    async fn by_key(parts: &Parts, app: &AppState) -> Result<Self, HttpError> {
        // The replica that received the request has checked it.
        if parts.extensions.get::<Forwarded>().is_none() {
            app.ops_origins.check(parts)?;
        }
        let text = credential(&parts.headers)?.ok_or_else(|| no_credential(app))?;
        check_scheme(app, &parts.headers)?;
        let key = holder(app, text).await?;
        match key.holder {
            Holder::Admin => {
                let session = SessionEnd::Credential(lifetime(&key));
                Ok(Self { actor: Actor::key(key.id()), session })
            }
            Holder::Tenant(_) => Err(HttpError::Forbidden(NEEDS_ADMINISTRATOR)),
        }
    }
}

/// Returns how long a key is valid, as far as it is known.
pub(super) fn lifetime(key: &Key) -> CredentialLifetime {
    CredentialLifetime { gone: key.gone.clone(), until: key.expires().map(instant) }
}

/// Refuses a request without key or token.
fn no_credential(app: &AppState) -> HttpError {
    let detail = "a key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`";
    HttpError::Unauthenticated { detail, challenge: challenge(app, false) }
}

/// Refuses unknown, wrong, revoked and expired keys and tokens, all in the same words.
fn invalid_credential(app: &AppState) -> HttpError {
    let detail = "the key or token is not valid";
    HttpError::Unauthenticated { detail, challenge: challenge(app, true) }
}

fn challenge(app: &AppState, has_credential: bool) -> String {
    match &app.resource {
        Some(resource) => {
            resource.challenge(has_credential).to_str().unwrap_or_default().to_owned()
        }
        None if has_credential => "Bearer error=\"invalid_token\"".to_owned(),
        None => "Bearer".to_owned(),
    }
}

/// Returns the key or token of a request. Two are refused: a proxy might look at the other one.
/// A key that cannot be read is empty: no key looks like that.
pub(super) fn credential(headers: &HeaderMap) -> Result<Option<&str>, HttpError> {
    let tokens = headers.get_all(header::AUTHORIZATION).iter().map(|value| bearer(value).ok());
    let keys = headers.get_all(&X_API_KEY).iter().map(|value| value.to_str().ok());
    let mut credentials = tokens.chain(keys);
    let Some(first) = credentials.next() else { return Ok(None) };
    if credentials.next().is_some() {
        let message = "send one key or token, in `Authorization` or in `X-API-Key`";
        return Err(HttpError::invalid(message));
    }
    Ok(Some(first.unwrap_or_default()))
}

/// Returns the key of `Authorization`, or the mistake in the header.
fn bearer(value: &HeaderValue) -> Result<&str, &'static str> {
    let value = value.to_str().map_err(|_| "`Authorization` must be ASCII")?;
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => Ok(key.trim_matches(' ')),
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("basic") => {
            Err("`Authorization: Basic` is not supported: send `Authorization: Bearer KEY`")
        }
        Some(_) => Err("`Authorization` has an unknown scheme: send `Authorization: Bearer KEY`"),
        None if value.eq_ignore_ascii_case("bearer") => {
            Err("`Authorization: Bearer` has no key behind it: send `Authorization: Bearer KEY`")
        }
        None => Err("`Authorization` lacks the word `Bearer`: send `Authorization: Bearer KEY`"),
    }
}

/// Refuses an `Authorization` that cannot hold a key, in words that say how to send one.
fn check_scheme(app: &AppState, headers: &HeaderMap) -> Result<(), HttpError> {
    match headers.get(header::AUTHORIZATION).map(bearer) {
        Some(Err(detail)) => {
            Err(HttpError::Unauthenticated { detail, challenge: challenge(app, true) })
        }
        Some(Ok(_)) | None => Ok(()),
    }
}

async fn by_key(app: &AppState, text: &str) -> Result<Caller, HttpError> {
    let key = holder(app, text).await?;
    caller_of_key(&key)
}

/// Returns the caller that a valid key stands for.
pub(super) fn caller_of_key(key: &Key) -> Result<Caller, HttpError> {
    match &key.holder {
        Holder::Tenant(tenant) => {
            let (credential, key) = (lifetime(key), Some(key.id()));
            Ok(Caller { credential, key, ..Caller::of(tenant.clone()) })
        }
        Holder::Admin => Err(HttpError::Forbidden(
            "an administrator's key cannot call tools; create a tenant's key (`trunkline key \
             create TENANT`)",
        )),
    }
}

/// Returns the valid key of this text.
pub(super) async fn holder(app: &AppState, text: &str) -> Result<Arc<Key>, HttpError> {
    let key = ApiKey::parse(text).ok_or_else(|| invalid_credential(app))?;
    app.directory.authenticate(&key).await.map_err(|error| match error {
        KeyError::Invalid => invalid_credential(app),
        KeyError::Unavailable => HttpError::AuthUnavailable,
    })
}

async fn by_token(app: &AppState, token: &str) -> Result<Caller, HttpError> {
    let verifier = app.oauth.as_ref().expect("checked by the caller");
    let verified = verifier.verify(token).await.map_err(|error| {
        tracing::debug!(%error, "refused a token");
        match error {
            TokenError::KeysUnavailable => HttpError::AuthUnavailable,
            _ => invalid_credential(app),
        }
    })?;
    if app.directory.is_stale() {
        return Err(HttpError::AuthUnavailable);
    }
    let tenant = app
        .directory
        .tenant(&verified.tenant)
        .ok_or(HttpError::Forbidden("the token is valid, but its tenant is not known here"))?;
    let caller = Caller::of(tenant);
    let until = instant(verified.expires);
    let credential = CredentialLifetime { until: Some(until), ..caller.credential };
    let wants_token = app.gateway.registry().wants_caller_tokens();
    let token = wants_token.then(|| Arc::new(CallerToken::new(token, until)));
    Ok(Caller { credential, token, ..caller })
}

/// Tells clients without a token where to get one: the metadata of the gateway as a protected
/// resource (RFC 9728), served without authentication. All addresses share it, since a token is
/// valid at all of them.
pub(super) async fn resource_metadata(
    State(app): State<Arc<AppState>>,
    uri: Uri,
) -> Response<Body> {
    match &app.resource {
        Some(resource) => {
            let content_type = [(header::CONTENT_TYPE, "application/json")];
            (content_type, resource.metadata().to_owned()).into_response()
        }
        None => no_such_path(uri).await,
    }
}

/// Converts milliseconds since 1970 to the clock of deadlines.
fn instant(ms: i64) -> Instant {
    let left = ms.saturating_sub(Timestamp::now().as_millisecond());
    Instant::now() + Duration::from_millis(left.max(0).unsigned_abs())
}
