//! Access tokens for a server that wants OAuth.
//!
//! All connections to a server share one [`TokenSource`]; with a grant of each tenant, those of one
//! tenant. A token is kept until shortly before its end. One request renews it for all callers.
//! [`callers`] has a source for each caller, where callers have tokens of their own.

mod callers;
mod token;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use self::callers::CallerGrant;
pub(crate) use self::callers::CallerTokens;
pub(crate) use self::token::Token;
use super::client::SetupError;
use crate::common::ids::{ServerId, TenantId};
use crate::config::{Grant, ServerConfig};
use crate::oauth::OAuthError;
use crate::oauth::challenge::Challenge;
use crate::oauth::provider::{self, Provider};
use crate::oauth::request::{self, Form};
use crate::tenants::connections::{AccessToken, Connections, NoToken};

/// After a failure, no request for a token is made for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);
/// The most scopes that servers may ask for, beside the configured ones.
const ASKED_SCOPES_MAX: usize = 32;
/// How often a refused token has the authorization server looked for.
const MOVED_LOOK: Duration = Duration::from_secs(10);
/// The refusal of scopes that cannot be had (RFC 6749).
const INVALID_SCOPE: &str = "invalid_scope";

/// Why there is no token. Has nothing of any secret, and of the authorization server's own words an
/// error code alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the gateway has no access token for it: {0}")]
    Failed(OAuthError),
    /// The tenant has to connect itself first, or once more.
    #[error("the tenant has to connect itself to it")]
    NotConnected { server: String, url: String },
    /// No caller has one that could be exchanged.
    #[error("the gateway has no access token for it: no caller has come with a token yet")]
    NoCaller,
    #[error("the token of its caller has expired")]
    CallerExpired,
}

impl From<OAuthError> for TokenError {
    fn from(error: OAuthError) -> Self {
        Self::Failed(error)
    }
}

type Renewed = Result<Arc<Token>, TokenError>;
type Renewing = watch::Receiver<Option<Renewed>>;

/// The token sources of all servers. Servers of the same address and credentials share one.
#[derive(Default)]
pub struct TokenSources {
    all: Mutex<Vec<Arc<TokenSource>>>,
    callers: Mutex<HashMap<(TenantId, ServerId), Arc<CallerTokens>>>,
}

/// The source of the tokens that a connection's requests have.
pub(crate) enum ConnectionTokens {
    All(Arc<TokenSource>),
    /// Each caller's requests have their own.
    Callers(Arc<CallerTokens>),
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
        server: &ServerConfig,
        tenant: TenantGrant,
    ) -> Result<Option<ConnectionTokens>, SetupError> {
        let Some(config) = server.oauth() else { return Ok(None) };
        if config.grant.is_of_callers() {
            let tokens = self.of_callers(&tenant.tenant, &tenant.server, server);
            return Ok(Some(ConnectionTokens::Callers(tokens)));
        }
        self.shared(server, tenant).map(|source| source.map(ConnectionTokens::All))
    }

    /// Returns the source of the tokens that are not those of single callers.
    pub(in crate::backend) fn shared(
        &self,
        server: &ServerConfig,
        tenant: TenantGrant,
    ) -> Result<Option<Arc<TokenSource>>, SetupError> {
        let Some(config) = server.oauth() else { return Ok(None) };
        if config.grant == Grant::AuthorizationCode {
            // A tenant's instances are few, and the store keeps their tokens.
            return Ok(Some(Arc::new(TokenSource::new(TokenGrant::Tenant(tenant)))));
        }
        let mut all = self.all.lock();
        let url = server.url();
        let is_same = |it: &&Arc<TokenSource>| match &it.grant {
            TokenGrant::Gateway(provider) => provider.is_of(url, config),
            TokenGrant::Tenant(_) | TokenGrant::Caller(_) => false,
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

    /// Returns the tokens of a tenant's callers at a server.
    pub(crate) fn of_callers(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        config: &ServerConfig,
    ) -> Arc<CallerTokens> {
        let mut callers = self.callers.lock();
        let place = (tenant.clone(), server.clone());
        if let Some(known) = callers.get(&place).filter(|it| it.is_of(config)) {
            return known.clone();
        }
        callers.retain(|_, tokens| Arc::strong_count(tokens) > 1 || tokens.is_used());
        let tokens = Arc::new(CallerTokens::new(config));
        callers.insert(place, tokens.clone());
        tokens
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
    /// The own token of a caller.
    Caller(CallerGrant),
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
    /// When the authorization server was last looked for because of a refusal.
    looked: Option<Instant>,
}

impl TokenSource {
    fn new(grant: TokenGrant) -> Self {
        Self { grant, state: Mutex::default() }
    }

    /// Returns whether there is a valid token now.
    fn has_token(&self) -> bool {
        let now = Instant::now();
        self.state.lock().token.as_ref().is_some_and(|token| token.is_valid(now))
    }

    /// Returns whether there will be no token any more.
    fn has_ended(&self, now: Instant) -> bool {
        matches!(&self.grant, TokenGrant::Caller(caller) if caller.token.expires <= now)
    }

    /// Returns a valid token. Whoever comes while one is obtained waits for that one.
    pub(crate) async fn token(self: &Arc<Self>) -> Renewed {
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
        if let TokenGrant::Tenant(tenant) = &self.grant
            && !challenge.wants_scopes()
            && self.may_have_moved()
            && tenant.has_moved().await
        {
            return Err(tenant.not_connected());
        }
        let mut state = self.state.lock();
        let mut asks_more = false;
        for scope in &challenge.scopes {
            let is_configured = match &self.grant {
                TokenGrant::Gateway(provider) => provider.config.scopes.contains(scope),
                TokenGrant::Caller(caller) => caller.asks_for(scope),
                TokenGrant::Tenant(_) => true,
            };
            if !is_configured && state.asked.len() < ASKED_SCOPES_MAX {
                asks_more |= state.asked.insert(scope.clone());
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

    /// Returns whether to look if the server has another authorization server: now and then.
    fn may_have_moved(&self) -> bool {
        let (now, mut state) = (Instant::now(), self.state.lock());
        let is_due = state.looked.is_none_or(|at| now >= at + MOVED_LOOK);
        if is_due {
            state.looked = Some(now);
        }
        is_due
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
                if matches!(error, TokenError::Failed(error) if error.code() == Some(INVALID_SCOPE))
                {
                    // Calls that need no more than the configured ones go on.
                    state.asked.clear();
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
            TokenGrant::Caller(caller) => caller.obtain(asked).await,
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

    async fn has_moved(&self) -> bool {
        let Some(connections) = &self.connections else { return false };
        connections.has_moved(&self.tenant, &self.server).await
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
    form.add_some("resource", provider.resource(&server));
    let tokens = request::tokens(&provider.fetch, &server, &client, form).await?;
    Ok(Token::new(&tokens.access, tokens.asked, tokens.life, 0))
}

async fn renewed(mut renewing: Renewing) -> Renewed {
    match renewing.wait_for(Option::is_some).await {
        Ok(renewed) => renewed.clone().expect("waited for"),
        Err(_) => Err(OAuthError::new("its request has failed").into()),
    }
}
