//! The tokens of a tenant's callers at one server: each caller's own token is exchanged.
//!
//! The gateway's own requests, above all the handshake and the lists, have the token of a caller,
//! too: a server of each tenant shows its callers what one of them may see.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use super::{Renewed, Token, TokenError, TokenGrant, TokenSource};
use crate::config::ServerConfig;
use crate::oauth::OAuthError;
use crate::oauth::exchange::exchanged;
use crate::oauth::provider::Provider;
use crate::tenants::oauth::CallerToken;

/// Tokens of callers that are exchanged at once. The one that was not used for longest gives way.
const CALLERS_MAX: usize = 256;
/// A failure that is not a caller's is told to the operator once in this time.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// A start waits so long for a caller's token: another request exchanges it.
const OWN_WAIT_MAX: Duration = Duration::from_secs(15);

/// The tokens of a tenant's callers at one server.
pub(crate) struct CallerTokens {
    config: ServerConfig,
    /// Made by the first exchange.
    provider: OnceCell<Arc<Provider>>,
    callers: Mutex<HashMap<[u8; 32], Exchanged>>,
    /// When the last failure was told.
    told: Mutex<Option<Instant>>,
    /// The tokens that the gateway's own requests have.
    own: watch::Sender<Option<Arc<TokenSource>>>,
}

struct Exchanged {
    source: Arc<TokenSource>,
    used: Instant,
}

/// The right of one caller.
pub(super) struct CallerGrant {
    tokens: Arc<CallerTokens>,
    pub(super) token: Arc<CallerToken>,
}

impl CallerTokens {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self {
            config: config.clone(),
            provider: OnceCell::new(),
            callers: Mutex::default(),
            told: Mutex::default(),
            own: watch::Sender::new(None),
        }
    }

    pub(super) fn is_of(&self, config: &ServerConfig) -> bool {
        self.config.url() == config.url() && self.config.oauth() == config.oauth()
    }

    /// Exchanges a caller's token, unless that is done already. Returns the source of the tokens
    /// that the caller's requests have.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        token: &Arc<CallerToken>,
    ) -> Result<Arc<TokenSource>, TokenError> {
        let source = self.source(token);
        source.token().await?;
        self.own.send_if_modified(|own| {
            let is_good = own.as_ref().is_some_and(|own| own.has_token());
            if !is_good {
                *own = Some(source.clone());
            }
            !is_good
        });
        Ok(source)
    }

    fn source(self: &Arc<Self>, token: &Arc<CallerToken>) -> Arc<TokenSource> {
        let (now, mut callers) = (Instant::now(), self.callers.lock());
        if let Some(known) = callers.get_mut(&token.hash()) {
            known.used = now;
            return known.source.clone();
        }
        if callers.len() >= CALLERS_MAX {
            callers.retain(|_, it| !it.source.has_ended(now));
        }
        if callers.len() >= CALLERS_MAX
            && let Some(oldest) = callers.iter().min_by_key(|(_, it)| it.used)
        {
            let oldest = *oldest.0;
            callers.remove(&oldest);
        }
        let grant = CallerGrant { tokens: self.clone(), token: token.clone() };
        let source = Arc::new(TokenSource::new(TokenGrant::Caller(grant)));
        callers.insert(token.hash(), Exchanged { source: source.clone(), used: now });
        source
    }

    /// Returns the source of tokens for the gateway's own requests.
    pub(in crate::backend::http) fn own(&self) -> Result<Arc<TokenSource>, TokenError> {
        let own = self.own.borrow().clone();
        own.filter(|own| own.has_token()).ok_or(TokenError::NoCaller)
    }

    /// Waits until there are tokens for the gateway's own requests.
    pub(crate) async fn ready(&self) {
        let mut own = self.own.subscribe();
        let has_token =
            |own: &Option<Arc<TokenSource>>| own.as_ref().is_some_and(|own| own.has_token());
        let _ = timeout(OWN_WAIT_MAX, own.wait_for(has_token)).await;
    }

    /// Returns whether some caller's token may still be of use.
    pub(super) fn is_used(&self) -> bool {
        let (now, mut callers) = (Instant::now(), self.callers.lock());
        callers.retain(|_, it| !it.source.has_ended(now));
        !callers.is_empty()
    }

    fn tell(&self, server: &str, error: &OAuthError) {
        let (now, mut told) = (Instant::now(), self.told.lock());
        if told.is_none_or(|told| now >= told + TOLD_EVERY) {
            *told = Some(now);
            tracing::warn!(server, %error, "no caller's token could be exchanged: {error}");
        }
    }

    async fn provider(&self) -> Result<Arc<Provider>, OAuthError> {
        let make = || async {
            let config = self.config.clone();
            // All CAs that the system trusts are read first.
            let made = spawn_blocking(move || {
                config.oauth().map(|oauth| Provider::new(config.url(), oauth))
            });
            let made = made.await.map_err(|_| OAuthError::new("the gateway failed"))?;
            let made = made.ok_or_else(|| OAuthError::new("the server has no `oauth`"))?;
            made.map(Arc::new).map_err(|error| OAuthError::new(error.to_string()))
        };
        self.provider.get_or_try_init(make).await.cloned()
    }
}

impl CallerGrant {
    pub(super) async fn obtain(&self, asked: BTreeSet<String>) -> Renewed {
        let now = Instant::now();
        if self.token.expires <= now {
            return Err(TokenError::CallerExpired);
        }
        let provider = self.tokens.provider().await?;
        let scopes: BTreeSet<_> = provider.config.scopes.iter().cloned().chain(asked).collect();
        let exchanged = exchanged(&provider, self.token.secret(), &scopes).await;
        let tokens = exchanged.inspect_err(|error| {
            // A refusal is about the caller.
            if error.code().is_none() {
                self.tokens.tell(provider.host(), error);
                provider.forget();
            }
        })?;
        let token = Token::new(&tokens.access, tokens.asked, tokens.life, 0);
        Ok(Arc::new(token.until(self.token.expires)))
    }

    /// Returns whether the configuration asks for a scope.
    pub(super) fn asks_for(&self, scope: &String) -> bool {
        self.tokens.config.oauth().is_some_and(|oauth| oauth.scopes.contains(scope))
    }
}
