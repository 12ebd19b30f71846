//! The way to one server: its address, what the operator wants every request to carry, and how far the
//! server may send a request elsewhere.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Response, StatusCode, Url};

use crate::config::{Host, MissingSecret, Secrets, Upstream};
use crate::protocol::mcp::{IMPLEMENTATION_NAME, IMPLEMENTATION_VERSION};

/// Less than what common servers (Node.js, uvicorn: 5 s) keep a connection open for: a request that meets a
/// connection as it is being closed is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// How a connection that has gone silent is found out.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// More hops than this lead nowhere.
const REDIRECTS_MAX: usize = 5;

/// Sends requests to one server.
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    /// The operator's own. They go to no other host.
    headers: HeaderMap,
    redirect_hosts: Vec<Host>,
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A tenant's secret that it needs is not there.
    #[error(transparent)]
    MissingSecret(#[from] MissingSecret),
    /// With a secret put in, a header is none.
    #[error("the header `{0}` has characters that no header can have")]
    Header(String),
    /// TLS cannot be set up.
    #[error("HTTP cannot be spoken; are the system's CA certificates installed? {}", causes(.0))]
    Tls(reqwest::Error),
}

/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The server has not seen it.
    #[error("{0}")]
    Unreachable(String),
    /// The server sent it on to where it must not go. Nobody has worked on it.
    #[error("it redirects to `{0}`, which is not in `redirect_hosts`")]
    Elsewhere(String),
    /// The server sent it on and on, or nowhere.
    #[error("its redirects lead nowhere")]
    Nowhere,
    /// It may have arrived.
    #[error("{0}")]
    Broken(String),
}

impl Client {
    pub(super) fn new(
        upstream: &Upstream,
        secrets: &Secrets,
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
            // What the operator has written is where it goes.
            .no_proxy()
            // Followed here, since all headers would go along.
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
        Ok(Self { http, url: upstream.url.clone(), headers, redirect_hosts })
    }

    /// Sends a request wherever the server wants it, within bounds. Redirects keep method and body.
    pub(super) async fn send(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<Response, SendError> {
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.http.request(method.clone(), url.clone());
            if self.is_home(&url) {
                request = request.headers(self.headers.clone());
            }
            request = request.headers(headers.clone());
            if *method == Method::POST {
                request = request.body(body.clone());
            }
            let response = request.send().await.map_err(SendError::of)?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            url = self.next(&url, location)?;
        }
        Err(SendError::Nowhere)
    }

    /// Where a redirect leads, if it may.
    fn next(&self, from: &Url, location: Option<&str>) -> Result<Url, SendError> {
        let next = location.and_then(|location| from.join(location).ok());
        let mut next = next.ok_or(SendError::Nowhere)?;
        let _ = next.set_username("");
        let _ = next.set_password(None);
        let is_downgrade = self.url.scheme() == "https" && next.scheme() != "https";
        let is_known = self.is_home(&next) || self.may_redirect_to(&next);
        match is_known && !is_downgrade && ["http", "https"].contains(&next.scheme()) {
            true => Ok(next),
            false => Err(SendError::Elsewhere(host_of(&next))),
        }
    }

    /// Whether it is the server itself; it may ask for encryption.
    fn is_home(&self, url: &Url) -> bool {
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
        let (is_connect, story) =
            (error.is_connect() || error.is_builder(), causes(&error.without_url()));
        if is_connect { Self::Unreachable(story) } else { Self::Broken(story) }
    }
}

/// 303 is not among them: it says that the answer is elsewhere, not the server.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 307 | 308)
}

/// `host:port`, as it stands in `redirect_hosts`.
fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// An error with what lies behind it, which reqwest keeps to itself.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn client(url: &str, hosts: &[&str]) -> Client {
        let upstream = Upstream {
            url: url.parse().unwrap(),
            headers: BTreeMap::new(),
            init_timeout: Duration::from_secs(1),
            redirect_hosts: hosts.iter().map(|host| Host::parse(host).unwrap()).collect(),
        };
        Client::new(&upstream, &Secrets::new(), 1).unwrap()
    }

    fn lead(client: &Client, location: &str) -> Result<String, String> {
        let next = client.next(&client.url, Some(location));
        next.map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn redirects_stay_with_the_server_and_never_lose_encryption() {
        let plain = client("http://a.example/mcp", &[]);
        for location in ["/mcp/", "http://a.example/x", "https://a.example/mcp"] {
            assert!(lead(&plain, location).is_ok(), "{location}");
        }
        for location in
            ["http://b.example/mcp", "http://a.example:81/", "ftp://a.example/", "//b.example/"]
        {
            assert!(lead(&plain, location).is_err(), "{location}");
        }
        let error = lead(&plain, "http://b.example/mcp").unwrap_err();
        assert_eq!(error, "it redirects to `b.example:80`, which is not in `redirect_hosts`");
        let encrypted = client("https://a.example/mcp", &["b.example", "a.example"]);
        assert!(lead(&encrypted, "http://a.example/mcp").is_err());
        assert!(lead(&encrypted, "http://b.example/mcp").is_err());
        assert_eq!(
            lead(&encrypted, "https://user:pw@b.example/mcp").unwrap(),
            "https://b.example/mcp"
        );
    }

    #[test]
    fn the_operators_headers_stay_at_home() {
        let client = client("http://a.example/mcp", &["b.example"]);
        let is_home = |url: &str| client.is_home(&url.parse().unwrap());
        assert!(is_home("http://a.example/other") && is_home("https://a.example/mcp"));
        assert!(!is_home("http://b.example/mcp") && !is_home("http://a.example:8080/mcp"));
    }
}
