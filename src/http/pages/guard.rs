//! Lets requests of the live pages in, and nobody else's.
//!
//! `SameSite` does not separate ports: a page of another program on this machine can have the
//! cookie sent. So every request needs a header that no page of another origin may set, and every
//! change needs the exact `Origin` as well. No path beside the pages' own takes a cookie.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::session::{self, Page};
use super::{OPERATORS_VERBS, TENANTS_VERBS};
use crate::config::WebOrigin;
use crate::http::auth::origin::host;
use crate::http::error::HttpError;
use crate::http::headers::X_API_KEY;
use crate::http::state::AppState;

/// Set by the pages' own script. A browser asks the gateway before it sends such a header from
/// another origin, and is refused.
static PAGE: HeaderName = HeaderName::from_static("trunkline-page");

/// Lets a request of the operators' page act for its session.
pub(super) async fn operators(
    State(app): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let session = check_page_request(&app, Page::Operators, &parts)
        .and_then(|()| check_verb(OPERATORS_VERBS, &parts))
        .and_then(|()| proof(&app, Page::Operators, &parts)?.operator(&app));
    match session {
        Ok(session) => {
            let header = session::header_of(&parts.headers);
            forget_credentials(&mut parts);
            if let Some((name, value)) = header {
                parts.headers.insert(name, value);
            }
            parts.extensions.insert(session);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.into_response(),
    }
}

/// Lets a request of the tenants' page act for its session.
pub(super) async fn tenants(
    State(app): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let session = check_page_request(&app, Page::Tenants, &parts)
        .and_then(|()| check_verb(TENANTS_VERBS, &parts))
        .and_then(|()| proof(&app, Page::Tenants, &parts)?.tenant(&app));
    match session {
        Ok(session) => {
            forget_credentials(&mut parts);
            parts.extensions.insert(session);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(error) => error.into_response(),
    }
}

/// Refuses changes that the page does not make: a session can do less than its key.
fn check_verb(verbs: &[(Method, &str)], parts: &Parts) -> Result<(), HttpError> {
    let path = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    let is_verb = |(method, of): &(Method, &str)| *method == parts.method && Some(*of) == path;
    if is_read(parts) || verbs.iter().any(is_verb) {
        return Ok(());
    }
    Err(HttpError::Forbidden("the live page may not do this: use the API with the key itself"))
}

fn is_read(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
}

fn proof(app: &AppState, page: Page, parts: &Parts) -> Result<session::Proof, HttpError> {
    session::read(app, page, &parts.headers).ok_or_else(session::signed_out)
}

/// Removes credentials that must not be looked at beside the session, nor be passed on.
fn forget_credentials(parts: &mut Parts) {
    for name in [header::COOKIE, header::AUTHORIZATION, X_API_KEY.clone()] {
        parts.headers.remove(name);
    }
}

/// Refuses a request that the page's own script has not sent.
pub(super) fn check_page_request(
    app: &AppState,
    page: Page,
    parts: &Parts,
) -> Result<(), HttpError> {
    match page {
        Page::Operators => app.ops_origins.check(parts)?,
        Page::Tenants => app.origins.check(parts)?,
    }
    if !parts.headers.contains_key(&PAGE) {
        return Err(HttpError::Forbidden("only the live page's own script may ask for this"));
    }
    let has_origin = parts.headers.contains_key(header::ORIGIN);
    if (!is_read(parts) || has_origin) && !is_of_own_origin(parts) {
        return Err(HttpError::Forbidden(
            "`Origin` must be that of the live page itself; a proxy must pass `Host` on as it is",
        ));
    }
    Ok(())
}

/// Returns whether a request is from a page of the very host and port that it is sent to.
fn is_of_own_origin(parts: &Parts) -> bool {
    let mut origins = parts.headers.get_all(header::ORIGIN).iter();
    let (Some(origin), None, Some(host)) = (origins.next(), origins.next(), host(parts)) else {
        return false;
    };
    let origin = origin.to_str().ok().and_then(WebOrigin::parse);
    origin.is_some_and(|origin| origin.is_of(&host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(host: &str, origins: &[&str]) -> bool {
        let request = axum::http::Request::builder().uri("/").header("host", host);
        let add = |request: axum::http::request::Builder, origin: &&str| {
            request.header("origin", *origin)
        };
        is_of_own_origin(&origins.iter().fold(request, add).body(()).unwrap().into_parts().0)
    }

    #[test]
    fn only_the_exact_origin_is_the_page_s_own() {
        for (host, origin) in [
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("gateway.example", "https://gateway.example"),
            ("gateway.example:443", "https://gateway.example"),
            ("[::1]:8080", "http://[::1]:8080"),
        ] {
            assert!(own(host, &[origin]), "{origin} at {host}");
        }
        for (host, origin) in [
            ("127.0.0.1:8080", "http://127.0.0.1:3000"),
            ("127.0.0.1:8080", "http://localhost:8080"),
            ("127.0.0.1:8080", "http://127.0.0.1"),
            ("gateway.example", "https://evil.example"),
            ("gateway.example", "http://gateway.example:8080"),
            ("gateway.example", "null"),
        ] {
            assert!(!own(host, &[origin]), "{origin} at {host}");
        }
        assert!(!own("a.example", &[]));
        assert!(!own("a.example", &["http://a.example", "http://a.example"]));
    }
}
