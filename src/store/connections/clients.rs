//! Clients that the gateway has registered at authorization servers.

use super::super::{Result, Store, with_timeout};
use crate::common::ids::ServerId;

impl Store {
    pub async fn oauth_client(&self, server: &ServerId, issuer: &str) -> Result<Option<String>> {
        let client = sqlx::query_scalar(
            "SELECT sealed FROM oauth_clients WHERE server = $1 AND issuer = $2",
        );
        let client = client.bind(server.as_str()).bind(issuer);
        with_timeout(client.fetch_optional(&self.pool()?)).await
    }

    /// Keeps a client. Replaces only the one that was found unfit, so that of two gateways that
    /// register at once, both use one. Returns the client that is kept.
    pub async fn keep_oauth_client(
        &self,
        server: &ServerId,
        issuer: &str,
        sealed: &str,
        unfit: Option<&str>,
    ) -> Result<Option<String>> {
        let keep = sqlx::query(
            "INSERT INTO oauth_clients (server, issuer, sealed) VALUES ($1, $2, $3) \
             ON CONFLICT (server, issuer) DO UPDATE SET sealed = excluded.sealed \
             WHERE oauth_clients.sealed = $4",
        );
        let keep = keep.bind(server.as_str()).bind(issuer).bind(sealed).bind(unfit);
        with_timeout(keep.execute(&self.pool()?)).await?;
        self.oauth_client(server, issuer).await
    }

    /// Forgets the clients of a server.
    pub async fn forget_oauth_clients(&self, server: &ServerId) -> Result<()> {
        let forget = sqlx::query("DELETE FROM oauth_clients WHERE server = $1");
        with_timeout(forget.bind(server.as_str()).execute(&self.pool()?)).await.map(drop)
    }
}
