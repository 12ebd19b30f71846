//! The authorization server of one configured server, and the gateway as its client.

use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use tokio::time::Instant;

use super::OAuthError;
use super::client::{Client, Credential, KnownClient, Signer};
use super::discovery::{self, AuthorizationServer};
use super::fetch::Fetch;
use crate::common::error_chain::error_chain;
use crate::common::secret::Secret;
use crate::config::UpstreamOAuth;

/// Why tokens can never be asked for.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("the `private_key` of its `oauth` cannot be used: {0}")]
    PrivateKey(&'static str),
    #[error("the HTTP client cannot be set up: {}", error_chain(.0))]
    Tls(reqwest::Error),
}

/// An authorization server is known to be the current one for so long.
const CURRENT: Duration = Duration::from_secs(10);

pub struct Provider {
    pub config: UpstreamOAuth,
    /// Address of the server that tokens are for; `None` for a program.
    server: Option<Url>,
    pub fetch: Fetch,
    signer: Option<Signer>,
    /// The provider that asserts who a caller is, if tokens are asked for by its assertions.
    pub identity_provider: Option<Box<Provider>>,
    /// Found by discovery, until something fails.
    found: Mutex<Option<(Instant, AuthorizationServer)>>,
}

impl Provider {
    /// Reads the system's CAs, so it may take a while.
    pub fn new(server: Option<&Url>, config: &UpstreamOAuth) -> Result<Self, SetupError> {
        let key = config.private_key.as_ref();
        let signer = key.map(|key| Signer::parse(key.expose())).transpose();
        let identity = config.identity_provider.as_ref();
        let identity = identity.map(|it| Self::new(None, &it.as_client(&config.networks)));
        Ok(Self {
            identity_provider: identity.transpose()?.map(Box::new),
            signer: signer.map_err(SetupError::PrivateKey)?,
            fetch: Fetch::new(server, config).map_err(SetupError::Tls)?,
            config: config.clone(),
            server: server.cloned(),
            found: Mutex::default(),
        })
    }

    pub fn is_of(&self, server: Option<&Url>, config: &UpstreamOAuth) -> bool {
        self.config == *config && self.server.as_ref() == server
    }

    /// Returns the host of the server, for the log.
    pub fn host(&self) -> &str {
        self.server.as_ref().and_then(Url::host_str).unwrap_or_default()
    }

    /// Returns the authorization server, found once.
    pub async fn authorization_server(&self) -> Result<AuthorizationServer, OAuthError> {
        let known = self.found.lock().clone();
        match known {
            Some((_, known)) => Ok(known),
            None => self.find().await,
        }
    }

    /// Returns the authorization server as it was found a moment ago: a server may change it.
    pub async fn current_authorization_server(&self) -> Result<AuthorizationServer, OAuthError> {
        let known = self.found.lock().clone();
        match known {
            Some((at, known)) if at.elapsed() < CURRENT => Ok(known),
            _ => self.find().await,
        }
    }

    async fn find(&self) -> Result<AuthorizationServer, OAuthError> {
        let found = discovery::find(&self.fetch, &self.config, self.server.as_ref()).await?;
        *self.found.lock() = Some((Instant::now(), found.clone()));
        Ok(found)
    }

    /// Has the authorization server found again: it may have moved.
    pub fn forget(&self) {
        *self.found.lock() = None;
        if let Some(identity) = &self.identity_provider {
            identity.forget();
        }
    }

    /// Returns the resource that tokens of an authorization server are for (RFC 8707). A program
    /// has none by itself.
    pub fn resource<'a>(&'a self, at: &'a AuthorizationServer) -> Option<&'a str> {
        let server = || self.server.as_ref().map(|url| url.as_str().trim_end_matches('/'));
        self.config.resource.as_deref().or(at.resource.as_deref()).or_else(server)
    }

    /// Returns the client that the operator has configured.
    pub fn client(&self) -> Option<Client<'_>> {
        let id = self.config.client_id.as_deref()?;
        let key_id = self.config.key_id.as_deref();
        let credential = match (&self.config.client_secret, &self.signer) {
            (Some(secret), _) => Credential::Secret(secret),
            (None, Some(signer)) => Credential::Key(signer, key_id),
            (None, None) => Credential::None,
        };
        Some(Client { id, credential })
    }
}

/// Returns a client that is known by registration or by its metadata document.
pub fn known_client<'a>(known: &'a KnownClient, secret: Option<&'a Secret>) -> Client<'a> {
    Client { id: &known.id, credential: secret.map_or(Credential::None, Credential::Secret) }
}
