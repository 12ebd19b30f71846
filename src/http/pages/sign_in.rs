//! Signing in to a live page, and out: `POST`, `GET` and `DELETE` of the page's `session`.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::guard;
use super::session::{self, Page, Proof};
use crate::http::admin::ok;
use crate::http::auth::holder;
use crate::http::body;
use crate::http::connections::ConnectionHandle;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;

/// How often streams of a link's session look whether there is an administrator's key.
pub(super) const RETRY_LINK_CHECK: Duration = Duration::from_secs(1);
/// Attempts to sign in to one page from one address: a minute, and at once. A flood at the page of
/// tenants, behind the same load balancer, keeps no operator out of the other one.
const PER_MINUTE: NonZeroU32 = NonZeroU32::new(20).expect("more than 0");
const AT_ONCE: NonZeroU32 = NonZeroU32::new(10).expect("more than 0");
/// Addresses that are remembered. Idle ones are forgotten beyond this.
const ADDRESSES_MAX: usize = 1024;
const BODY_MAX: usize = 1024;

/// Bounds how often somebody tries to sign in, and keeps the link that `serve` prints.
pub(crate) struct SignIn {
    rate: DefaultKeyedRateLimiter<(Page, IpAddr)>,
    /// Good for one session.
    link: Mutex<Option<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Credential {
    Key(String),
    Link(String),
    Anonymous(bool),
}

impl Default for SignIn {
    fn default() -> Self {
        let quota = Quota::per_minute(PER_MINUTE).allow_burst(AT_ONCE);
        Self { rate: RateLimiter::keyed(quota), link: Mutex::default() }
    }
}

impl SignIn {
    /// Makes the token of a link that opens one session, until there is an administrator's key.
    pub(crate) fn new_link(&self) -> String {
        let token = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 24]>());
        *self.link.lock() = Some(token.clone());
        token
    }

    /// Takes the link, if this is its token.
    fn take_link(&self, token: &str) -> bool {
        let is_it = |link: &mut String| bool::from(link.as_bytes().ct_eq(token.as_bytes()));
        self.link.lock().take_if(is_it).is_some()
    }

    fn admits(&self, page: Page, address: IpAddr) -> bool {
        if self.rate.len() > ADDRESSES_MAX {
            self.rate.retain_recent();
        }
        self.rate.check_key(&(page, address)).is_ok()
    }
}

/// Exchanges a key for a cookie.
pub(super) async fn sign_in(
    State(app): State<Arc<AppState>>,
    page: Page,
    request: Request,
) -> HttpResult {
    let (parts, body) = request.into_parts();
    guard::check_page_request(&app, page, &parts)?;
    let address = parts.extensions.get::<ConnectionHandle>().map(ConnectionHandle::address);
    if address.is_some_and(|address| !app.sign_in.admits(page, address)) {
        return Ok(too_often());
    }
    let body = body::read(body, BODY_MAX, Instant::now() + body::TIMEOUT).await?;
    let credential: Credential = serde_json::from_slice(&body)
        .map_err(|_| HttpError::invalid("send `{\"key\": \"tl_…\"}`"))?;
    let proof = match credential {
        Credential::Key(key) => Proof::Key(holder(&app, key.trim()).await?.id()),
        Credential::Link(token) if app.sign_in.take_link(&token) => Proof::Link,
        Credential::Link(_) => {
            return Err(HttpError::Forbidden(
                "this link has been used, or is of an earlier start; make a key with \
                 `trunkline key create --admin`",
            ));
        }
        Credential::Anonymous(true) => Proof::Anonymous,
        Credential::Anonymous(false) => return Err(session::signed_out()),
    };
    let who = describe(&app, page, proof)?;
    let cookie = session::write(&app, page, proof, is_secure(&parts));
    let mut response = ok(&who)?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    Ok(response)
}

/// Says who is signed in; and to whom is not, how to.
pub(super) async fn show(State(app): State<Arc<AppState>>, page: Page, parts: Parts) -> HttpResult {
    guard::check_page_request(&app, page, &parts)?;
    let proof = session::read(&app, page, &parts.headers).ok_or_else(session::signed_out);
    match proof.and_then(|proof| describe(&app, page, proof)) {
        Ok(who) => ok(&who),
        Err(HttpError::AuthUnavailable) => Err(HttpError::AuthUnavailable),
        Err(_) => {
            let has_anonymous = page == Page::Tenants && app.directory.anonymous().is_ok();
            ok(&json!({"signed_in": false, "anonymous": has_anonymous}))
        }
    }
}

pub(super) async fn sign_out(
    State(app): State<Arc<AppState>>,
    page: Page,
    parts: Parts,
) -> HttpResult {
    guard::check_page_request(&app, page, &parts)?;
    let cookie = [(header::SET_COOKIE, session::end(page, is_secure(&parts)))];
    Ok((StatusCode::NO_CONTENT, cookie).into_response())
}

fn describe(app: &AppState, page: Page, proof: Proof) -> Result<serde_json::Value, HttpError> {
    let key = match proof {
        Proof::Key(id) => Some(id.as_str().to_owned()),
        Proof::Link | Proof::Anonymous => None,
    };
    let tenant = match page {
        Page::Operators => proof.operator(app).map(|_| None)?,
        Page::Tenants => Some(proof.tenant(app)?.0.tenant.id.name().to_string()),
    };
    let version = env!("CARGO_PKG_VERSION");
    Ok(json!({"signed_in": true, "key": key, "tenant": tenant, "version": version}))
}

/// Returns whether the cookie must be sent over TLS alone: everywhere but on this machine.
pub(super) fn is_secure(parts: &Parts) -> bool {
    !crate::http::auth::origin::host(parts).is_some_and(|host| host.is_loopback())
}

fn too_often() -> Response<Body> {
    let text = "too many attempts to sign in from this address: try again in a minute\n";
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "60")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_this_machine_the_cookie_is_sent_over_tls_alone() {
        let is_secure = |host: Option<&str>| {
            let request = Request::builder().uri("/me/session");
            let request = host.into_iter().fold(request, |it, host| it.header("host", host));
            is_secure(&request.body(Body::empty()).unwrap().into_parts().0)
        };
        for host in ["gateway.example", "10.0.0.7:8080", "localhost.example"] {
            assert!(is_secure(Some(host)), "{host}");
        }
        assert!(is_secure(None), "nobody knows where it is");
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080"] {
            assert!(!is_secure(Some(host)), "{host}: there is no TLS");
        }
    }

    #[test]
    fn a_link_opens_one_session() {
        let sign_in = SignIn::default();
        assert!(!sign_in.take_link(""));
        let token = sign_in.new_link();
        assert!(!sign_in.take_link("other") && !sign_in.take_link(&token[1..]));
        assert!(sign_in.take_link(&token) && !sign_in.take_link(&token));
    }

    #[test]
    fn an_address_has_a_rate_and_a_flood_of_addresses_is_forgotten() {
        let sign_in = SignIn::default();
        let address = |last: u32| IpAddr::from(last.to_be_bytes());
        let admitted = (0..100).filter(|_| sign_in.admits(Page::Tenants, address(1))).count();
        assert!((10..=12).contains(&admitted), "{admitted}");
        assert!(sign_in.admits(Page::Tenants, address(2)));
        assert!(sign_in.admits(Page::Operators, address(1)), "the other page is not kept");
    }
}
