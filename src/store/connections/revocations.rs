//! Tokens that are to be revoked. A gateway takes some for a while; if it is killed, any gateway
//! takes them again.

use sqlx::AssertSqlSafe;

use super::super::tenants::skip_corrupt;
use super::super::{Result, Store, with_timeout};
use crate::common::ids::{ServerId, TenantGeneration, TenantId, TenantName};

/// Tokens that are this gateway's to revoke, for a while.
pub struct Revocation {
    pub id: String,
    pub tenant: TenantId,
    pub server: ServerId,
    pub sealed: String,
    /// This one included.
    pub attempts: u32,
}

type Row = (String, String, i64, String, String, i64);

impl Store {
    /// Takes some for `lease_ms`. Of several gateways, one gets each.
    pub async fn take_revocations(&self, limit: u32, lease_ms: i64) -> Result<Vec<Revocation>> {
        let clock = self.0.kind.clock();
        let text = format!(
            "UPDATE oauth_revocations SET attempts = attempts + 1, due = ({clock}) + $2 \
             WHERE due <= ({clock}) AND id IN (SELECT id FROM oauth_revocations \
             WHERE due <= ({clock}) ORDER BY due LIMIT $1) \
             RETURNING id, tenant, generation, server, sealed, attempts"
        );
        let rows = sqlx::query_as::<_, Row>(AssertSqlSafe(text));
        let rows = rows.bind(i64::from(limit)).bind(lease_ms);
        let rows = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        Ok(rows.into_iter().map(read).filter_map(skip_corrupt).collect())
    }

    pub async fn end_revocation(&self, id: &str) -> Result<()> {
        let end = sqlx::query("DELETE FROM oauth_revocations WHERE id = $1");
        with_timeout(end.bind(id).execute(&self.pool()?)).await.map(drop)
    }
}

fn read((id, tenant, generation, server, sealed, attempts): Row) -> Result<Revocation> {
    let tenant = TenantName::parse(&tenant)?.of(TenantGeneration::from_number(generation));
    let (server, attempts) = (ServerId::parse(&server)?, u32::try_from(attempts));
    Ok(Revocation { id, tenant, server, sealed, attempts: attempts.unwrap_or(u32::MAX) })
}
