//! Tenants that are about to connect themselves.

use sqlx::AssertSqlSafe;

use super::super::{Result, Store, StoreError, with_timeout};
use crate::common::ids::{ServerId, TenantId};

/// The most that one tenant may have begun; an older one ends then.
const STATES_PER_TENANT: i64 = 16;

/// The beginning of a connection.
pub struct NewState<'a> {
    /// A hash of the text that goes through the browser.
    pub state: &'a str,
    pub tenant: &'a TenantId,
    pub server: &'a ServerId,
    pub sealed: &'a str,
    pub life_ms: i64,
}

impl Store {
    pub async fn add_state(&self, new: NewState<'_>) -> Result<()> {
        let clock = self.0.kind.clock();
        let tenant = new.tenant.name().to_string();
        with_timeout(async {
            let mut write = self.write().await?;
            let over = format!(
                "DELETE FROM oauth_states WHERE expires <= ({clock}) OR state IN (\
                 SELECT state FROM oauth_states WHERE tenant = $1 \
                 ORDER BY expires DESC LIMIT 100 OFFSET {})",
                STATES_PER_TENANT - 1
            );
            sqlx::query(AssertSqlSafe(over)).bind(tenant.clone()).execute(&mut *write).await?;
            let insert = format!(
                "INSERT INTO oauth_states (state, tenant, generation, server, sealed, expires) \
                 VALUES ($1, $2, $3, $4, $5, ({clock}) + $6)"
            );
            sqlx::query(AssertSqlSafe(insert))
                .bind(new.state.to_owned())
                .bind(tenant)
                .bind(new.tenant.generation().number())
                .bind(new.server.to_string())
                .bind(new.sealed.to_owned())
                .bind(new.life_ms)
                .execute(&mut *write)
                .await?;
            Ok::<_, StoreError>(write.commit().await?)
        })
        .await
    }

    /// Takes what a tenant has begun: its server, and the sealed rest. Of several gateways, one
    /// gets it, once.
    pub async fn take_state(
        &self,
        tenant: &TenantId,
        state: &str,
    ) -> Result<Option<(ServerId, String)>> {
        let text = format!(
            "DELETE FROM oauth_states WHERE state = $1 AND tenant = $2 AND generation = $3 \
             AND expires > ({}) RETURNING server, sealed",
            self.0.kind.clock()
        );
        let taken = sqlx::query_as::<_, (String, String)>(AssertSqlSafe(text));
        let taken = taken.bind(state.to_owned()).bind(tenant.name().to_string());
        let taken = taken.bind(tenant.generation().number());
        let taken = with_timeout(taken.fetch_optional(&self.pool()?)).await?;
        taken.map(|(server, sealed)| Ok((ServerId::parse(&server)?, sealed))).transpose()
    }
}
