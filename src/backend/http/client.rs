//! Sends requests to one server, with the operator's headers, and follows redirects within bounds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, Url};

use super::oauth::{ConnectionTokens, Token, TokenError, TokenSource};
use crate::common::error_chain::error_chain;
use crate::config::{Host, MissingSecret, Secrets, Upstream};
use crate::oauth::challenge::Challenge;
use crate::protocol::mcp::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION};

/// Less than the idle timeout of common servers (Node.js, uvicorn: 5 s). A request on a connection
/// that the server is closing is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// HTTP/2 pings find a connection that has gone silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS_MAX: usize = 5;

pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    /// The operator's headers. They go to no other host.
    headers: HeaderMap,
    redirect_hosts: Vec<Host>,
    /// The source of access tokens, if the server wants any. They go to no other host.
    tokens: Option<ConnectionTokens>,
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    MissingSecret(#[from] MissingSecret),
    /// A secret that was inserted makes the header invalid.
    #[error("the header `{0}` has characters that no header can have")]
    Header(String),
    #[error("the `private_key` of its `oauth` cannot be used: {0}")]
    PrivateKey(&'static str),
    #[error(
        "the HTTP client cannot be set up; are the system's CA certificates installed? {}",
        error_chain(.0)
    )]
    Tls(reqwest::Error),
}

/// Says why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The request did not reach the server.
    #[error("{0}")]
    Unreachable(String),
    /// The request was not sent.
    #[error(transparent)]
    NoToken(#[from] TokenError),
    /// Not executed: the server redirected the request to a host that is not allowed.
    #[error("it redirects to `{0}`, which is not in `redirect_hosts`")]
    RedirectRefused(String),
    /// Too many redirects, or one without a usable location.
    #[error("its redirects lead nowhere")]
    BadRedirect,
    /// The server may have executed the request: only 307 and 308 ask for it to be sent again.
    #[error(
        "it answers with the HTTP status {status}, which points to `{target}`; calls are not \
         sent there, since they may have been executed: set `url` to the final address"
    )]
    Moved { status: u16, target: String },
    /// The request may have reached the server.
    #[error("{0}")]
    Broken(String),
}

impl Client {
    pub(super) fn new(
        upstream: &Upstream,
        secrets: &Secrets,
        tokens: Option<ConnectionTokens>,
        idle_max: usize,
    ) -> Result<Self, SetupError> {
        let mut headers = HeaderMap::new();
        for (name, template) in &upstream.headers {
            let invalid = || SetupError::Header(name.clone());
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
            let value = template.fill(secrets)?;
            let mut value = HeaderValue::from_str(value.expose()).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let http = reqwest::Client::builder()
            // Requests go to the configured address, whatever the environment says of proxies.
            .no_proxy()
            // Followed in `send`, because reqwest would pass all headers on.
            .redirect(Policy::none())
            .user_agent(format!("{IMPLEMENTATION_NAME}/{IMPLEMENTATION_VERSION}"))
            .connect_timeout(upstream.init_timeout)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(idle_max)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .build()
            .map_err(SetupError::Tls)?;
        let redirect_hosts = upstream.redirect_hosts.clone();
        Ok(Self { http, url: upstream.url.clone(), headers, redirect_hosts, tokens })
    }

    /// Sends a request and follows redirects within bounds. Redirects keep method and body. A POST
    /// follows those redirects alone that promise that it was not executed. `caller` has the tokens
    /// of the request's caller, if callers have their own.
    pub(super) async fn send(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: &Bytes,
        caller: Option<&Arc<TokenSource>>,
    ) -> Result<Response, SendError> {
        self.send_to(self.url.clone(), method, headers, body, caller).await
    }

    /// Returns whether requests have access tokens.
    pub(super) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Resolves an address that the server names for itself. Returns `None` for another host.
    pub(super) fn own_address(&self, text: &str) -> Option<Url> {
        self.url.join(text).ok().filter(|url| self.is_own_host(url))
    }

    /// Sends a request to an address of the server, like [`Client::send`].
    pub(super) async fn send_to(
        &self,
        url: Url,
        method: &Method,
        headers: &HeaderMap,
        body: &Bytes,
        caller: Option<&Arc<TokenSource>>,
    ) -> Result<Response, SendError> {
        let own;
        let tokens = match (caller, &self.tokens) {
            (Some(tokens), _) | (None, Some(ConnectionTokens::All(tokens))) => Some(tokens),
            (None, Some(ConnectionTokens::Callers(callers))) => {
                own = callers.own()?;
                Some(&own)
            }
            (None, None) => None,
        };
        let token = match tokens {
            Some(tokens) => Some(tokens.token().await?),
            None => None,
        };
        let response = self.follow(url.clone(), method, headers, body, token.as_deref()).await?;
        let (Some(tokens), Some(token)) = (tokens, token) else { return Ok(response) };
        // Nothing was executed: the server has refused the token alone.
        match Challenge::read(response.status(), response.headers()) {
            Some(challenge) if tokens.refused(&token, &challenge).await? => {
                let token = tokens.token().await?;
                self.follow(url, method, headers, body, Some(&token)).await
            }
            _ => Ok(response),
        }
    }

    async fn follow(
        &self,
        mut url: Url,
        method: &Method,
        headers: &HeaderMap,
        body: &Bytes,
        token: Option<&Token>,
    ) -> Result<Response, SendError> {
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.http.request(method.clone(), url.clone());
            if self.is_own_host(&url) {
                request = request.headers(self.headers.clone());
                if let Some(token) = token {
                    request = request.header(AUTHORIZATION, token.header.clone());
                }
            }
            request = request.headers(headers.clone());
            if *method == Method::POST {
                request = request.body(body.clone());
            }
            let response = request.send().await.map_err(SendError::of)?;
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            url = match response.status().as_u16() {
                307 | 308 => self.redirected(&url, location)?,
                status @ 301..=303 if *method == Method::POST => {
                    let target = location.and_then(|location| url.join(location).ok());
                    return Err(SendError::Moved { status, target: text_of(target) });
                }
                301 | 302 => self.redirected(&url, location)?,
                _ => return Ok(response),
            };
        }
        Err(SendError::BadRedirect)
    }

    /// Returns the URL that a redirect leads to, if it is allowed.
    fn redirected(&self, from: &Url, location: Option<&str>) -> Result<Url, SendError> {
        let next = location.and_then(|location| from.join(location).ok());
        let mut next = next.ok_or(SendError::BadRedirect)?;
        let _ = next.set_username("");
        let _ = next.set_password(None);
        let is_downgrade = self.url.scheme() == "https" && next.scheme() != "https";
        let is_known = self.is_own_host(&next) || self.may_redirect_to(&next);
        if is_known && !is_downgrade && ["http", "https"].contains(&next.scheme()) {
            Ok(next)
        } else {
            Err(SendError::RedirectRefused(host_of(&next)))
        }
    }

    /// Returns whether the URL is on the server itself. A change from `http` to `https` is allowed.
    fn is_own_host(&self, url: &Url) -> bool {
        let same_port = url.port_or_known_default() == self.url.port_or_known_default();
        let (from, to) = (self.url.scheme(), url.scheme());
        let same_service = from == to && same_port || from == "http" && to == "https";
        url.host_str() == self.url.host_str() && same_service
    }

    fn may_redirect_to(&self, url: &Url) -> bool {
        let Some(asked) = Host::parse(&host_of(url)) else { return false };
        self.redirect_hosts.iter().any(|host| host.includes(&asked))
    }
}

impl SendError {
    fn of(error: reqwest::Error) -> Self {
        let is_unsent = error.is_connect() || error.is_builder();
        let causes = error_chain(&error.without_url());
        if is_unsent { Self::Unreachable(causes) } else { Self::Broken(causes) }
    }
}

/// Returns `host:port`, as in `redirect_hosts`.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Returns the target of a redirect for the operator, without parts that may be secret.
fn text_of(target: Option<Url>) -> String {
    let Some(mut url) = target else { return "no usable address".to_owned() };
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UrlTransport;
    use std::collections::BTreeMap;

    fn client(url: &str, hosts: &[&str]) -> Client {
        let upstream = Upstream {
            url: url.parse().unwrap(),
            headers: BTreeMap::new(),
            init_timeout: Duration::from_secs(1),
            oauth: None,
            redirect_hosts: hosts.iter().map(|host| Host::parse(host).unwrap()).collect(),
            transport: UrlTransport::Auto,
        };
        Client::new(&upstream, &Secrets::new(), None, 1).unwrap()
    }

    fn redirected(client: &Client, location: &str) -> Result<String, String> {
        let next = client.redirected(&client.url, Some(location));
        next.map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn redirects_stay_with_the_server_and_never_lose_encryption() {
        let plain = client("http://a.example/mcp", &[]);
        for location in ["/mcp/", "http://a.example/x", "https://a.example/mcp"] {
            assert!(redirected(&plain, location).is_ok(), "{location}");
        }
        for location in
            ["http://b.example/mcp", "http://a.example:81/", "ftp://a.example/", "//b.example/"]
        {
            assert!(redirected(&plain, location).is_err(), "{location}");
        }
        let error = redirected(&plain, "http://b.example/mcp").unwrap_err();
        assert_eq!(error, "it redirects to `b.example:80`, which is not in `redirect_hosts`");
        let encrypted = client("https://a.example/mcp", &["b.example", "a.example"]);
        assert!(redirected(&encrypted, "http://a.example/mcp").is_err());
        assert!(redirected(&encrypted, "http://b.example/mcp").is_err());
        assert_eq!(
            redirected(&encrypted, "https://user:pw@b.example/mcp").unwrap(),
            "https://b.example/mcp"
        );
    }

    #[test]
    fn the_operators_headers_go_to_no_other_host() {
        let client = client("http://a.example/mcp", &["b.example"]);
        let is_own_host = |url: &str| client.is_own_host(&url.parse().unwrap());
        assert!(is_own_host("http://a.example/other") && is_own_host("https://a.example/mcp"));
        assert!(!is_own_host("http://b.example/mcp") && !is_own_host("http://a.example:8080/mcp"));
    }
}
