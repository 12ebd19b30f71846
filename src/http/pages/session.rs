//! Sessions of the live pages: a key, exchanged for a sealed cookie.
//!
//! A cookie names the key that was shown and when; nobody else can make or read one. Each request
//! looks the key up again, so a session ends with its key, and after [`VALID_FOR`] in any case.
//! Operators' and tenants' cookies have names and paths of their own and are sealed apart.

use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use tokio::time::sleep;

use super::sign_in::RETRY_LINK_CHECK;
use crate::common::keys::KeyId;
use crate::common::seal::{Purpose, Sealer};
use crate::gateway::{Caller, CredentialLifetime};
use crate::http::auth::{NEEDS_ADMINISTRATOR, anonymous, caller_of_key, lifetime};
use crate::http::error::HttpError;
use crate::http::replicas::Forwarded;
use crate::http::state::AppState;
use crate::store::Actor;
use crate::tenants::{Directory, Holder, KeyError};

/// Carries a session from one replica to another.
static SESSION: HeaderName = HeaderName::from_static("trunkline-session");

/// The longest session.
pub(super) const VALID_FOR: Duration = Duration::from_secs(12 * 60 * 60);

/// A live page, and with it the kind of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Page {
    Operators,
    Tenants,
}

/// The proof that a session began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    Key(KeyId),
    /// The link that `serve` prints where there is no administrator's key.
    Link,
    /// Nothing: callers without a key have a tenant here.
    Anonymous,
}

/// An operator's session, checked. Stands for an administrator's key in a request.
#[derive(Clone)]
pub(crate) struct OperatorSession {
    pub(crate) actor: Actor,
    pub(crate) end: SessionEnd,
}

/// A tenant's session, checked. Stands for a tenant's key in a request.
#[derive(Clone)]
pub(crate) struct TenantSession(pub(crate) Caller);

/// The end of whatever has authenticated a request. A stream must end with it.
#[derive(Clone)]
pub(crate) enum SessionEnd {
    Credential(CredentialLifetime),
    /// A link is good for nothing once there is an administrator's key.
    Link(Arc<Directory>),
}

impl Page {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Operators => "/dashboard",
            Self::Tenants => "/me",
        }
    }

    fn cookie(self) -> &'static str {
        match self {
            Self::Operators => "trunkline-operator",
            Self::Tenants => "trunkline-tenant",
        }
    }
}

impl SessionEnd {
    pub(crate) async fn ended(&self) {
        match self {
            Self::Credential(credential) => credential.ended().await,
            Self::Link(directory) => {
                while !directory.has_admin_key() {
                    sleep(RETRY_LINK_CHECK).await;
                }
            }
        }
    }
}

impl Proof {
    fn text(self) -> String {
        match self {
            Self::Key(id) => format!("key {}", id.as_str()),
            Self::Link => "link".to_owned(),
            Self::Anonymous => "anonymous".to_owned(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            Some(("key", id)) => KeyId::parse(id).map(Self::Key),
            None if text == "link" => Some(Self::Link),
            None if text == "anonymous" => Some(Self::Anonymous),
            _ => None,
        }
    }

    /// Returns the operator's session, if its proof still holds.
    pub(super) fn operator(self, app: &AppState) -> Result<OperatorSession, HttpError> {
        let end = match self {
            Self::Key(id) => {
                let key = app.directory.valid_key(id).map_err(refused)?;
                match key.holder {
                    Holder::Admin => SessionEnd::Credential(lifetime(&key)),
                    Holder::Tenant(_) => return Err(HttpError::Forbidden(NEEDS_ADMINISTRATOR)),
                }
            }
            Self::Link if !app.directory.has_admin_key() => SessionEnd::Link(app.directory.clone()),
            Self::Link | Self::Anonymous => return Err(signed_out()),
        };
        let actor = match self {
            Self::Key(id) => Actor::key(id),
            Self::Link | Self::Anonymous => Actor::link(),
        };
        Ok(OperatorSession { actor, end })
    }

    /// Returns the tenant's session, if its proof still holds.
    pub(super) fn tenant(self, app: &AppState) -> Result<TenantSession, HttpError> {
        let caller = match self {
            Self::Key(id) => {
                let key = app.directory.valid_key(id).map_err(refused)?;
                caller_of_key(&key)?
            }
            Self::Anonymous => anonymous(app)?,
            Self::Link => return Err(signed_out()),
        };
        Ok(TenantSession(caller))
    }
}

fn refused(error: KeyError) -> HttpError {
    match error {
        KeyError::Invalid => signed_out(),
        KeyError::Unavailable => HttpError::AuthUnavailable,
    }
}

/// Refuses a request without a session that is valid.
pub(super) fn signed_out() -> HttpError {
    // A browser must not ask for a name and a password.
    let challenge = "Trunkline-Session".to_owned();
    HttpError::Unauthenticated { detail: "sign in first: this session has ended", challenge }
}

/// Returns the session that another replica has checked and passes on.
pub(crate) fn forwarded(
    app: &AppState,
    parts: &Parts,
) -> Option<Result<OperatorSession, HttpError>> {
    parts.extensions.get::<Forwarded>()?;
    let sealed = parts.headers.get(&SESSION)?.to_str().ok()?;
    let proof = open(&app.sealer, Page::Operators, sealed, Timestamp::now().as_second());
    Some(proof.ok_or_else(signed_out).and_then(|proof| proof.operator(app)))
}

/// Returns the header that passes a session on to other replicas, in place of its cookie.
pub(super) fn header_of(cookies: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    Some((SESSION.clone(), sealed(Page::Operators, cookies)?.try_into().ok()?))
}

/// Returns the proof of the request's session, if there is one.
pub(super) fn read(app: &AppState, page: Page, headers: &HeaderMap) -> Option<Proof> {
    open(&app.sealer, page, sealed(page, headers)?, Timestamp::now().as_second())
}

/// Returns the value of the page's cookie.
fn sealed(page: Page, headers: &HeaderMap) -> Option<&str> {
    cookie_of(headers, page.cookie())
}

/// Returns the value of a cookie.
pub(super) fn cookie_of<'h>(headers: &'h HeaderMap, cookie: &str) -> Option<&'h str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|it| it.split_once('='));
    pairs.find(|(name, _)| name.trim() == cookie).map(|(_, sealed)| sealed.trim())
}

/// Writes the cookie of a new session. `is_secure` keeps browsers from sending it without TLS.
pub(super) fn write(app: &AppState, page: Page, proof: Proof, is_secure: bool) -> HeaderValue {
    let sealed = seal(&app.sealer, page, proof, Timestamp::now().as_second());
    cookie(page, &sealed, VALID_FOR, is_secure)
}

/// Writes a cookie that ends the browser's session.
pub(super) fn end(page: Page, is_secure: bool) -> HeaderValue {
    cookie(page, "", Duration::ZERO, is_secure)
}

fn cookie(page: Page, value: &str, age: Duration, is_secure: bool) -> HeaderValue {
    let (name, path, age) = (page.cookie(), page.path(), age.as_secs());
    let secure = if is_secure { "; Secure" } else { "" };
    let cookie =
        format!("{name}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    cookie.try_into().expect("sealed texts are letters and digits")
}

fn seal(sealer: &Sealer, page: Page, proof: Proof, now: i64) -> String {
    let plain = format!("{now} {}", proof.text());
    sealer.seal(Purpose::PageSession, page.cookie().as_bytes(), plain.as_bytes())
}

fn open(sealer: &Sealer, page: Page, sealed: &str, now: i64) -> Option<Proof> {
    let plain = sealer.open(Purpose::PageSession, page.cookie().as_bytes(), sealed)?;
    let (began, proof) = std::str::from_utf8(&plain).ok()?.split_once(' ')?;
    let age = now.checked_sub(began.parse().ok()?)?;
    (age < VALID_FOR.as_secs() as i64).then(|| Proof::parse(proof)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_other_sites_have_no_use_of_a_cookie() {
        let written = |page, is_secure| {
            let cookie = cookie(page, "sealed", Duration::from_secs(60), is_secure);
            cookie.to_str().unwrap().to_owned()
        };
        assert_eq!(
            written(Page::Operators, true),
            "trunkline-operator=sealed; Path=/dashboard; Max-Age=60; HttpOnly; SameSite=Strict; \
             Secure"
        );
        assert_eq!(
            written(Page::Tenants, false),
            "trunkline-tenant=sealed; Path=/me; Max-Age=60; HttpOnly; SameSite=Strict"
        );
    }

    #[test]
    fn a_cookie_is_of_one_page_and_of_one_day() {
        let sealer = Sealer::random();
        let proof = Proof::Key(KeyId::parse("0123456789AB").unwrap());
        for proof in [proof, Proof::Link, Proof::Anonymous] {
            let sealed = seal(&sealer, Page::Operators, proof, 1000);
            let open = |page, at| open(&sealer, page, &sealed, at);
            let end = 1000 + VALID_FOR.as_secs() as i64;
            assert_eq!(open(Page::Operators, 1000), Some(proof));
            assert_eq!(open(Page::Operators, end - 1), Some(proof));
            assert_eq!(open(Page::Operators, end), None);
            assert_eq!(open(Page::Tenants, 1000), None);
        }
        assert_eq!(open(&Sealer::random(), Page::Tenants, "x", 0), None);
    }
}
