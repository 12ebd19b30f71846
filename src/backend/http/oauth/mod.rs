//! Access tokens for a server that wants OAuth, by the gateway's own credentials.
//!
//! All connections to a server share one [`TokenSource`]. A token is kept until shortly before its
//! end. One request renews it for all callers.
//!
//! - [`discovery`]: finds the token endpoint (RFC 9728, RFC 8414)
//! - [`request`]: asks it for a token
//! - [`assertion`]: signs such a request (`private_key_jwt`)
//! - [`challenge`]: reads what a refusal of the server asks for
//! - [`fetch`]: requests to addresses that metadata name

mod assertion;
pub(super) mod challenge;
mod discovery;
mod fetch;
mod request;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Url;
use reqwest::header::HeaderValue;
use tokio::sync::watch;
use tokio::time::Instant;

use self::assertion::Signer;
use self::challenge::Challenge;
use self::discovery::TokenEndpoint;
use self::fetch::Fetch;
use super::client::SetupError;
use crate::config::{Upstream, UpstreamOAuth};

/// A token is renewed this long before its end, or after nine tenths of its life if that is later.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// After a failure, no request for a token is made for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// A refused token that is younger is not replaced, unless other scopes are asked for: the server
/// would refuse the next one, too.
const REPLACED_AFTER: Duration = Duration::from_secs(5);
/// The most scopes that servers may ask for, beside the configured ones.
const ASKED_SCOPES_MAX: usize = 32;

/// Why there is no token. Has nothing of any secret, and of the authorization server's own words an
/// error code alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway has no access token for it: {0}")]
pub(super) struct TokenError(Arc<str>);

impl TokenError {
    fn new(reason: impl Into<Arc<str>>) -> Self {
        Self(reason.into())
    }
}

/// An access token.
pub(super) struct Token {
    /// The value of `Authorization`; sensitive.
    pub(super) header: HeaderValue,
    obtained: Instant,
    /// `None` if the authorization server did not say.
    expires: Option<Instant>,
}

impl Token {
    fn is_valid(&self, now: Instant) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns whether it is time for the next one.
    fn is_due(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| {
            let life = expires.saturating_duration_since(self.obtained);
            now + RENEW_BEFORE.min(life / 10) >= expires
        })
    }
}

type Renewed = Result<Arc<Token>, TokenError>;
type Renewing = watch::Receiver<Option<Renewed>>;

/// The token sources of all servers. Servers of the same address and credentials share one.
#[derive(Default)]
pub struct TokenSources {
    all: Mutex<Vec<Arc<TokenSource>>>,
}

impl TokenSources {
    /// Returns the source for a server, if it wants OAuth. A changed configuration makes a new one.
    pub(in crate::backend) fn of(
        &self,
        upstream: &Upstream,
    ) -> Result<Option<Arc<TokenSource>>, SetupError> {
        let Some(config) = upstream.oauth.as_deref() else { return Ok(None) };
        let mut all = self.all.lock();
        let is_same = |it: &&Arc<TokenSource>| it.config == *config && it.server == upstream.url;
        if let Some(source) = all.iter().find(is_same) {
            return Ok(Some(source.clone()));
        }
        let source = Arc::new(TokenSource::new(&upstream.url, config)?);
        // The others are of servers that are gone.
        all.retain(|source| Arc::strong_count(source) > 1);
        all.push(source.clone());
        Ok(Some(source))
    }
}

/// The tokens of one server.
pub(crate) struct TokenSource {
    config: UpstreamOAuth,
    /// The server that the tokens are for.
    server: Url,
    fetch: Fetch,
    signer: Option<Signer>,
    state: Mutex<TokenState>,
}

#[derive(Default)]
struct TokenState {
    token: Option<Arc<Token>>,
    /// The request that is under way.
    renewing: Option<Renewing>,
    failed: Option<(Instant, TokenError)>,
    /// Scopes that the server has asked for.
    asked: BTreeSet<String>,
    endpoint: Option<TokenEndpoint>,
}

impl TokenSource {
    /// Reads the system's CAs, so it may take a while.
    fn new(server: &Url, config: &UpstreamOAuth) -> Result<Self, SetupError> {
        let key = config.private_key.as_ref();
        let signer = key.map(|key| Signer::parse(key.expose())).transpose();
        Ok(Self {
            signer: signer.map_err(SetupError::PrivateKey)?,
            fetch: Fetch::new(server, config).map_err(SetupError::Tls)?,
            config: config.clone(),
            server: server.clone(),
            state: Mutex::default(),
        })
    }

    /// Returns a valid token. Whoever comes while one is obtained waits for that one.
    pub(super) async fn token(self: &Arc<Self>) -> Renewed {
        let renewing = {
            let (now, mut state) = (Instant::now(), self.state.lock());
            match state.token.clone().filter(|token| token.is_valid(now)) {
                Some(token) if !token.is_due(now) => return Ok(token),
                Some(token) => {
                    // The old one is good for a while; a failure is not one yet.
                    let _ = self.renew(&mut state, now);
                    return Ok(token);
                }
                None => self.renew(&mut state, now)?,
            }
        };
        renewed(renewing).await
    }

    /// Notes that the server has refused a token. Returns whether another one may do.
    pub(super) fn refused(&self, refused: &Arc<Token>, challenge: &Challenge) -> bool {
        let mut state = self.state.lock();
        let mut asks_more = false;
        for scope in &challenge.scopes {
            let is_known = self.config.scopes.contains(scope) || state.asked.contains(scope);
            if !is_known && state.asked.len() < ASKED_SCOPES_MAX {
                asks_more |= state.asked.insert(scope.clone());
            }
        }
        if state.token.as_ref().is_some_and(|current| !Arc::ptr_eq(current, refused)) {
            return true;
        }
        let may_help = asks_more || refused.obtained.elapsed() >= REPLACED_AFTER;
        if may_help {
            state.token = None;
        }
        may_help
    }

    /// Starts a request for a token, unless one is under way.
    fn renew(
        self: &Arc<Self>,
        state: &mut TokenState,
        now: Instant,
    ) -> Result<Renewing, TokenError> {
        // Closed without a result if its task has panicked.
        let is_alive = |it: &&Renewing| it.borrow().is_some() || it.has_changed().is_ok();
        if let Some(renewing) = state.renewing.as_ref().filter(is_alive) {
            return Ok(renewing.clone());
        }
        if let Some((at, error)) = &state.failed
            && now < *at + FAILURE_PAUSE
        {
            return Err(error.clone());
        }
        let (sender, receiver) = watch::channel(None);
        let source = self.clone();
        tokio::spawn(async move {
            let renewed = source.obtain().await;
            source.note(&renewed);
            sender.send_replace(Some(renewed));
        });
        state.renewing = Some(receiver.clone());
        Ok(receiver)
    }

    fn note(&self, renewed: &Renewed) {
        let mut state = self.state.lock();
        state.renewing = None;
        match renewed {
            Ok(token) => (state.token, state.failed) = (Some(token.clone()), None),
            Err(error) => {
                tracing::warn!(
                    server = self.server.host_str().unwrap_or_default(), %error,
                    "no access token could be had: {error}"
                );
                state.failed = Some((Instant::now(), error.clone()));
                // It may have moved.
                state.endpoint = None;
            }
        }
    }

    async fn obtain(&self) -> Renewed {
        let (known, asked) = {
            let state = self.state.lock();
            (state.endpoint.clone(), state.asked.clone())
        };
        let endpoint = match known {
            Some(endpoint) => endpoint,
            None => {
                let found = discovery::find(&self.fetch, &self.config, &self.server).await?;
                self.state.lock().endpoint = Some(found.clone());
                found
            }
        };
        let scopes: BTreeSet<_> = self.config.scopes.iter().cloned().chain(asked).collect();
        let asked = request::TokenRequest {
            config: &self.config,
            server: &self.server,
            endpoint: &endpoint,
            signer: self.signer.as_ref(),
            scopes,
        };
        asked.send(&self.fetch).await.map(Arc::new)
    }
}

async fn renewed(mut renewing: Renewing) -> Renewed {
    match renewing.wait_for(Option::is_some).await {
        Ok(renewed) => renewed.clone().expect("waited for"),
        Err(_) => Err(TokenError::new("its request has failed")),
    }
}
