//! Tenants' secrets, sealed. What they are nobody here can tell.

use serde_json::json;
use sqlx::{Any, AnyConnection, Transaction};

use super::changes::{Subject, bump_revision};
use super::open::Kind;
use super::tenants::skip_corrupt;
use super::{Actor, Store, StoreError, audit, now, with_timeout};
use crate::common::ids::{ServerId, TenantId};

/// Secrets that are sealed anew in one transaction.
const ROWS_PER_ROTATION: i64 = 100;

/// A secret as it is stored. Not to be printed: sealed values need not be in logs either.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret {
    /// Whose it is.
    pub tenant: TenantId,
    /// Who gets it.
    pub server: ServerId,
    /// What it is called.
    pub name: String,
    /// Its value.
    pub sealed: String,
    /// Which change has set it.
    pub version: i64,
}

/// That a secret is set, and when it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRecord {
    /// Who gets it.
    pub server: ServerId,
    /// What it is called.
    pub name: String,
    /// In milliseconds since 1970.
    pub updated: i64,
}

/// What became of all secrets when they should be sealed anew.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rotated {
    /// Those that were looked at.
    pub seen: u64,
    /// Those that were sealed anew.
    pub resealed: u64,
}

type SecretRow = (String, String, String, String, i64);

impl Store {
    /// All secrets as of one moment, and the number of the last change.
    pub async fn secrets(&self) -> Result<(i64, Vec<SealedSecret>), StoreError> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            let revision = sqlx::query_scalar("SELECT value FROM revisions WHERE name = $1")
                .bind(Subject::Secrets.name())
                .fetch_one(&mut *snapshot)
                .await?;
            let rows: Vec<SecretRow> =
                sqlx::query_as("SELECT tenant, server, name, sealed, version FROM tenant_secrets")
                    .fetch_all(&mut *snapshot)
                    .await?;
            snapshot.rollback().await?;
            let secrets = rows.into_iter().map(sealed).filter_map(skip_corrupt).collect();
            Ok::<_, StoreError>((revision, secrets))
        })
        .await
    }

    /// Which secrets a tenant has set, for one server or for all. Never what they are.
    pub async fn list_secrets(
        &self,
        tenant: &TenantId,
        server: Option<&ServerId>,
    ) -> Result<Vec<SecretRecord>, StoreError> {
        let rows = sqlx::query_as(
            "SELECT server, name, updated FROM tenant_secrets \
             WHERE tenant = $1 AND ($2 IS NULL OR server = $2) ORDER BY server, name",
        )
        .bind(tenant.as_str())
        .bind(server.map(ServerId::as_str));
        let rows: Vec<(String, String, i64)> = with_timeout(rows.fetch_all(self.pool())).await?;
        let record = |(server, name, updated): (String, String, i64)| {
            Ok(SecretRecord { server: server_id(&server)?, name, updated })
        };
        Ok(rows.into_iter().map(record).filter_map(skip_corrupt).collect())
    }

    /// Sets a secret to what was sealed for this place; gives when. Whether there is such a tenant, and whether its
    /// server wants that secret, the caller knows.
    pub async fn set_secret(
        &self,
        actor: &Actor,
        tenant: &TenantId,
        server: &ServerId,
        name: &str,
        sealed: &str,
    ) -> Result<i64, StoreError> {
        let updated = now();
        with_timeout(async {
            let (mut change, version) = self.change_secrets().await?;
            sqlx::query(
                "INSERT INTO tenant_secrets (tenant, server, name, sealed, version, updated) \
                 VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, server, name) DO UPDATE \
                 SET sealed = excluded.sealed, version = excluded.version, updated = excluded.updated",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .bind(name)
            .bind(sealed)
            .bind(version)
            .bind(updated)
            .execute(&mut *change)
            .await?;
            note(&mut change, actor, "secret.set", tenant, server, name).await?;
            change.commit().await?;
            Ok::<_, StoreError>(updated)
        })
        .await
    }

    /// Removes a secret.
    pub async fn remove_secret(
        &self,
        actor: &Actor,
        tenant: &TenantId,
        server: &ServerId,
        name: &str,
    ) -> Result<(), StoreError> {
        let unknown = || {
            let what = format!("secret `{name}` of tenant `{tenant}` for server `{server}`");
            StoreError::NotFound(what)
        };
        with_timeout(async {
            // Looked for first: whoever names what is not there must not hold up those who change something.
            let known = sqlx::query(
                "SELECT name FROM tenant_secrets WHERE tenant = $1 AND server = $2 AND name = $3",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .bind(name);
            known.fetch_optional(self.pool()).await?.ok_or_else(unknown)?;
            let (mut change, _) = self.change_secrets().await?;
            let removed = sqlx::query(
                "DELETE FROM tenant_secrets WHERE tenant = $1 AND server = $2 AND name = $3",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .bind(name)
            .execute(&mut *change)
            .await?;
            if removed.rows_affected() == 0 {
                return Err(unknown());
            }
            note(&mut change, actor, "secret.remove", tenant, server, name).await?;
            Ok(change.commit().await?)
        })
        .await
    }

    /// Goes through all secrets, a few at a time, and replaces what `reseal` gives another sealed value for. Their values
    /// stay the same.
    pub async fn rotate_secrets(
        &self,
        actor: &Actor,
        mut reseal: impl FnMut(&SealedSecret) -> Option<String>,
    ) -> Result<Rotated, StoreError> {
        let mut rotated = Rotated::default();
        let mut last = (String::new(), String::new(), String::new());
        loop {
            let rows =
                with_timeout(self.rotate_some(actor, &last, &mut reseal, &mut rotated)).await?;
            match rows {
                Some(row) => last = row,
                None => return Ok(rotated),
            }
        }
    }

    /// Those after `last`; gives the last of them.
    async fn rotate_some(
        &self,
        actor: &Actor,
        last: &(String, String, String),
        reseal: &mut impl FnMut(&SealedSecret) -> Option<String>,
        rotated: &mut Rotated,
    ) -> Result<Option<(String, String, String)>, StoreError> {
        let (mut change, _) = self.change_secrets().await?;
        let rows = read_after(&mut change, last).await?;
        let last = rows
            .last()
            .map(|(tenant, server, name, ..)| (tenant.clone(), server.clone(), name.clone()));
        rotated.seen += rows.len() as u64;
        let mut resealed = 0;
        for secret in rows.into_iter().map(sealed).filter_map(skip_corrupt) {
            let Some(anew) = reseal(&secret) else { continue };
            sqlx::query(
                "UPDATE tenant_secrets SET sealed = $4 WHERE tenant = $1 AND server = $2 AND name = $3",
            )
            .bind(secret.tenant.as_str())
            .bind(secret.server.as_str())
            .bind(&secret.name)
            .bind(anew)
            .execute(&mut *change)
            .await?;
            resealed += 1;
        }
        if resealed == 0 {
            change.rollback().await?;
            return Ok(last);
        }
        let (target, detail) = ("secrets".to_owned(), json!({"resealed": resealed}));
        audit::note(&mut change, actor, "secret.rotate", target, detail).await?;
        change.commit().await?;
        rotated.resealed += resealed;
        Ok(last)
    }
}

async fn read_after(
    connection: &mut AnyConnection,
    (tenant, server, name): &(String, String, String),
) -> Result<Vec<SecretRow>, StoreError> {
    let rows = sqlx::query_as(
        "SELECT tenant, server, name, sealed, version FROM tenant_secrets \
         WHERE tenant > $1 OR (tenant = $1 AND (server > $2 OR (server = $2 AND name > $3))) \
         ORDER BY tenant, server, name LIMIT $4",
    )
    .bind(tenant)
    .bind(server)
    .bind(name)
    .bind(ROWS_PER_ROTATION);
    Ok(rows.fetch_all(connection).await?)
}

/// Deletes what a tenant has left. Announced first: whoever sets a secret does it in that order too.
pub(super) async fn delete_all(
    kind: Kind,
    change: &mut Transaction<'static, Any>,
    tenant: &TenantId,
) -> Result<(), StoreError> {
    bump_revision(kind, change, Subject::Secrets).await?;
    let deleted = sqlx::query("DELETE FROM tenant_secrets WHERE tenant = $1").bind(tenant.as_str());
    deleted.execute(&mut **change).await?;
    Ok(())
}

/// Notes what was done to a secret, and never what it is.
async fn note(
    change: &mut Transaction<'static, Any>,
    actor: &Actor,
    action: &str,
    tenant: &TenantId,
    server: &ServerId,
    name: &str,
) -> Result<(), StoreError> {
    let detail = json!({"server": server.as_str(), "name": name});
    audit::note(change, actor, action, format!("tenant:{tenant}"), detail).await
}

fn sealed((tenant, server, name, sealed, version): SecretRow) -> Result<SealedSecret, StoreError> {
    let tenant =
        TenantId::parse(&tenant).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    Ok(SealedSecret { tenant, server: server_id(&server)?, name, sealed, version })
}

fn server_id(text: &str) -> Result<ServerId, StoreError> {
    ServerId::parse(text).map_err(|error| StoreError::Corrupt(error.to_string()))
}
