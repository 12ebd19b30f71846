//! API keys. The store has only their hashes.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::tenants::skip_corrupt;
use super::{Actor, Result, Store, StoreError, Tx, audit, now, placeholders, with_timeout};
use crate::common::ids::TenantName;
use crate::common::keys::{ApiKey, KeyHash, KeyId};

const USES_PER_STATEMENT: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyOwner {
    Tenant(TenantName),
    Admin,
}

/// Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    pub id: KeyId,
    pub owner: KeyOwner,
    pub hash: KeyHash,
    pub name: Option<String>,
    pub created: i64,
    pub expires: Option<i64>,
    pub revoked: Option<i64>,
    /// As far as it has been written.
    pub last_used: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    Active,
    Expired,
    Revoked,
}

/// A new key. It cannot be shown again.
#[derive(Debug)]
pub struct NewKey {
    pub key: ApiKey,
    pub record: KeyRecord,
}

type KeyRow =
    (String, Option<String>, String, Option<String>, i64, Option<i64>, Option<i64>, Option<i64>);

impl KeyRecord {
    pub fn state(&self, now: i64) -> KeyState {
        match (self.revoked, self.expires) {
            (Some(_), _) => KeyState::Revoked,
            (None, Some(expires)) if expires <= now => KeyState::Expired,
            _ => KeyState::Active,
        }
    }
}

impl KeyState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl KeyOwner {
    /// Two for a tenant, so that one can replace the other. Administrators are several people, each
    /// with a key.
    pub fn active_keys_max(&self) -> usize {
        match self {
            Self::Tenant(_) => 2,
            Self::Admin => 20,
        }
    }

    /// Returns the value of the column `tenant`.
    fn tenant(&self) -> Option<&str> {
        match self {
            Self::Tenant(id) => Some(id.as_str()),
            Self::Admin => None,
        }
    }
}

impl Store {
    /// Returns a key, even if it is revoked or has expired.
    pub async fn key(&self, id: &KeyId) -> Result<Option<KeyRecord>> {
        let row = sqlx::query_as(
            "SELECT id, tenant, hash, name, created, expires, revoked, last_used FROM keys \
             WHERE id = $1",
        )
        .bind(id.as_str());
        with_timeout(row.fetch_optional(&self.pool()?)).await?.map(record).transpose()
    }

    /// Returns all keys of an owner, the oldest first, including revoked and expired ones.
    pub async fn list_keys(&self, owner: &KeyOwner) -> Result<Vec<KeyRecord>> {
        let rows = sqlx::query_as(
            "SELECT id, tenant, hash, name, created, expires, revoked, last_used FROM keys \
             WHERE tenant = $1 OR ($1 IS NULL AND tenant IS NULL) ORDER BY created, id",
        )
        .bind(owner.tenant());
        with_timeout(rows.fetch_all(&self.pool()?)).await?.into_iter().map(record).collect()
    }

    /// Creates a key. The caller checks that the tenant exists: it may be in a configuration file.
    pub async fn create_key(
        &self,
        actor: &Actor,
        owner: &KeyOwner,
        name: Option<&str>,
        expires: Option<i64>,
    ) -> Result<NewKey> {
        let key = ApiKey::generate();
        let record = KeyRecord {
            id: key.id(),
            owner: owner.clone(),
            hash: self.hash(&key),
            name: name.map(str::to_owned),
            created: now(),
            expires,
            revoked: None,
            last_used: None,
        };
        with_timeout(async {
            let mut change = self.change().await?;
            if active(&mut change, owner).await? >= owner.active_keys_max() {
                return Err(StoreError::TooManyKeys(owner.clone()));
            }
            sqlx::query(
                "INSERT INTO keys (id, tenant, hash, name, created, expires) \
                 VALUES ($1, $2, $3, $4, $5, $6)",
            )
            .bind(record.id.as_str())
            .bind(owner.tenant())
            .bind(record.hash.to_hex())
            .bind(name)
            .bind(record.created)
            .bind(expires)
            .execute(&mut *change)
            .await?;
            let expires = expires.and_then(|it| Timestamp::from_millisecond(it).ok());
            let detail = json!({"tenant": owner.tenant(), "name": name, "expires": expires});
            note(&mut change, actor, "key.create", &record.id, owner.tenant(), detail).await?;
            Ok(change.commit().await?)
        })
        .await?;
        Ok(NewKey { key, record })
    }

    /// Revokes a key. It may have been revoked before.
    pub async fn revoke_key(&self, actor: &Actor, id: &KeyId) -> Result<()> {
        with_timeout(async {
            let mut change = self.change().await?;
            let now = now();
            let owner: Option<(Option<String>, i64)> = sqlx::query_as(
                "UPDATE keys SET revoked = COALESCE(revoked, $2) WHERE id = $1 \
                 RETURNING tenant, revoked",
            )
            .bind(id.as_str())
            .bind(now)
            .fetch_optional(&mut *change)
            .await?;
            let Some((tenant, revoked)) = owner else {
                return Err(StoreError::NotFound(format!("key `{id}`")));
            };
            let detail = json!({"tenant": tenant});
            // One that was revoked before may have been an earlier tenant's of this name.
            let present = tenant.as_deref().filter(|_| revoked == now);
            note(&mut change, actor, "key.revoke", id, present, detail).await?;
            Ok(change.commit().await?)
        })
        .await
    }

    /// Writes when keys were last used. Ignores unknown keys, and times before the stored ones.
    pub async fn record_key_uses(&self, uses: &[(KeyId, i64)]) -> Result<()> {
        let mut uses = uses.to_vec();
        // Sorted, so that replicas cannot deadlock; only the last use of each key.
        uses.sort_unstable_by(|(a, a_at), (b, b_at)| a.cmp(b).then(b_at.cmp(a_at)));
        uses.dedup_by_key(|(id, _)| *id);
        for uses in uses.chunks(USES_PER_STATEMENT) {
            let text = format!(
                "WITH uses (id, at) AS (VALUES {}) UPDATE keys SET last_used = uses.at FROM uses \
                 WHERE keys.id = uses.id AND (keys.last_used IS NULL OR keys.last_used < uses.at)",
                placeholders(uses.len(), 2)
            );
            let mut update = sqlx::query(AssertSqlSafe(text)).persistent(false);
            for (id, at) in uses {
                update = update.bind(id.as_str()).bind(*at);
            }
            with_timeout(update.execute(&self.pool()?)).await?;
        }
        Ok(())
    }
}

/// Writes an audit entry. With a tenant, the key is one of its present generation.
async fn note(
    change: &mut Tx,
    actor: &Actor,
    action: &str,
    id: &KeyId,
    tenant: Option<&str>,
    detail: Value,
) -> Result<()> {
    match tenant {
        Some(tenant) => {
            let tenant = TenantName::parse(tenant)?;
            audit::note_of_tenant(change, actor, action, target(id), &tenant, detail).await
        }
        None => audit::note(change, actor, action, target(id), detail).await,
    }
}

fn target(id: &KeyId) -> String {
    format!("key:{id}")
}

async fn active(change: &mut Tx, owner: &KeyOwner) -> Result<usize> {
    let active: i64 = sqlx::query_scalar(
        "SELECT COUNT(*) FROM keys WHERE (tenant = $1 OR ($1 IS NULL AND tenant IS NULL)) \
         AND revoked IS NULL AND (expires IS NULL OR expires > $2)",
    )
    .bind(owner.tenant())
    .bind(now())
    .fetch_one(&mut **change)
    .await?;
    Ok(usize::try_from(active).unwrap_or(usize::MAX))
}

/// Revokes all keys of a tenant. Returns how many.
pub(super) async fn revoke_all(change: &mut Tx, tenant: &TenantName) -> Result<u64> {
    let revoked = sqlx::query("UPDATE keys SET revoked = $2 WHERE tenant = $1 AND revoked IS NULL")
        .bind(tenant.as_str())
        .bind(now())
        .execute(&mut **change)
        .await?;
    Ok(revoked.rows_affected())
}

/// Returns all keys that are not revoked.
pub(super) async fn read_valid(connection: &mut AnyConnection) -> Result<Vec<KeyRecord>> {
    let rows = sqlx::query_as(
        "SELECT id, tenant, hash, name, created, expires, revoked, last_used FROM keys \
         WHERE revoked IS NULL",
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    Ok(rows.map(record).filter_map(skip_corrupt).collect())
}

fn record(
    (id, tenant, hash, name, created, expires, revoked, last_used): KeyRow,
) -> Result<KeyRecord> {
    let corrupt =
        |what: &str| StoreError::Corrupt(format!("the {what} of key `{id}` cannot be read"));
    Ok(KeyRecord {
        id: KeyId::parse(&id).ok_or_else(|| corrupt("id"))?,
        owner: owner(tenant)?,
        hash: KeyHash::from_hex(&hash).ok_or_else(|| corrupt("hash"))?,
        name,
        created,
        expires,
        revoked,
        last_used,
    })
}

fn owner(tenant: Option<String>) -> Result<KeyOwner> {
    let Some(tenant) = tenant else { return Ok(KeyOwner::Admin) };
    Ok(KeyOwner::Tenant(TenantName::parse(&tenant)?))
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(id) => write!(f, "tenant `{id}`"),
            Self::Admin => f.write_str("the administrator"),
        }
    }
}
