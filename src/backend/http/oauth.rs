//! Access tokens for a server that wants OAuth.
//!
//! All connections to a server share one [`TokenSource`]; with a grant of each tenant, those of one
//! tenant. A token is kept until shortly before its end. One request renews it for all callers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::SetupError;
use crate::common::ids::{ServerId, TenantId};
use crate::common::secret::Secret;
use crate::config::{Grant, Upstream};
use crate::oauth::OAuthError;
use crate::oauth::challenge::Challenge;
use crate::oauth::provider::{self, Provider};
use crate::oauth::request::{self, Form};
use crate::tenants::connections::{AccessToken, Connections, NoToken};

/// A token is renewed this long before its end, or after nine tenths of its life if that is later.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// After a failure, no request for a token is made for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// A refused token that is younger is not replaced, unless other scopes are asked for: the server
/// would refuse the next one, too. Half of a short life counts as long.
const REPLACED_AFTER: Duration = Duration::from_secs(5);
/// The most scopes that servers may ask for, beside the configured ones.
const ASKED_SCOPES_MAX: usize = 32;

/// Why there is no token. Has nothing of any secret, and of the authorization server's own words an
/// error code alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    #[error("the gateway has no access token for it: {0}")]
    Failed(OAuthError),
    /// The tenant has to connect itself first, or once more.
    #[error("the tenant has to connect itself to it")]
    NotConnected { server: String, url: String },
}

impl From<OAuthError> for TokenError {
    fn from(error: OAuthError) -> Self {
        Self::Failed(error)
    }
}

/// An access token.
pub(super) struct Token {
    /// The value of `Authorization`; sensitive.
    pub(super) header: HeaderValue,
    obtained: Instant,
    /// `None` if the authorization server did not say.
    expires: Option<Instant>,
    /// Counts the tokens of a tenant's connection.
    version: i64,
}

impl Token {
    fn new(token: &Secret, obtained: Instant, life: Option<Duration>, version: i64) -> Self {
        let header = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let mut header = header.expect("tokens are graphic ASCII");
        header.set_sensitive(true);
        Self { header, obtained, expires: life.map(|life| obtained + life), version }
    }

    fn is_valid(&self, now: Instant) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }

    /// Returns whether another one may do if the server refuses this one.
    fn is_replaceable(&self) -> bool {
        let life = self.expires.map(|expires| expires.saturating_duration_since(self.obtained));
        let after = life.map_or(REPLACED_AFTER, |life| REPLACED_AFTER.min(life / 2));
        self.obtained.elapsed() >= after
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

/// Asks for tokens in the name of one tenant.
#[derive(Clone)]
pub(in crate::backend) struct TenantGrant {
    pub(in crate::backend) connections: Option<Arc<Connections>>,
    pub(in crate::backend) tenant: TenantId,
    pub(in crate::backend) server: ServerId,
}

impl TokenSources {
    /// Returns the source for a server, if it wants OAuth. A changed configuration makes a new one.
    pub(in crate::backend) fn of(
        &self,
        upstream: &Upstream,
        tenant: TenantGrant,
    ) -> Result<Option<Arc<TokenSource>>, SetupError> {
        let Some(config) = upstream.oauth.as_deref() else { return Ok(None) };
        if config.grant == Grant::AuthorizationCode {
            // A tenant's instances are few, and the store keeps their tokens.
            return Ok(Some(Arc::new(TokenSource::new(TokenGrant::Tenant(tenant)))));
        }
        let mut all = self.all.lock();
        let url = Some(&upstream.url);
        let is_same = |it: &&Arc<TokenSource>| match &it.grant {
            TokenGrant::Gateway(provider) => provider.is_of(url, config),
            TokenGrant::Tenant(_) => false,
        };
        if let Some(source) = all.iter().find(is_same) {
            return Ok(Some(source.clone()));
        }
        let provider = Provider::new(url, config)?;
        let source = Arc::new(TokenSource::new(TokenGrant::Gateway(Box::new(provider))));
        // The others are of servers that are gone.
        all.retain(|source| Arc::strong_count(source) > 1);
        all.push(source.clone());
        Ok(Some(source))
    }
}

impl From<provider::SetupError> for SetupError {
    fn from(error: provider::SetupError) -> Self {
        match error {
            provider::SetupError::PrivateKey(problem) => Self::PrivateKey(problem),
            provider::SetupError::Tls(error) => Self::Tls(error),
        }
    }
}

/// The right by which tokens are asked for.
enum TokenGrant {
    /// The gateway's own credentials.
    Gateway(Box<Provider>),
    /// The consent of a tenant.
    Tenant(TenantGrant),
}

/// The tokens of one server.
pub(crate) struct TokenSource {
    grant: TokenGrant,
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
    /// The version of the last token that the server has refused.
    refused: Option<i64>,
}

impl TokenSource {
    fn new(grant: TokenGrant) -> Self {
        Self { grant, state: Mutex::default() }
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

    /// Notes that the server has refused a token. Returns whether another one may do; an error if
    /// the tenant has to agree to more.
    pub(super) async fn refused(
        &self,
        refused: &Arc<Token>,
        challenge: &Challenge,
    ) -> Result<bool, TokenError> {
        if let TokenGrant::Tenant(tenant) = &self.grant
            && !challenge.scopes.is_empty()
            && tenant.asks_for_more(&challenge.scopes).await
        {
            return Err(tenant.not_connected());
        }
        let mut state = self.state.lock();
        let mut asks_more = false;
        if let TokenGrant::Gateway(provider) = &self.grant {
            for scope in &challenge.scopes {
                let is_known =
                    provider.config.scopes.contains(scope) || state.asked.contains(scope);
                if !is_known && state.asked.len() < ASKED_SCOPES_MAX {
                    asks_more |= state.asked.insert(scope.clone());
                }
            }
        }
        if state.token.as_ref().is_some_and(|current| !Arc::ptr_eq(current, refused)) {
            return Ok(true);
        }
        let may_help = asks_more || refused.is_replaceable();
        if may_help {
            state.token = None;
            state.refused = Some(refused.version);
        }
        Ok(may_help)
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
                if let TokenGrant::Gateway(provider) = &self.grant {
                    let server = provider.host();
                    tracing::warn!(server, %error, "no access token could be had: {error}");
                    provider.forget();
                }
                state.failed = Some((Instant::now(), error.clone()));
            }
        }
    }

    async fn obtain(&self) -> Renewed {
        let (asked, refused) = {
            let state = self.state.lock();
            (state.asked.clone(), state.refused)
        };
        match &self.grant {
            TokenGrant::Gateway(provider) => Ok(Arc::new(client_token(provider, asked).await?)),
            TokenGrant::Tenant(tenant) => {
                let token = tenant.token(refused).await?;
                let AccessToken { secret, obtained, life, version } = token;
                Ok(Arc::new(Token::new(&secret, obtained, life, version)))
            }
        }
    }
}

impl TenantGrant {
    async fn token(&self, refused: Option<i64>) -> Result<AccessToken, TokenError> {
        let Some(connections) = &self.connections else { return Err(self.not_connected()) };
        let token = connections.token(&self.tenant, &self.server, refused).await;
        token.map_err(|error| match error {
            NoToken::NotConnected => self.not_connected(),
            NoToken::Failed(error) => TokenError::Failed(error),
        })
    }

    fn not_connected(&self) -> TokenError {
        let connections = self.connections.as_ref();
        let url = connections.map(|it| it.connect_url(&self.tenant, &self.server));
        let server = self.server.to_string();
        TokenError::NotConnected { server, url: url.unwrap_or_default() }
    }

    /// Notes that the server asks for these scopes. Returns whether the tenant has not agreed to
    /// all of them.
    async fn asks_for_more(&self, scopes: &[String]) -> bool {
        let Some(connections) = &self.connections else { return false };
        connections.note_asked(&self.tenant, &self.server, scopes).await
    }
}

/// Gets a token by the gateway's own credentials (RFC 6749, section 4.4).
async fn client_token(provider: &Provider, asked: BTreeSet<String>) -> Result<Token, OAuthError> {
    let server = provider.authorization_server().await?;
    let client = provider.client().ok_or_else(|| OAuthError::new("there are no credentials"))?;
    let scopes: BTreeSet<_> = provider.config.scopes.iter().cloned().chain(asked).collect();
    let mut form = Form::new("client_credentials");
    form.add_scopes(&scopes);
    form.add("resource", &provider.resource());
    let tokens = request::tokens(&provider.fetch, &server, &client, form).await?;
    Ok(Token::new(&tokens.access, tokens.asked, tokens.life, 0))
}

async fn renewed(mut renewing: Renewing) -> Renewed {
    match renewing.wait_for(Option::is_some).await {
        Ok(renewed) => renewed.clone().expect("waited for"),
        Err(_) => Err(OAuthError::new("its request has failed").into()),
    }
}
