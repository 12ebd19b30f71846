//! Requests to authorization servers. Redirects are not followed, sizes and times are bounded.
//!
//! Addresses of the configuration may lead anywhere. Those that metadata name are checked when they
//! are dialled: another party chose them.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use serde::de::DeserializeOwned;

use super::OAuthError;
use super::challenge::Challenge;
use crate::common::checked_address::{Allowed, CheckedResolver, system_lookup};
use crate::common::error_chain::error_chain;
use crate::config::UpstreamOAuth;

/// From the first byte sent to the last one received.
const TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const BODY_LEN_MAX: usize = 64 * 1024;

const TOOLS_LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;

pub struct Fetch {
    configured: Client,
    /// For `https`: dials public addresses, and those that the operator allows.
    found: Client,
    /// For `http`: dials those alone that the operator allows.
    found_plain: Client,
    allowed: Allowed,
    /// Origins of addresses of the configuration.
    origins: Vec<String>,
}

impl Fetch {
    /// Reads the system's CAs, so it may take a while. `server` is the address of the server, if
    /// it has one.
    pub fn new(server: Option<&Url>, config: &UpstreamOAuth) -> reqwest::Result<Self> {
        let configured = [server, config.issuer.as_ref(), config.token_url.as_ref()];
        let origins = configured.into_iter().flatten().map(origin).collect();
        let allowed = Allowed::new(config.networks.clone());
        let lookup = system_lookup();
        let checked = |allowed: &Allowed| {
            let resolver = CheckedResolver { lookup: lookup.clone(), allowed: allowed.clone() };
            // A kept connection would pass the check of its address by.
            client().dns_resolver(Arc::new(resolver)).pool_max_idle_per_host(0)
        };
        Ok(Self {
            configured: client().build()?,
            found: checked(&allowed).https_only(true).build()?,
            found_plain: checked(&allowed.without_public()).build()?,
            allowed,
            origins,
        })
    }

    /// Returns the client for an address, if it may be dialled.
    fn client(&self, url: &Url) -> Result<&Client, OAuthError> {
        let host = url.host_str().unwrap_or_default();
        let refuse = |why: &str| Err(OAuthError::new(format!("the address of `{host}` {why}")));
        if self.origins.contains(&origin(url)) {
            return Ok(&self.configured);
        }
        let (client, allowed) = match url.scheme() {
            "https" => (&self.found, self.allowed.clone()),
            "http" => (&self.found_plain, self.allowed.without_public()),
            _ => return refuse("is not of HTTP"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("has a user name or a password");
        }
        // An address is dialled without being resolved.
        let address = host.trim_start_matches('[').trim_end_matches(']').parse();
        match address {
            Ok(address) if !allowed.includes(address) => refuse(
                "is private, or has no encryption: `networks` of `[servers.NAME.oauth]` allows \
                 addresses that metadata name",
            ),
            _ => Ok(client),
        }
    }

    /// Refuses an address for a person's browser that could not be dialled either: another scheme
    /// than HTTP would be code.
    pub fn check(&self, url: &Url) -> Result<(), OAuthError> {
        self.client(url).map(drop)
    }

    /// Fetches a JSON document; `None` if there is none.
    pub async fn document<T: DeserializeOwned>(&self, url: &Url) -> Result<Option<T>, OAuthError> {
        let request = self.client(url)?.get(url.clone()).header(ACCEPT, "application/json");
        let (status, body) = self.send(url, request).await?;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map(Some).map_err(|_| {
                let host = url.host_str().unwrap_or_default();
                OAuthError::new(format!("the metadata of `{host}` cannot be read"))
            }),
            status if status.is_client_error() => Ok(None),
            status => Err(unexpected(url, status)),
        }
    }

    /// Returns the challenge of a server to a request without a token: to one that MCP clients
    /// make, and that changes nothing. Some servers let the handshake pass.
    pub async fn challenge(&self, server: &Url) -> Option<Challenge> {
        let post = self.configured.post(server.clone()).header(CONTENT_TYPE, "application/json");
        let post = post.header(ACCEPT, "application/json, text/event-stream").body(TOOLS_LIST);
        for request in [post, self.configured.get(server.clone())] {
            let response = request.send().await.ok()?;
            if response.headers().contains_key(WWW_AUTHENTICATE) {
                return Challenge::read(response.status(), response.headers());
            }
        }
        None
    }

    /// Posts a request that was made by [`Self::post`].
    pub async fn send(
        &self,
        url: &Url,
        request: RequestBuilder,
    ) -> Result<(StatusCode, Vec<u8>), OAuthError> {
        let host = url.host_str().unwrap_or_default();
        let failed = |error: reqwest::Error| {
            let causes = error_chain(&error.without_url());
            OAuthError::new(format!("a request to `{host}` failed: {causes}"))
        };
        let mut response: Response = request.send().await.map_err(failed)?;
        let mut body = vec![];
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > BODY_LEN_MAX {
                return Err(OAuthError::new(format!("the answer of `{host}` is too long")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status(), body))
    }

    pub fn post(&self, url: &Url) -> Result<RequestBuilder, OAuthError> {
        Ok(self.client(url)?.post(url.clone()).header(ACCEPT, "application/json"))
    }
}

pub fn unexpected(url: &Url, status: StatusCode) -> OAuthError {
    let host = url.host_str().unwrap_or_default();
    OAuthError::new(format!("`{host}` answered with the HTTP status {}", status.as_u16()))
}

fn client() -> ClientBuilder {
    Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .timeout(TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
