//! Tenants and their policies.

use std::collections::{BTreeMap, HashMap};

use serde_json::json;
use sqlx::{Any, AnyConnection, AssertSqlSafe};

use super::{
    Actor, KeyRecord, Result, Store, StoreError, Tx, audit, keys, now, placeholders, secrets,
    with_timeout,
};
use crate::common::ids::TenantId;
use crate::common::policy::{Grants, Limit, Pattern, Policy};

/// Everything that decides who may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub tenants: BTreeMap<TenantId, Policy>,
    /// Keys that are not revoked. They may have expired, or belong to tenants of a configuration
    /// file.
    pub keys: Vec<KeyRecord>,
}

type TenantRow = (String, Option<String>, Option<i64>, Option<i64>, i64);
type GrantRow = (String, String);
type LimitRow = (String, String, Option<String>, Option<i64>, Option<i64>);

impl Store {
    /// Returns all tenants and all keys that are not revoked, consistently.
    pub async fn load(&self) -> Result<Contents> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            let tenants = read_tenants(&mut snapshot, None).await?;
            let keys = keys::read_valid(&mut snapshot).await?;
            Ok::<_, StoreError>(Contents { tenants, keys })
        })
        .await
    }

    pub async fn tenants(&self) -> Result<BTreeMap<TenantId, Policy>> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            read_tenants(&mut snapshot, None).await
        })
        .await
    }

    pub async fn tenant(&self, id: &TenantId) -> Result<Option<Policy>> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            Ok::<_, StoreError>(read_tenants(&mut snapshot, Some(id)).await?.remove(id))
        })
        .await
    }

    /// Adds a tenant. Keys and secrets of an earlier tenant of this name are revoked and deleted.
    /// Returns the number of revoked keys.
    pub async fn add_tenant(&self, actor: &Actor, id: &TenantId, policy: &Policy) -> Result<u64> {
        with_timeout(async {
            let mut change = self.change().await?;
            let row = sqlx::query(
                "INSERT INTO tenants (id, rate, burst, max_in_flight, weight, created, changed) \
                 VALUES ($1, $2, $3, $4, $5, $6, $6) ON CONFLICT (id) DO NOTHING",
            );
            if write_tenant(&mut change, row, id, policy).await? == 0 {
                return Err(StoreError::AlreadyExists(format!("tenant `{id}`")));
            }
            write_parts(&mut change, id, policy).await?;
            let revoked = keys::revoke_all(&mut change, id).await?;
            secrets::delete_all(self.0.kind, &mut change, id).await?;
            let mut detail = json!(policy);
            detail["revoked_keys"] = json!(revoked);
            audit::note(&mut change, actor, "tenant.add", target(id), detail).await?;
            change.commit().await?;
            Ok(revoked)
        })
        .await
    }

    pub async fn set_tenant(&self, actor: &Actor, id: &TenantId, policy: &Policy) -> Result<()> {
        self.change_tenant(actor, id, |_| Ok(policy.clone())).await.map(drop)
    }

    /// Replaces a tenant's policy by the result of `change`, atomically, and returns it.
    pub async fn change_tenant<E: From<StoreError>>(
        &self,
        actor: &Actor,
        id: &TenantId,
        change: impl FnOnce(Policy) -> Result<Policy, E>,
    ) -> Result<Policy, E> {
        with_timeout(async {
            let mut transaction = self.change().await?;
            let before = read_tenants(&mut transaction, Some(id)).await?.remove(id);
            let policy = match change(before.ok_or_else(|| not_found(id))?) {
                Ok(policy) => policy,
                refusal => return Ok(refusal),
            };
            overwrite(&mut transaction, id, &policy).await?;
            audit::note(&mut transaction, actor, "tenant.set", target(id), json!(policy)).await?;
            transaction.commit().await?;
            Ok::<_, StoreError>(Ok(policy))
        })
        .await?
    }

    /// Removes a tenant and its secrets, and revokes its keys. Returns how many.
    pub async fn remove_tenant(&self, actor: &Actor, id: &TenantId) -> Result<u64> {
        with_timeout(async {
            let mut change = self.change().await?;
            let removed = sqlx::query("DELETE FROM tenants WHERE id = $1").bind(id.as_str());
            if removed.execute(&mut *change).await?.rows_affected() == 0 {
                return Err(not_found(id));
            }
            let revoked = keys::revoke_all(&mut change, id).await?;
            secrets::delete_all(self.0.kind, &mut change, id).await?;
            let detail = json!({"revoked_keys": revoked});
            audit::note(&mut change, actor, "tenant.remove", target(id), detail).await?;
            change.commit().await?;
            Ok(revoked)
        })
        .await
    }
}

fn target(id: &TenantId) -> String {
    format!("tenant:{id}")
}

fn not_found(id: &TenantId) -> StoreError {
    StoreError::NotFound(format!("tenant `{id}`"))
}

async fn write_tenant(
    change: &mut Tx,
    row: sqlx::query::Query<'_, Any, sqlx::any::AnyArguments>,
    id: &TenantId,
    policy: &Policy,
) -> Result<u64> {
    let Limit { rate, burst, max_in_flight } = &policy.limit;
    let row = row
        .bind(id.as_str())
        .bind(rate.map(|rate| rate.to_string()))
        .bind(burst.map(i64::from))
        .bind(max_in_flight.map(i64::from))
        .bind(i64::from(policy.weight))
        .bind(now());
    Ok(row.execute(&mut **change).await?.rows_affected())
}

async fn overwrite(change: &mut Tx, id: &TenantId, policy: &Policy) -> Result<()> {
    let row = sqlx::query(
        "UPDATE tenants SET rate = $2, burst = $3, max_in_flight = $4, weight = $5, changed = $6 \
         WHERE id = $1",
    );
    write_tenant(change, row, id, policy).await?;
    for table in ["DELETE FROM grants WHERE tenant = $1", "DELETE FROM limits WHERE tenant = $1"] {
        sqlx::query(table).bind(id.as_str()).execute(&mut **change).await?;
    }
    write_parts(change, id, policy).await
}

/// Writes the rows of a policy in other tables.
async fn write_parts(change: &mut Tx, id: &TenantId, policy: &Policy) -> Result<()> {
    let patterns = policy.servers.patterns();
    if !patterns.is_empty() {
        let placeholders = placeholders(patterns.len(), 3);
        let text = format!("INSERT INTO grants (tenant, position, pattern) VALUES {placeholders}");
        let mut rows = sqlx::query(AssertSqlSafe(text)).persistent(false);
        for (position, pattern) in (0_i64..).zip(patterns) {
            rows = rows.bind(id.as_str()).bind(position).bind(pattern.to_string());
        }
        rows.execute(&mut **change).await?;
    }
    if !policy.limits.is_empty() {
        let placeholders = placeholders(policy.limits.len(), 5);
        let text = format!(
            "INSERT INTO limits (tenant, pattern, rate, burst, max_in_flight) VALUES {placeholders}"
        );
        let mut rows = sqlx::query(AssertSqlSafe(text)).persistent(false);
        for (pattern, Limit { rate, burst, max_in_flight }) in &policy.limits {
            rows = rows
                .bind(id.as_str())
                .bind(pattern.to_string())
                .bind(rate.map(|rate| rate.to_string()))
                .bind(burst.map(i64::from))
                .bind(max_in_flight.map(i64::from));
        }
        rows.execute(&mut **change).await?;
    }
    Ok(())
}

/// Reads all tenants, or one.
async fn read_tenants(
    connection: &mut AnyConnection,
    only: Option<&TenantId>,
) -> Result<BTreeMap<TenantId, Policy>> {
    let only = only.map(TenantId::as_str);
    let rows: Vec<TenantRow> = sqlx::query_as(
        "SELECT id, rate, burst, max_in_flight, weight FROM tenants WHERE $1 IS NULL OR id = $1",
    )
    .bind(only)
    .fetch_all(&mut *connection)
    .await?;
    let grants: Vec<GrantRow> = sqlx::query_as(
        "SELECT tenant, pattern FROM grants WHERE $1 IS NULL OR tenant = $1 \
         ORDER BY tenant, position",
    )
    .bind(only)
    .fetch_all(&mut *connection)
    .await?;
    let limits: Vec<LimitRow> = sqlx::query_as(
        "SELECT tenant, pattern, rate, burst, max_in_flight FROM limits \
         WHERE $1 IS NULL OR tenant = $1",
    )
    .bind(only)
    .fetch_all(connection)
    .await?;
    let mut grants = by_tenant(grants, |(tenant, _)| tenant);
    let mut limits = by_tenant(limits, |(tenant, ..)| tenant);
    let tenants = rows.into_iter().map(|row| {
        let (grants, limits) = (grants.remove(&row.0), limits.remove(&row.0));
        tenant(row, grants.unwrap_or_default(), limits.unwrap_or_default())
    });
    match only {
        Some(_) => tenants.collect(),
        None => Ok(tenants.filter_map(skip_corrupt).collect()),
    }
}

/// A row that cannot be read, of a newer version or made by hand, affects its tenant alone.
pub(super) fn skip_corrupt<T>(row: Result<T>) -> Option<T> {
    row.inspect_err(|error| tracing::error!(%error, "a row cannot be read, and is skipped")).ok()
}

fn tenant(
    (id, rate, burst, max_in_flight, weight): TenantRow,
    grants: Vec<GrantRow>,
    limits: Vec<LimitRow>,
) -> Result<(TenantId, Policy)> {
    let pattern = |text: &str| Pattern::parse(text).map_err(|error| corrupt(&id, error));
    let scoped = limits.into_iter().map(|(_, text, rate, burst, max_in_flight)| {
        Ok((pattern(&text)?, limit(&id, rate, burst, max_in_flight)?))
    });
    let policy = Policy {
        limit: limit(&id, rate, burst, max_in_flight)?,
        weight: number(&id, weight)?,
        servers: Grants::new(grants.iter().map(|(_, text)| pattern(text)).collect::<Result<_>>()?),
        limits: scoped.collect::<Result<_>>()?,
    };
    Ok((TenantId::parse(&id).map_err(|error| corrupt(&id, error))?, policy))
}

fn by_tenant<R>(rows: Vec<R>, tenant: fn(&R) -> &String) -> HashMap<String, Vec<R>> {
    let mut groups: HashMap<String, Vec<R>> = HashMap::new();
    for row in rows {
        groups.entry(tenant(&row).clone()).or_default().push(row);
    }
    groups
}

fn limit(
    tenant: &str,
    rate: Option<String>,
    burst: Option<i64>,
    max_in_flight: Option<i64>,
) -> Result<Limit> {
    let rate = rate.map(|rate| rate.parse().map_err(|error| corrupt(tenant, error)));
    Ok(Limit {
        rate: rate.transpose()?,
        burst: burst.map(|burst| number(tenant, burst)).transpose()?,
        max_in_flight: max_in_flight.map(|max| number(tenant, max)).transpose()?,
    })
}

fn number(tenant: &str, value: i64) -> Result<u32> {
    u32::try_from(value).map_err(|error| corrupt(tenant, error))
}

fn corrupt(tenant: &str, error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("tenant `{tenant}`: {error}"))
}
