//! A valid token of a tenant's connection. Of several gateways, one refreshes it, and the others
//! wait for that one.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Connections;
use super::held::{Held, of_connection};
use crate::common::ids::{ServerId, TenantId};
use crate::common::seal::Purpose;
use crate::common::secret::Secret;
use crate::oauth::OAuthError;
use crate::oauth::provider::known_client;
use crate::oauth::request::{self, Form};
use crate::store::{Actor, StoreError, StoredConnection};

/// A token is renewed this long before its end, or after nine tenths of its life if that is later.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// A gateway has the right to refresh for this time. Longer than a request to the authorization
/// server, and the tries to note its result.
const LEASE: Duration = Duration::from_secs(30);
/// The longest wait for another gateway that refreshes.
const WAIT_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tries to note new tokens while the store is away: the old ones may be of no use any more.
const NOTE_TRIES: u32 = 5;
const NOTE_PAUSE: Duration = Duration::from_secs(1);
/// The scopes that a server may ask for beside those that a tenant has agreed to, in bytes.
const ASKED_LEN_MAX: usize = 4096;
/// The refusal of a refresh token that is of no use any more (RFC 6749).
const INVALID_GRANT: &str = "invalid_grant";

/// A token for one tenant.
pub struct AccessToken {
    pub secret: Secret,
    pub obtained: Instant,
    /// `None` if the authorization server did not say.
    pub life: Option<Duration>,
    /// Counts the tokens of the connection.
    pub version: i64,
}

/// Why there is no token.
#[derive(Debug)]
pub enum NoToken {
    /// The tenant has not agreed, or does not any more.
    NotConnected,
    Failed(OAuthError),
}

impl AccessToken {
    fn is_valid(&self) -> bool {
        self.life.is_none_or(|life| self.obtained.elapsed() < life)
    }

    fn is_due(&self) -> bool {
        let before_end = |life: Duration| life.saturating_sub(RENEW_BEFORE.min(life / 10));
        self.life.is_some_and(|life| self.obtained.elapsed() >= before_end(life))
    }
}

impl From<StoreError> for NoToken {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "the tokens of a tenant cannot be read now");
        Self::Failed(OAuthError::new("the store cannot be asked now"))
    }
}

impl Connections {
    /// Returns a valid token; not the one of version `refused`, which the server does not take.
    pub async fn token(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        refused: Option<i64>,
    ) -> Result<AccessToken, NoToken> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            let stored = self.store.connection(tenant, server).await?;
            let stored = stored.ok_or(NoToken::NotConnected)?;
            let held = self.open(tenant, server, &stored).ok_or(NoToken::NotConnected)?;
            self.note_asks(tenant, server, held.lacks_any(&stored.asked));
            let token = held.access_token(stored.version);
            let is_usable = token.is_valid() && refused != Some(stored.version);
            if is_usable && (!token.is_due() || held.refresh.is_none()) {
                return Ok(token);
            }
            if held.refresh.is_none() {
                if !token.is_valid() {
                    self.end(tenant, server, &stored).await?;
                }
                return Err(NoToken::NotConnected);
            }
            let lease_ms = LEASE.as_millis() as i64;
            if self.store.lease_connection(tenant, server, &stored, lease_ms).await? {
                return match self.refresh(tenant, server, &stored, &held).await {
                    // The token is good for a while; a failure is not one yet.
                    Err(NoToken::Failed(_)) if is_usable => Ok(token),
                    refreshed => refreshed,
                };
            }
            if is_usable {
                return Ok(token);
            }
            if Instant::now() >= until {
                let problem = "another gateway has refreshed it for too long";
                return Err(NoToken::Failed(OAuthError::new(problem)));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Refreshes tokens that this gateway has leased.
    async fn refresh(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        stored: &StoredConnection,
        held: &Held,
    ) -> Result<AccessToken, NoToken> {
        match self.ask_for_refresh(server, held).await {
            Ok(renewed) => {
                self.note(tenant, server, stored, &renewed).await;
                Ok(renewed.access_token(stored.version + 1))
            }
            Err(error) if error.code() == Some(INVALID_GRANT) => {
                tracing::info!(
                    %tenant, %server,
                    "the consent of tenant `{tenant}` to server `{server}` has ended at its \
                     authorization server: the tenant has to connect itself again"
                );
                self.end(tenant, server, stored).await?;
                Err(NoToken::NotConnected)
            }
            Err(error) => {
                tracing::warn!(%tenant, %server, %error, "a token could not be refreshed: {error}");
                let _ = self.store.renew_connection(tenant, server, stored, None).await;
                Err(NoToken::Failed(error))
            }
        }
    }

    /// Ends a connection that is of no use any more.
    async fn end(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        stored: &StoredConnection,
    ) -> Result<(), StoreError> {
        let (actor, id) = (Actor::tenant(tenant), Some(stored.id.as_str()));
        self.store.disconnect(&actor, tenant.name(), server, id).await?;
        let _ = self.directory.secrets().load().await;
        Ok(())
    }

    async fn ask_for_refresh(&self, server: &ServerId, held: &Held) -> Result<Held, OAuthError> {
        let provider = self.provider(server).await?;
        let mut form = Form::new("refresh_token");
        form.add("refresh_token", held.refresh.as_deref().unwrap_or_default());
        form.add_some("resource", provider.resource(&held.server));
        let secret = held.client.as_ref().and_then(|it| it.secret.clone()).map(Secret::new);
        let client = match &held.client {
            Some(known) => known_client(known, secret.as_ref()),
            None => provider.client().ok_or_else(|| OAuthError::new("`client_id` is gone"))?,
        };
        let tokens = request::tokens(&provider.fetch, &held.server, &client, form).await?;
        Ok(held.renewed(tokens))
    }

    /// Notes new tokens. While the store is away they are used without being kept.
    async fn note(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        stored: &StoredConnection,
        renewed: &Held,
    ) {
        let context = of_connection(tenant, server);
        let sealed = self.sealer.seal(Purpose::Connection, &context, renewed);
        for _ in 0..NOTE_TRIES {
            match self.store.renew_connection(tenant, server, stored, sealed.as_deref()).await {
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%tenant, %server, %error, "new tokens could not be kept yet");
                }
            }
            sleep(NOTE_PAUSE).await;
        }
    }

    pub(super) fn open(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        stored: &StoredConnection,
    ) -> Option<Held> {
        let context = of_connection(tenant, server);
        let held = self.sealer.open(Purpose::Connection, &context, &stored.sealed);
        if held.is_none() {
            tracing::error!(
                %tenant, %server,
                "the tokens of tenant `{tenant}` for server `{server}` are stored, but none of \
                 `secrets.keys` opens them"
            );
        }
        held
    }

    /// Ends a tenant's connection if the server has another authorization server by now, whose
    /// tokens alone are of use. Returns whether it has.
    pub async fn has_moved(&self, tenant: &TenantId, server: &ServerId) -> bool {
        let Ok(Some(stored)) = self.store.connection(tenant, server).await else { return false };
        let Some(held) = self.open(tenant, server, &stored) else { return false };
        let Ok(provider) = self.provider(server).await else { return false };
        provider.forget();
        let Ok(now) = provider.authorization_server().await else { return false };
        let has_moved = now.issuer != held.server.issuer;
        if has_moved {
            tracing::info!(
                %tenant, %server,
                "server `{server}` has another authorization server now: tenant `{tenant}` has to \
                 connect itself again"
            );
            let _ = self.end(tenant, server, &stored).await;
        }
        has_moved
    }

    /// Notes the scopes that a server asks for. Returns whether the tenant was not asked for all of
    /// them yet.
    pub async fn note_asked(
        &self,
        tenant: &TenantId,
        server: &ServerId,
        scopes: &[String],
    ) -> bool {
        let Ok(Some(stored)) = self.store.connection(tenant, server).await else { return false };
        let Some(held) = self.open(tenant, server, &stored) else { return false };
        let known: Vec<&str> = stored.asked.split(' ').filter(|it| !it.is_empty()).collect();
        let lacks = |scope: &&String| !held.requested.contains(scope);
        let mut missing = scopes.iter().filter(lacks).peekable();
        if missing.peek().is_none() {
            return false;
        }
        self.note_asks(tenant, server, true);
        let mut asked = known.clone();
        asked.extend(missing.map(String::as_str).filter(|scope| !known.contains(scope)));
        let asked = asked.join(" ");
        if asked != stored.asked && asked.len() <= ASKED_LEN_MAX {
            let _ = self.store.note_asked_scopes(tenant, server, &asked).await;
        }
        true
    }
}
