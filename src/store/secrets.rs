//! Tenants' secrets, sealed. The store cannot open them.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::json;
use sqlx::{AnyConnection, AssertSqlSafe};

use super::changes::bump_revision;
use super::open::DatabaseKind;
use super::tenants::skip_corrupt;
use super::{
    Actor, Result, Store, StoreError, Subject, Tx, audit, can_be_stored, now, placeholders,
    with_timeout,
};
use crate::common::ids::{ServerId, TenantGeneration, TenantId, TenantName};

const ROWS_PER_ROTATION: i64 = 100;
/// The last changes whose tenants are kept. A reader that is further behind reads all secrets.
const CHANGES_KEPT: i64 = 500;

/// Secrets are deleted with their tenant, in one change: those that there are belong to the present
/// tenant of that name.
const SECRETS: &str = "SELECT tenant, server, tenant_secrets.name, sealed, version, \
     COALESCE(tenants.generation, tenants.created, file_tenants.generation, 0) \
     FROM tenant_secrets LEFT JOIN tenants ON tenants.id = tenant \
     LEFT JOIN file_tenants ON file_tenants.name = tenant";

/// The name under which a tenant's connection to a server (OAuth) is noted beside its secrets, so
/// that all gateways know of it. No secret can have it.
pub const CONNECTION: &str = "oauth:connection";

/// Names a secret.
#[derive(Clone, Copy, Debug)]
pub struct Label<'a> {
    pub tenant: &'a TenantName,
    pub server: &'a ServerId,
    pub name: &'a str,
}

impl fmt::Display for Label<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "secret `{}` of tenant `{}` for server `{}`", self.name, self.tenant, self.server)
    }
}

/// Has no `Debug`: sealed values must not be logged either.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret {
    pub tenant: TenantId,
    pub server: ServerId,
    pub name: String,
    pub sealed: String,
    /// The revision that set it.
    pub version: i64,
}

/// How far secrets have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretsCursor {
    /// Tells apart the files that a SQLite store had at its place.
    pub epoch: u64,
    pub revision: i64,
}

/// Secrets that may have changed.
pub struct ChangedSecrets {
    /// All changes up to here are known now.
    pub cursor: SecretsCursor,
    /// The tenants whose secrets these are; `None` if they are those of all tenants.
    pub tenants: Option<BTreeSet<TenantName>>,
    pub secrets: Vec<SealedSecret>,
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRecord {
    pub server: ServerId,
    pub name: String,
    /// In milliseconds since 1970.
    pub updated: i64,
}

/// The result of a rotation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rotated {
    pub seen: u64,
    pub resealed: u64,
}

/// Tenant, server, name, sealed value and version.
type SecretRow = (String, String, String, String, i64);
/// The tenant's generation, too.
type SecretOfTenantRow = (String, String, String, String, i64, i64);

impl Store {
    /// Returns all secrets and their revision, consistently.
    pub async fn secrets(&self) -> Result<(i64, Vec<SealedSecret>)> {
        let all = self.changed_secrets(None).await?;
        Ok((all.cursor.revision, all.secrets))
    }

    /// Returns the secrets of the tenants whose secrets have changed since `seen`, consistently. If
    /// these tenants are not known, or without `seen`, returns the secrets of all.
    pub async fn changed_secrets(&self, seen: Option<SecretsCursor>) -> Result<ChangedSecrets> {
        let epoch = self.epoch();
        let seen = seen.filter(|seen| seen.epoch == epoch);
        self.read_all(async {
            let mut snapshot = self.snapshot().await?;
            let revision = sqlx::query_scalar("SELECT value FROM revisions WHERE name = $1")
                .bind(Subject::Secrets.name())
                .fetch_one(&mut *snapshot)
                .await?;
            let tenants = match seen {
                Some(seen) => changed_tenants(&mut snapshot, seen.revision, revision).await?,
                None => None,
            };
            let rows = match &tenants {
                Some(tenants) => secrets_of(&mut snapshot, tenants).await?,
                None => sqlx::query_as(SECRETS).fetch_all(&mut *snapshot).await?,
            };
            let secrets = rows.into_iter().map(sealed).filter_map(skip_corrupt).collect();
            let cursor = SecretsCursor { epoch, revision };
            Ok::<_, StoreError>(ChangedSecrets { cursor, tenants, secrets })
        })
        .await
    }

    /// Lists the secrets of a tenant, for one server or for all, without values.
    pub async fn list_secrets(
        &self,
        tenant: &TenantName,
        server: Option<&ServerId>,
    ) -> Result<Vec<SecretRecord>> {
        let rows = sqlx::query_as(
            "SELECT server, name, updated FROM tenant_secrets \
             WHERE tenant = $1 AND ($2 IS NULL OR server = $2) AND name <> $3 \
             ORDER BY server, name",
        )
        .bind(tenant.as_str())
        .bind(server.map(ServerId::as_str))
        .bind(CONNECTION);
        let rows: Vec<(String, String, i64)> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        let record = |(server, name, updated): (String, String, i64)| {
            Ok(SecretRecord { server: ServerId::parse(&server)?, name, updated })
        };
        Ok(rows.into_iter().map(record).filter_map(skip_corrupt).collect())
    }

    /// Sets a secret to a sealed value. Returns when. The caller checks that the tenant exists and
    /// that the server has such a secret.
    pub async fn set_secret(&self, actor: &Actor, label: Label<'_>, sealed: &str) -> Result<i64> {
        let updated = now();
        with_timeout(async {
            let (mut change, version) = self.change_of(Subject::Secrets).await?;
            actor.must_be_present(&mut change).await?;
            write_at(&mut change, label, sealed, version, updated).await?;
            note_change(&mut change, version, label.tenant).await?;
            note(&mut change, actor, "secret.set", label).await?;
            change.commit().await?;
            Ok::<_, StoreError>(updated)
        })
        .await
    }

    pub async fn remove_secret(&self, actor: &Actor, label: Label<'_>) -> Result<()> {
        let unknown = || StoreError::NotFound(label.to_string());
        let Label { tenant, server, name } = label;
        if !can_be_stored(name) || name == CONNECTION {
            return Err(unknown());
        }
        with_timeout(async {
            // Looked up first: a request for a missing secret must not delay real changes.
            let known = sqlx::query(
                "SELECT name FROM tenant_secrets WHERE tenant = $1 AND server = $2 AND name = $3",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .bind(name);
            known.fetch_optional(&self.pool()?).await?.ok_or_else(unknown)?;
            let (mut change, revision) = self.change_of(Subject::Secrets).await?;
            actor.must_be_present(&mut change).await?;
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
            note_change(&mut change, revision, tenant).await?;
            note(&mut change, actor, "secret.remove", label).await?;
            Ok(change.commit().await?)
        })
        .await
    }

    /// Passes all secrets to `reseal`, in batches, and stores the sealed values it returns. The
    /// plain values stay the same.
    pub async fn rotate_secrets(
        &self,
        actor: &Actor,
        mut reseal: impl FnMut(Label<'_>, &str) -> Option<String>,
    ) -> Result<Rotated> {
        let mut rotated = Rotated::default();
        let mut last = Some((String::new(), String::new(), String::new()));
        while let Some(row) = last {
            last = with_timeout(self.rotate_some(actor, &row, &mut reseal, &mut rotated)).await?;
        }
        Ok(rotated)
    }

    /// Rotates the batch after `last`. Returns its last row.
    async fn rotate_some(
        &self,
        actor: &Actor,
        last: &(String, String, String),
        reseal: &mut impl FnMut(Label<'_>, &str) -> Option<String>,
        rotated: &mut Rotated,
    ) -> Result<Option<(String, String, String)>> {
        let (mut change, _) = self.change_of(Subject::Secrets).await?;
        let rows = read_after(&mut change, last).await?;
        let last = rows
            .last()
            .map(|(tenant, server, name, ..)| (tenant.clone(), server.clone(), name.clone()));
        rotated.seen += rows.len() as u64;
        let mut resealed = 0;
        for (tenant, server, name, sealed, _) in &rows {
            let ids = || Ok((TenantName::parse(tenant)?, ServerId::parse(server)?));
            let Some((tenant, server)) = skip_corrupt(ids()) else { continue };
            let label = Label { tenant: &tenant, server: &server, name };
            let Some(anew) = reseal(label, sealed) else { continue };
            sqlx::query(
                "UPDATE tenant_secrets SET sealed = $4 \
                 WHERE tenant = $1 AND server = $2 AND name = $3",
            )
            .bind(tenant.as_str())
            .bind(server.as_str())
            .bind(name.as_str())
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
) -> Result<Vec<SecretRow>> {
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

/// Writes a sealed value.
pub(super) async fn write(
    change: &mut Tx,
    label: Label<'_>,
    sealed: &str,
    version: i64,
) -> Result<()> {
    write_at(change, label, sealed, version, now()).await
}

async fn write_at(
    change: &mut Tx,
    label: Label<'_>,
    sealed: &str,
    version: i64,
    updated: i64,
) -> Result<()> {
    let write = sqlx::query(
        "INSERT INTO tenant_secrets (tenant, server, name, sealed, version, updated) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, server, name) DO UPDATE \
         SET sealed = excluded.sealed, version = excluded.version, updated = excluded.updated",
    );
    let write = write.bind(label.tenant.as_str()).bind(label.server.as_str()).bind(label.name);
    write.bind(sealed).bind(version).bind(updated).execute(&mut **change).await?;
    Ok(())
}

/// Deletes the mark of a connection.
pub(super) async fn delete_mark(
    change: &mut Tx,
    tenant: &TenantName,
    server: &ServerId,
) -> Result<()> {
    let delete =
        sqlx::query("DELETE FROM tenant_secrets WHERE tenant = $1 AND server = $2 AND name = $3");
    let delete = delete.bind(tenant.as_str()).bind(server.as_str()).bind(CONNECTION);
    delete.execute(&mut **change).await?;
    Ok(())
}

/// Deletes all secrets of a tenant. The revision is increased first, in the same order as when a
/// secret is set.
pub(super) async fn delete_all(
    kind: DatabaseKind,
    change: &mut Tx,
    tenant: &TenantName,
) -> Result<()> {
    let revision = bump_revision(kind, change, Subject::Secrets).await?;
    let deleted = sqlx::query("DELETE FROM tenant_secrets WHERE tenant = $1").bind(tenant.as_str());
    deleted.execute(&mut **change).await?;
    note_change(change, revision, tenant).await
}

/// Notes that a change is of the secrets of one tenant alone, so that its readers need not read
/// those of others.
pub(super) async fn note_change(change: &mut Tx, revision: i64, tenant: &TenantName) -> Result<()> {
    sqlx::query("INSERT INTO secret_changes (revision, tenant) VALUES ($1, $2)")
        .bind(revision)
        .bind(tenant.as_str())
        .execute(&mut **change)
        .await?;
    let older = sqlx::query("DELETE FROM secret_changes WHERE revision <= $1");
    older.bind(revision - CHANGES_KEPT).execute(&mut **change).await?;
    Ok(())
}

/// Returns the tenants whose secrets have changed after `seen`, up to `revision`. Returns `None` if
/// not all of these changes are noted: they are too many or too old, or of many tenants.
async fn changed_tenants(
    snapshot: &mut Tx,
    seen: i64,
    revision: i64,
) -> Result<Option<BTreeSet<TenantName>>> {
    if revision < seen || revision - seen > CHANGES_KEPT {
        return Ok(None);
    }
    let noted = sqlx::query_scalar("SELECT tenant FROM secret_changes WHERE revision > $1");
    let noted: Vec<String> = noted.bind(seen).fetch_all(&mut **snapshot).await?;
    if noted.len() as u64 != revision.abs_diff(seen) {
        return Ok(None);
    }
    let tenants = noted.iter().map(|tenant| Ok(TenantName::parse(tenant)?));
    Ok(Some(tenants.filter_map(skip_corrupt).collect()))
}

async fn secrets_of(
    snapshot: &mut Tx,
    tenants: &BTreeSet<TenantName>,
) -> Result<Vec<SecretOfTenantRow>> {
    if tenants.is_empty() {
        return Ok(vec![]);
    }
    let text = format!("{SECRETS} WHERE tenant IN {}", placeholders(1, tenants.len()));
    let mut rows = sqlx::query_as(AssertSqlSafe(text)).persistent(false);
    for tenant in tenants {
        rows = rows.bind(tenant.as_str());
    }
    Ok(rows.fetch_all(&mut **snapshot).await?)
}

/// Writes an audit entry without the value.
async fn note(change: &mut Tx, actor: &Actor, action: &str, label: Label<'_>) -> Result<()> {
    let detail = json!({"server": label.server.as_str(), "name": label.name});
    let target = format!("tenant:{}", label.tenant);
    audit::note_of_tenant(change, actor, action, target, label.tenant, detail).await
}

fn sealed(row: SecretOfTenantRow) -> Result<SealedSecret> {
    let (tenant, server, name, sealed, version, generation) = row;
    let tenant = TenantName::parse(&tenant)?.of(TenantGeneration::from_number(generation));
    let server = ServerId::parse(&server)?;
    Ok(SealedSecret { tenant, server, name, sealed, version })
}
