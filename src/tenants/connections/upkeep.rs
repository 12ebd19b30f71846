//! Revokes tokens that nobody may use any more (RFC 7009): of connections that were ended or
//! replaced, of tenants that are gone, and of servers that are configured no more.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Connections;
use super::held::{Held, of_connection};
use crate::common::ids::ServerId;
use crate::common::seal::Purpose;
use crate::common::secret::Secret;
use crate::config::ServerConfig;
use crate::oauth::OAuthError;
use crate::oauth::client::{Client, Credential};
use crate::oauth::provider::known_client;
use crate::oauth::request;
use crate::store::{Revocation, StoreError};

/// How often to look for tokens to revoke that another gateway has left.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often to look for connections to servers that are configured no more.
const SERVERS_EVERY: Duration = Duration::from_secs(60);
/// A server that no gateway has configured for this time is gone: it may have been left out by
/// mistake. One that a reload removes is gone at once.
const GONE_AFTER: Duration = Duration::from_secs(60 * 60);
/// Tokens that are taken at once.
const AT_ONCE: u32 = 8;
/// Taken for this time, and tried again after it.
const LEASE: Duration = Duration::from_secs(60);
/// An authorization server that has failed so often keeps the tokens until their end.
const ATTEMPTS_MAX: u32 = 10;

impl Connections {
    /// Runs for ever.
    pub async fn run(&self) {
        if self.sealer.is_empty() {
            return std::future::pending().await;
        }
        let mut servers_at = Instant::now();
        loop {
            tokio::select! {
                () = self.due.notified() => servers_at = Instant::now(),
                () = sleep(LOOK_EVERY) => {}
            }
            let mut done = Ok(());
            if servers_at <= Instant::now() {
                done = self.end_those_without_server().await;
                servers_at = Instant::now() + SERVERS_EVERY;
            }
            if let Err(error) = done.and(self.revoke_due().await) {
                tracing::debug!(%error, "tokens that are to be revoked cannot be read now");
            }
        }
    }

    async fn end_those_without_server(&self) -> Result<(), StoreError> {
        let servers = self.servers.load_full();
        let ids = |of: &HashMap<ServerId, ServerConfig>| of.keys().cloned().collect::<Vec<_>>();
        let (configured, removed) = (ids(&servers.configured), ids(&servers.removed));
        let after_ms = GONE_AFTER.as_millis() as i64;
        let ended = self.store.end_connections_without_server(&configured, &removed, after_ms);
        let ended = ended.await?;
        if ended > 0 {
            tracing::info!(ended, "{ended} connections of tenants to removed servers were ended");
        }
        Ok(())
    }

    async fn revoke_due(&self) -> Result<(), StoreError> {
        loop {
            let lease_ms = LEASE.as_millis() as i64;
            let taken = self.store.take_revocations(AT_ONCE, lease_ms).await?;
            if taken.is_empty() {
                return Ok(());
            }
            for revocation in taken {
                self.settle(&revocation).await?;
            }
        }
    }

    async fn settle(&self, revocation: &Revocation) -> Result<(), StoreError> {
        let Revocation { id, tenant, server, sealed, attempts } = revocation;
        let context = of_connection(tenant, server);
        let held = self.sealer.open::<Held>(Purpose::Connection, &context, sealed);
        let revoked = match held {
            Some(held) => self.revoke(server, &held).await,
            // No key opens it any more.
            None => Ok(()),
        };
        match revoked {
            Err(error) if *attempts < ATTEMPTS_MAX => {
                tracing::debug!(%tenant, %server, %error, "a token could not be revoked yet");
                Ok(())
            }
            Err(error) => {
                tracing::warn!(
                    %tenant, %server, %error,
                    "a token of tenant `{tenant}` for `{server}` could not be revoked: {error}"
                );
                self.store.end_revocation(id).await
            }
            Ok(()) => self.store.end_revocation(id).await,
        }
    }

    /// Revokes the refresh token, and the access token, which may outlive it.
    async fn revoke(&self, server: &ServerId, held: &Held) -> Result<(), OAuthError> {
        if held.server.revocation_endpoint.is_none() {
            return Ok(());
        }
        let Ok(provider) = self.provider(server).await else {
            // The server was removed before this gateway has started: nobody knows the way.
            return Ok(());
        };
        let secret = held.client.as_ref().and_then(|it| it.secret.clone()).map(Secret::new);
        let client = match &held.client {
            Some(known) => known_client(known, secret.as_ref()),
            None => provider.client().unwrap_or(Client { id: "", credential: Credential::None }),
        };
        let refresh = held.refresh.iter().map(|token| (token, "refresh_token"));
        for (token, hint) in refresh.chain([(&held.access, "access_token")]) {
            let token = Secret::new(token.clone());
            let fetch = &provider.fetch;
            request::revoke(fetch, &held.server, &client, &token, hint).await?;
        }
        Ok(())
    }
}
