//! Rejects browser origins and host names that are not allowed, and adds the headers that allowed
//! origins need (CORS).
//!
//! A browser lets any page send requests to any address, this machine's own included, and names the
//! page's site in `Origin`. A page can also have its own name lead to this machine (DNS rebinding);
//! then `Host` is that name.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::Response;
use hyper::Request;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::{Config, Host, WebOrigin};
use crate::http::connections::unread_body::RequestBody;
use crate::http::error::HttpError;
use crate::http::headers::{
    ATTEMPTS, CALL_ID, OUTCOME, PREFERENCE_APPLIED, PROTOCOL_VERSION, RATE_LIMIT,
    RATE_LIMIT_POLICY, REPLAYED, REQUEST_ID, SERVER_TIMING, SESSION_ID,
};
use crate::http::state::AppState;
use crate::http::unsent::{Account, ListenerUnsent};

/// The time for which a browser keeps the answer to its preflight request.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// The origins and hosts that a listener allows. Loopback names are always allowed.
pub(crate) struct OriginPolicy {
    /// True if the listener's own address is a loopback one.
    is_local: bool,
    allowed_origins: Vec<WebOrigin>,
    allowed_hosts: Vec<Host>,
}

impl OriginPolicy {
    /// Returns the policy of the listener at `address`.
    pub(crate) fn new(config: &Config, address: SocketAddr) -> Self {
        Self {
            is_local: address.ip().to_canonical().is_loopback(),
            allowed_origins: config.allowed_origins.clone(),
            allowed_hosts: config.allowed_hosts.clone(),
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Refuses pages of other sites, and host names that are not the gateway's.
    pub(crate) fn check(&self, parts: &Parts) -> Result<(), HttpError> {
        self.check_unless(parts, self.allowed_hosts.is_empty() && !self.is_local)
    }

    /// Checks a request for a page without authentication, such as `/metrics`. Beyond loopback,
    /// load balancers and monitoring name a gateway by any of its addresses, so every `Host` is
    /// allowed there. No browser leaves `Host` out; load balancers that speak HTTP/1.0 do.
    fn check_open_page(&self, parts: &Parts) -> Result<(), HttpError> {
        let has_host = parts.uri.authority().is_some() || parts.headers.contains_key(header::HOST);
        self.check_unless(parts, !self.is_local || !has_host)
    }

    /// Checks the origin, and the host unless any is allowed.
    fn check_unless(&self, parts: &Parts, any_host: bool) -> Result<(), HttpError> {
        if let Some(origin) = parts.headers.get(header::ORIGIN)
            && !self.allows_origin(origin)
        {
            return Err(HttpError::Forbidden(
                "web pages may call only if their site (`Origin`) is one of `allowed_origins`",
            ));
        }
        if !any_host && !host(parts).is_some_and(|host| self.allows_host(&host)) {
            return Err(HttpError::Forbidden(
                "`Host` must be `localhost`, a loopback address or one of `allowed_hosts`",
            ));
        }
        Ok(())
    }

    /// Returns true if pages of this origin may call and read the answers.
    pub(crate) fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let origin = origin.to_str().ok().and_then(WebOrigin::parse);
        origin.is_some_and(|origin| origin.is_loopback() || self.allowed_origins.contains(&origin))
    }

    fn allows_host(&self, host: &Host) -> bool {
        host.is_loopback() || self.allowed_hosts.iter().any(|allowed| allowed.includes(host))
    }
}

/// A page without authentication at the callers' listener, asked for by somebody who may.
pub(crate) struct CallersPage;

/// A page without authentication at the operators' listener, asked for by somebody who may.
pub(crate) struct OperatorsPage;

impl FromRequestParts<Arc<AppState>> for CallersPage {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, HttpError> {
        Account::set_operator(parts);
        app.origins.check_open_page(parts).map(|()| Self)
    }
}

impl FromRequestParts<Arc<AppState>> for OperatorsPage {
    type Rejection = HttpError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<Self, HttpError> {
        Account::set_operator(parts);
        app.ops_origins.check_open_page(parts).map(|()| Self)
    }
}

/// Returns the host: from the address (HTTP/2) or from the header (HTTP/1).
pub(crate) fn host(parts: &Parts) -> Option<Host> {
    match parts.uri.authority() {
        Some(authority) => Host::parse(authority.as_str()),
        None => Host::parse(parts.headers.get(header::HOST)?.to_str().ok()?),
    }
}

/// The routes of a listener. Two routers instead of a layer around one: requests without `Origin`,
/// which are most, do not pay for CORS.
#[derive(Clone)]
pub struct Routes {
    everyone: HyperRouter,
    pages: Option<(HyperRouter, Arc<AppState>)>,
    pub(in crate::http) unsent: ListenerUnsent,
}

type HyperRouter = TowerToHyperService<Router>;

impl Routes {
    /// Takes a second router for allowed origins; it has [`cors_layer`] on the routes that they may
    /// read. Without it, no page of another site may read an answer.
    pub(crate) fn new(
        everyone: Router,
        pages: Option<(Router, Arc<AppState>)>,
        unsent: ListenerUnsent,
    ) -> Self {
        let pages = pages.map(|(pages, app)| (TowerToHyperService::new(pages), app));
        Self { everyone: TowerToHyperService::new(everyone), pages, unsent }
    }
}

impl Service<Request<RequestBody>> for Routes {
    type Response = Response;
    type Error = Infallible;
    type Future = <HyperRouter as Service<Request<RequestBody>>>::Future;

    fn call(&self, mut request: Request<RequestBody>) -> Self::Future {
        if let Some(uri) = without_trailing_slash(request.uri()) {
            *request.uri_mut() = uri;
        }
        if let Some((pages, app)) = &self.pages
            && let Some(origin) = request.headers().get(header::ORIGIN)
            && app.origins.allows_origin(origin)
        {
            return pages.call(request);
        }
        self.everyone.call(request)
    }
}

/// Returns the same address without slashes at the end of its path, if it has any: no path of ours
/// ends in one.
fn without_trailing_slash(uri: &Uri) -> Option<Uri> {
    let path = uri.path().trim_end_matches('/');
    if path.len() == uri.path().len() || uri.path() == "/" {
        return None;
    }
    let path = if path.is_empty() { "/" } else { path };
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target.try_into().ok()?);
    Uri::from_parts(parts).ok()
}

/// Answers preflight requests and lets the page read the answer. [`Routes`] has checked the origin.
pub(crate) fn cors_layer() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([
            SESSION_ID.clone(),
            PROTOCOL_VERSION.clone(),
            CALL_ID.clone(),
            OUTCOME.clone(),
            SERVER_TIMING.clone(),
            ATTEMPTS.clone(),
            REPLAYED.clone(),
            REQUEST_ID.clone(),
            PREFERENCE_APPLIED.clone(),
            header::LOCATION,
            RATE_LIMIT.clone(),
            RATE_LIMIT_POLICY.clone(),
            header::RETRY_AFTER,
            header::WWW_AUTHENTICATE,
        ])
        .max_age(MAX_AGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn web(is_local: bool, origins: &[&str], hosts: &[&str]) -> OriginPolicy {
        OriginPolicy {
            is_local,
            allowed_origins: origins.iter().filter_map(|text| WebOrigin::parse(text)).collect(),
            allowed_hosts: hosts.iter().filter_map(|text| Host::parse(text)).collect(),
        }
    }

    fn refuses(web: &OriginPolicy, uri: &str, headers: &[(&str, &str)]) -> bool {
        web.check(&parts(uri, headers)).is_err()
    }

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request = headers.iter().fold(Request::builder().uri(uri), |request, (name, value)| {
            request.header(*name, *value)
        });
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn slashes_at_the_end_of_a_path_do_not_count() {
        let without = |uri: &str| without_trailing_slash(&uri.parse().unwrap());
        for (uri, plain) in [
            ("/mcp/", "/mcp"),
            ("/mcp/std//?a=/", "/mcp/std?a=/"),
            ("http://gateway.example/mcp/", "http://gateway.example/mcp"),
        ] {
            assert_eq!(without(uri).unwrap().to_string(), plain);
        }
        for uri in ["/", "/mcp", "/mcp?a=/", "*", "http://gateway.example"] {
            assert_eq!(without(uri), None, "{uri}");
        }
    }

    #[test]
    fn web_pages_of_other_sites_are_refused_everywhere() {
        let everywhere = [web(true, &[], &[]), web(false, &[], &[])];
        let refused = |origin| {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            everywhere.iter().map(|web| refuses(web, "/", &headers)).collect::<Vec<_>>()
        };
        for origin in
            ["https://evil.example", "null", "http://127.0.0.1.evil.example", "localhost", ""]
        {
            assert_eq!(refused(origin), [true, true], "{origin:?} was let in");
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1:8080", "https://[::1]"] {
            assert_eq!(refused(origin), [false, false], "{origin:?} was refused");
        }
    }

    #[test]
    fn pages_of_allowed_sites_are_let_in() {
        let web = web(false, &["https://app.example", "http://dev.example:3000"], &[]);
        let refused = |origin| refuses(&web, "/", &[("host", "x"), ("origin", origin)]);
        for origin in [
            "https://app.example",
            "https://APP.example:443",
            "http://dev.example:3000",
            "http://localhost",
        ] {
            assert!(!refused(origin), "{origin:?} was refused");
        }
        for origin in [
            "http://app.example",
            "https://app.example:8443",
            "https://app.example.evil.example",
            "http://dev.example",
            "null",
        ] {
            assert!(refused(origin), "{origin:?} was let in");
        }
    }

    #[test]
    fn on_loopback_other_names_for_this_machine_are_refused() {
        let local = web(true, &[], &[]);
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080"] {
            assert!(!refuses(&local, "/", &[("host", host)]), "{host} was refused");
        }
        assert!(!refuses(&local, "http://localhost:8080/", &[]));
        assert!(refuses(&local, "/", &[("host", "rebound.example:8080")]));
        assert!(refuses(&local, "http://rebound.example/", &[]));
        assert!(refuses(&local, "/", &[]));
        assert!(!refuses(&web(false, &[], &[]), "/", &[("host", "gateway.example")]));
    }

    #[test]
    fn open_pages_are_closed_to_rebound_names_and_open_to_load_balancers() {
        let refuses = |web: &OriginPolicy, uri, headers: &[(&str, &str)]| {
            web.check_open_page(&parts(uri, headers)).is_err()
        };
        let local = web(true, &[], &["gateway.example"]);
        assert!(refuses(&local, "/metrics", &[("host", "rebound.example:8080")]));
        assert!(refuses(&local, "http://rebound.example/metrics", &[]));
        assert!(refuses(&local, "/metrics", &[("host", "\u{e9}")]), "no name at all");
        for host in ["127.0.0.1:8080", "localhost", "[::1]:1", "gateway.example"] {
            assert!(!refuses(&local, "/metrics", &[("host", host)]), "{host} was refused");
        }
        assert!(!refuses(&local, "/readyz", &[]), "a probe of HTTP/1.0");
        let beyond = web(false, &[], &["gateway.example"]);
        for host in ["10.0.0.7:8080", "pod-1.internal"] {
            assert!(!refuses(&beyond, "/readyz", &[("host", host)]), "{host} was refused");
        }
        for web in [local, beyond] {
            let page = [("host", "127.0.0.1"), ("origin", "https://evil.example")];
            assert!(refuses(&web, "/metrics", &page));
        }
    }

    #[test]
    fn a_list_of_names_holds_on_every_address() {
        for is_local in [true, false] {
            let web = web(is_local, &[], &["gateway.example", "other.example:8443"]);
            let refused = |host| refuses(&web, "/", &[("host", host)]);
            for host in ["gateway.example", "Gateway.example:80", "other.example:8443", "localhost"]
            {
                assert!(!refused(host), "{host} was refused");
            }
            for host in ["other.example", "rebound.example", "10.0.0.1", "", "x@gateway.example"] {
                assert!(refused(host), "{host} was let in");
            }
            // The address counts, not the header, as it does for HTTP.
            assert!(refuses(&web, "http://rebound.example/", &[("host", "gateway.example")]));
            assert!(refuses(&web, "/", &[]));
        }
    }
}
