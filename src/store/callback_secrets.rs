//! The secrets that callbacks are signed with, sealed. The store cannot open them.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::{Actor, Result, Rotated, Store, StoreError, Tx, audit, with_timeout};
use crate::common::ids::TenantName;

/// Has no `Debug`: sealed values must not be logged either.
#[derive(Clone, PartialEq, Eq)]
pub struct CallbackSecrets {
    pub sealed: String,
    /// The one before, while it signs too.
    pub previous: Option<String>,
}

impl Store {
    /// Returns the secrets that sign a tenant's callbacks now.
    pub async fn callback_secrets(&self, tenant: &TenantName) -> Result<Option<CallbackSecrets>> {
        let text = format!(
            "SELECT sealed, CASE WHEN until > ({}) THEN previous END FROM callback_secrets \
             WHERE tenant = $1",
            self.0.kind.clock()
        );
        let row = sqlx::query_as::<_, (String, Option<String>)>(AssertSqlSafe(text));
        let row = row.bind(tenant.as_str().to_owned());
        let row = with_timeout(row.fetch_optional(&self.pool()?)).await?;
        Ok(row.map(|(sealed, previous)| CallbackSecrets { sealed, previous }))
    }

    /// Adds the first secret of a tenant. The caller checks that the tenant exists.
    pub async fn add_callback_secret(
        &self,
        actor: &Actor,
        tenant: &TenantName,
        sealed: &str,
    ) -> Result<()> {
        with_timeout(async {
            let mut change = self.change().await?;
            let added = sqlx::query(
                "INSERT INTO callback_secrets (tenant, sealed) VALUES ($1, $2) \
                 ON CONFLICT DO NOTHING",
            );
            let added = added.bind(tenant.as_str()).bind(sealed).execute(&mut *change).await?;
            if added.rows_affected() == 0 {
                let name = format!("callback secret of tenant `{tenant}`");
                return Err(StoreError::AlreadyExists(name));
            }
            note(&mut change, actor, "callback_secret.create", tenant, json!({})).await?;
            Ok(change.commit().await?)
        })
        .await
    }

    /// Replaces a tenant's secret. The old one signs, too, for `overlap_ms`.
    pub async fn rotate_callback_secret(
        &self,
        actor: &Actor,
        tenant: &TenantName,
        sealed: &str,
        overlap_ms: i64,
    ) -> Result<()> {
        let text = format!(
            "UPDATE callback_secrets SET previous = sealed, sealed = $2, until = ({}) + $3 \
             WHERE tenant = $1",
            self.0.kind.clock()
        );
        with_timeout(async {
            let mut change = self.change().await?;
            let rotated = sqlx::query(AssertSqlSafe(text)).bind(tenant.as_str()).bind(sealed);
            let rotated = rotated.bind(overlap_ms).execute(&mut *change).await?;
            must_be_there(rotated.rows_affected(), tenant)?;
            let detail = json!({"overlap_ms": overlap_ms});
            note(&mut change, actor, "callback_secret.rotate", tenant, detail).await?;
            Ok::<_, StoreError>(change.commit().await?)
        })
        .await
    }

    pub async fn remove_callback_secret(&self, actor: &Actor, tenant: &TenantName) -> Result<()> {
        with_timeout(async {
            let mut change = self.change().await?;
            must_be_there(delete(&mut change, tenant).await?, tenant)?;
            note(&mut change, actor, "callback_secret.remove", tenant, json!({})).await?;
            Ok::<_, StoreError>(change.commit().await?)
        })
        .await
    }

    /// Passes all secrets to `reseal`, and stores the sealed values that it returns. The plain
    /// values stay the same.
    pub async fn reseal_callback_secrets(
        &self,
        actor: &Actor,
        mut reseal: impl FnMut(&TenantName, &str) -> Option<String>,
    ) -> Result<Rotated> {
        let rows = sqlx::query_as::<_, (String, String, Option<String>)>(
            "SELECT tenant, sealed, previous FROM callback_secrets",
        );
        let rows = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        let mut rotated = Rotated::default();
        for (tenant, sealed, previous) in rows {
            let tenant = TenantName::parse(&tenant)?;
            for (column, sealed) in [("sealed", Some(sealed)), ("previous", previous)] {
                let Some(sealed) = sealed else { continue };
                rotated.seen += 1;
                let Some(anew) = reseal(&tenant, &sealed) else { continue };
                // Unless another command has changed it meanwhile.
                let text = format!(
                    "UPDATE callback_secrets SET {column} = $3 WHERE tenant = $1 AND {column} = $2"
                );
                let reseal = sqlx::query(AssertSqlSafe(text)).bind(tenant.as_str().to_owned());
                let (pool, reseal) = (self.pool()?, reseal.bind(sealed).bind(anew));
                rotated.resealed += with_timeout(reseal.execute(&pool)).await?.rows_affected();
            }
        }
        if rotated.resealed > 0 {
            let (target, detail) = ("callback_secrets", json!({"resealed": rotated.resealed}));
            with_timeout(async {
                let mut change = self.change().await?;
                audit::note(&mut change, actor, "secret.rotate", target.to_owned(), detail).await?;
                Ok::<_, StoreError>(change.commit().await?)
            })
            .await?;
        }
        Ok(rotated)
    }
}

/// Deletes a tenant's secrets. Returns how many rows there were.
pub(super) async fn delete(change: &mut Tx, tenant: &TenantName) -> Result<u64> {
    let deleted = sqlx::query("DELETE FROM callback_secrets WHERE tenant = $1");
    Ok(deleted.bind(tenant.as_str()).execute(&mut **change).await?.rows_affected())
}

fn must_be_there(rows: u64, tenant: &TenantName) -> Result<()> {
    match rows {
        0 => Err(StoreError::NotFound(format!("callback secret of tenant `{tenant}`"))),
        _ => Ok(()),
    }
}

/// Writes an audit entry without the value.
async fn note(
    change: &mut Tx,
    actor: &Actor,
    action: &str,
    tenant: &TenantName,
    detail: Value,
) -> Result<()> {
    let target = format!("tenant:{tenant}");
    audit::note_of_tenant(change, actor, action, target, tenant, detail).await
}
