//! The audit log.

use serde_json::{Value, json};
use uuid::Uuid;

use super::tenants::present_generation;
use super::{Result, Store, StoreError, Tx, now, with_timeout};
use crate::common::ids::{TenantGeneration, TenantId, TenantName};
use crate::common::keys::KeyId;

/// Names who makes a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: String,
    /// A tenant that changes what is its own.
    tenant: Option<TenantId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Later ones are greater.
    pub id: String,
    /// In milliseconds since 1970.
    pub at: i64,
    /// Such as `cli:root`.
    pub actor: String,
    /// Such as `key.create`.
    pub action: String,
    /// Such as `tenant:acme` or `key:0123456789AB`.
    pub target: String,
    /// The state after the change.
    pub detail: Value,
}

impl Actor {
    pub fn cli(user: &str) -> Self {
        Self::named(format!("cli:{user}"))
    }

    pub(super) fn gateway() -> Self {
        Self::named("gateway".to_owned())
    }

    pub fn tenant(id: &TenantId) -> Self {
        Self { name: format!("tenant:{id}"), tenant: Some(id.clone()) }
    }

    pub fn key(id: KeyId) -> Self {
        Self::named(format!("key:{id}"))
    }

    /// Names the one who has opened the sign-in link of `serve`.
    pub fn link() -> Self {
        Self::named("link".to_owned())
    }

    fn named(name: String) -> Self {
        Self { name, tenant: None }
    }

    /// Fails if the actor is a tenant that was removed meanwhile: the change would be for the next
    /// tenant of that name.
    pub(super) async fn must_be_present(&self, change: &mut Tx) -> Result<()> {
        let Some(tenant) = &self.tenant else { return Ok(()) };
        match present_generation(change, tenant.name()).await? == tenant.generation() {
            true => Ok(()),
            false => Err(StoreError::NotFound(format!("tenant `{tenant}` any more"))),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

impl Store {
    /// Writes an entry about a change that is not made in the store.
    pub async fn note_change(
        &self,
        actor: &Actor,
        action: &str,
        target: String,
        detail: Value,
    ) -> Result<()> {
        let change = async {
            let mut change = self.change().await?;
            note(&mut change, actor, action, target, detail).await?;
            Ok::<(), StoreError>(change.commit().await?)
        };
        with_timeout(change).await
    }

    /// Returns the latest changes first: at most `limit`, and only those before the id `before`.
    pub async fn audit(&self, limit: u32, before: Option<&str>) -> Result<Vec<AuditEntry>> {
        let entries = sqlx::query_as(
            "SELECT id, at, actor, action, target, detail FROM audit \
             WHERE $1 IS NULL OR id < $1 ORDER BY id DESC LIMIT $2",
        )
        .bind(before)
        .bind(i64::from(limit));
        let rows: Vec<(String, i64, String, String, String, String)> =
            with_timeout(entries.fetch_all(&self.pool()?)).await?;
        let entry = |(id, at, actor, action, target, detail): (_, _, _, _, _, String)| {
            let detail = serde_json::from_str(&detail)
                .map_err(|error| StoreError::Corrupt(format!("audit entry {id}: {error}")))?;
            Ok(AuditEntry { id, at, actor, action, target, detail })
        };
        rows.into_iter().map(entry).collect()
    }
}

/// Writes an entry about what belongs to a tenant. Its generation is added: the next tenant of this
/// name is another.
pub(super) async fn note_of_tenant(
    transaction: &mut Tx,
    actor: &Actor,
    action: &str,
    target: String,
    tenant: &TenantName,
    mut detail: Value,
) -> Result<()> {
    let generation = present_generation(transaction, tenant).await?;
    if generation != TenantGeneration::BUILT_IN {
        detail["generation"] = json!(generation.to_string());
    }
    note(transaction, actor, action, target, detail).await
}

/// Writes an entry in the transaction that makes the change.
pub(super) async fn note(
    transaction: &mut Tx,
    actor: &Actor,
    action: &str,
    target: String,
    detail: Value,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO audit (id, at, actor, action, target, detail) VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(Uuid::now_v7().to_string())
    .bind(now())
    .bind(&actor.name)
    .bind(action)
    .bind(target)
    .bind(detail.to_string())
    .execute(&mut **transaction)
    .await?;
    Ok(())
}
