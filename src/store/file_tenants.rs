//! Generations of the tenants of configuration files. The store remembers a file's tenant until a
//! gateway loads a file without it; a tenant of that name in a later file is another one.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use sqlx::AnyConnection;

use super::changes::bump_revision;
use super::tenants::{remove_traces, skip_corrupt};
use super::{Actor, Result, Store, StoreError, Subject, Tx, audit, now, with_timeout};
use crate::common::ids::{TenantGeneration, TenantName};
use crate::common::policy::Policy;

/// Entries of the audit log in which the note of another gateway is looked for.
const RECENT: u32 = 200;

/// A tenant of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTenant {
    pub generation: TenantGeneration,
    /// In milliseconds since 1970; `None` if the tenant is older than generations.
    pub since: Option<i64>,
}

/// A tenant that no longer exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTenant {
    pub name: TenantName,
    pub revoked_keys: u64,
}

impl Store {
    /// Ends the known tenants of files for which `has_ended` holds: revokes their keys and deletes
    /// their secrets. Then gives each tenant of `named` a generation, if it has none. A tenant that
    /// the store has, too, keeps that generation. Returns the tenants that ended.
    pub async fn sync_file_tenants(
        &self,
        named: &BTreeSet<TenantName>,
        has_ended: impl Fn(&TenantName) -> bool,
    ) -> Result<Vec<EndedTenant>> {
        with_timeout(async {
            let mut change = self.change().await?;
            // In the same order as other changes.
            bump_revision(self.0.kind, &mut change, Subject::Secrets).await?;
            let mut known = read(&mut change).await?;
            let stored = stored_names(&mut change).await?;
            let mut ended = vec![];
            for (name, tenant) in known.extract_if(.., |name, _| has_ended(name)) {
                delete(&mut change, &name).await?;
                if !stored.contains(name.as_str()) {
                    let revoked_keys = self.end(&mut change, &name, tenant).await?;
                    ended.push(EndedTenant { name, revoked_keys });
                }
            }
            let is_first = is_first_sync(&mut change).await?;
            for name in named {
                if !known.contains_key(name) && !stored.contains(name.as_str()) {
                    add(&mut change, name, if is_first { 0 } else { now() }).await?;
                }
            }
            change.commit().await?;
            Ok::<_, StoreError>(ended)
        })
        .await
    }

    /// Notes in the audit log what a file has added and changed, unless another gateway that reads
    /// the same file has just done so.
    pub async fn note_file_tenants(
        &self,
        added: &[(TenantName, Policy)],
        changed: &[(TenantName, Policy)],
    ) -> Result<()> {
        if added.is_empty() && changed.is_empty() {
            return Ok(());
        }
        let recent = self.audit(RECENT, None).await?;
        with_timeout(async {
            let mut change = self.change().await?;
            for (action, tenants) in [("tenant.add", added), ("tenant.set", changed)] {
                for (name, policy) in tenants {
                    let mut detail = json!(policy);
                    detail["source"] = json!("file");
                    let target = format!("tenant:{name}");
                    let last = recent.iter().find(|entry| entry.target == target);
                    if !last.is_some_and(|it| it.action == action && it.detail == detail) {
                        audit::note(&mut change, &Actor::gateway(), action, target, detail).await?;
                    }
                }
            }
            Ok::<_, StoreError>(change.commit().await?)
        })
        .await
    }

    async fn end(&self, change: &mut Tx, name: &TenantName, tenant: FileTenant) -> Result<u64> {
        let revoked = remove_traces(self.0.kind, change, name).await?;
        let generation = tenant.generation.to_string();
        let detail = json!({"source": "file", "generation": generation, "revoked_keys": revoked});
        let target = format!("tenant:{name}");
        audit::note(change, &Actor::gateway(), "tenant.remove", target, detail).await?;
        Ok(revoked)
    }

    /// Returns the known tenants of configuration files.
    pub async fn file_tenants(&self) -> Result<BTreeMap<TenantName, FileTenant>> {
        with_timeout(async { read(&mut *self.pool()?.acquire().await?).await }).await
    }
}

/// Returns whether no gateway has read a file's tenants yet, and notes that one has.
async fn is_first_sync(change: &mut Tx) -> Result<bool> {
    let first = "UPDATE revisions SET value = 1 WHERE name = 'file_tenants' AND value = 0";
    Ok(sqlx::query(first).execute(&mut **change).await?.rows_affected() > 0)
}

async fn stored_names(change: &mut Tx) -> Result<BTreeSet<String>> {
    let names = sqlx::query_scalar("SELECT id FROM tenants").fetch_all(&mut **change).await?;
    Ok(names.into_iter().collect())
}

async fn add(change: &mut Tx, name: &TenantName, since: i64) -> Result<()> {
    sqlx::query("INSERT INTO file_tenants (name, generation, since) VALUES ($1, $2, $3)")
        .bind(name.as_str())
        .bind(TenantGeneration::generate().number())
        .bind(since)
        .execute(&mut **change)
        .await?;
    Ok(())
}

pub(super) async fn delete(change: &mut Tx, name: &TenantName) -> Result<()> {
    let deleted = sqlx::query("DELETE FROM file_tenants WHERE name = $1").bind(name.as_str());
    deleted.execute(&mut **change).await?;
    Ok(())
}

pub(super) async fn read(
    connection: &mut AnyConnection,
) -> Result<BTreeMap<TenantName, FileTenant>> {
    let rows: Vec<(String, i64, i64)> =
        sqlx::query_as("SELECT name, generation, since FROM file_tenants")
            .fetch_all(connection)
            .await?;
    let tenant = |(name, generation, since): (String, i64, i64)| {
        let generation = TenantGeneration::from_number(generation);
        let since = Some(since).filter(|since| *since > 0);
        Ok((TenantName::parse(&name)?, FileTenant { generation, since }))
    };
    Ok(rows.into_iter().map(tenant).filter_map(skip_corrupt).collect())
}
