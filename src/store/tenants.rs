//! Tenants and their policies.

use std::collections::{BTreeMap, HashMap};

use serde_json::json;
use sqlx::{Any, AnyConnection, AssertSqlSafe};

use super::open::DatabaseKind;
use super::{
    Actor, FileTenant, KeyRecord, Result, Store, StoreError, Tx, audit, callback_secrets,
    connections, file_tenants, keys, now, placeholders, secrets, with_timeout,
};
use crate::common::ids::{TenantGeneration, TenantName};
use crate::common::policy::{Grant, Grants, Limit, Pattern, Policy};

/// Everything that decides who may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub tenants: BTreeMap<TenantName, StoredTenant>,
    pub file_tenants: BTreeMap<TenantName, FileTenant>,
    /// Keys that are not revoked. They may have expired, or belong to tenants of a configuration
    /// file.
    pub keys: Vec<KeyRecord>,
}

/// A tenant that was added by command or by the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTenant {
    pub generation: TenantGeneration,
    /// In milliseconds since 1970.
    pub since: i64,
    pub policy: Policy,
}

/// Id, generation, creation, limits, weight and hosts of callbacks.
type TenantRow = (String, i64, i64, Option<String>, Option<i64>, Option<i64>, i64, Option<String>);
type GrantRow = (String, String);
type LimitRow = (String, String, Option<String>, Option<i64>, Option<i64>);

impl Store {
    /// Returns all tenants and all keys that are not revoked, consistently.
    pub async fn load(&self) -> Result<Contents> {
        self.read_all(async {
            let mut snapshot = self.snapshot().await?;
            let tenants = read_tenants(&mut snapshot, None).await?;
            let file_tenants = file_tenants::read(&mut snapshot).await?;
            let keys = keys::read_valid(&mut snapshot).await?;
            Ok::<_, StoreError>(Contents { tenants, file_tenants, keys })
        })
        .await
    }

    pub async fn tenants(&self) -> Result<BTreeMap<TenantName, StoredTenant>> {
        self.read_all(async {
            let mut snapshot = self.snapshot().await?;
            read_tenants(&mut snapshot, None).await
        })
        .await
    }

    pub async fn tenant(&self, id: &TenantName) -> Result<Option<StoredTenant>> {
        with_timeout(async {
            let mut snapshot = self.snapshot().await?;
            Ok::<_, StoreError>(read_tenants(&mut snapshot, Some(id)).await?.remove(id))
        })
        .await
    }

    /// Adds a tenant, of a generation of its own. Keys and secrets of an earlier tenant of this
    /// name are revoked and deleted. Returns the number of revoked keys.
    pub async fn add_tenant(&self, actor: &Actor, id: &TenantName, policy: &Policy) -> Result<u64> {
        let generation = TenantGeneration::generate();
        with_timeout(async {
            let mut change = self.change().await?;
            let row = sqlx::query(
                "INSERT INTO tenants (id, rate, burst, max_in_flight, weight, created, changed, \
                 callback_hosts, generation) VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $8) \
                 ON CONFLICT (id) DO NOTHING",
            );
            let row = bind_policy(row, id, policy).bind(generation.number());
            if row.execute(&mut *change).await?.rows_affected() == 0 {
                return Err(StoreError::AlreadyExists(format!("tenant `{id}`")));
            }
            write_parts(&mut change, id, policy).await?;
            let revoked = remove_traces(self.0.kind, &mut change, id).await?;
            let mut detail = json!(policy);
            detail["revoked_keys"] = json!(revoked);
            detail["generation"] = json!(generation.to_string());
            audit::note(&mut change, actor, "tenant.add", target(id), detail).await?;
            change.commit().await?;
            Ok(revoked)
        })
        .await
    }

    pub async fn set_tenant(&self, actor: &Actor, id: &TenantName, policy: &Policy) -> Result<()> {
        self.change_tenant(actor, id, |_| Ok(policy.clone())).await.map(drop)
    }

    /// Replaces a tenant's policy by the result of `change`, atomically, and returns it.
    pub async fn change_tenant<E: From<StoreError>>(
        &self,
        actor: &Actor,
        id: &TenantName,
        change: impl FnOnce(Policy) -> Result<Policy, E>,
    ) -> Result<Policy, E> {
        with_timeout(async {
            let mut transaction = self.change().await?;
            let before = read_tenants(&mut transaction, Some(id)).await?.remove(id);
            let before = before.ok_or_else(|| not_found(id))?;
            let policy = match change(before.policy) {
                Ok(policy) => policy,
                refusal => return Ok(refusal),
            };
            overwrite(&mut transaction, id, &policy).await?;
            let mut detail = json!(policy);
            detail["generation"] = json!(before.generation.to_string());
            audit::note(&mut transaction, actor, "tenant.set", target(id), detail).await?;
            transaction.commit().await?;
            Ok::<_, StoreError>(Ok(policy))
        })
        .await?
    }

    /// Removes a tenant and its secrets, and revokes its keys. Returns how many.
    pub async fn remove_tenant(&self, actor: &Actor, id: &TenantName) -> Result<u64> {
        with_timeout(async {
            let mut change = self.change().await?;
            let removed: Option<i64> = sqlx::query_scalar(
                "DELETE FROM tenants WHERE id = $1 RETURNING COALESCE(generation, created)",
            )
            .bind(id.as_str())
            .fetch_optional(&mut *change)
            .await?;
            let removed = TenantGeneration::from_number(removed.ok_or_else(|| not_found(id))?);
            let revoked = remove_traces(self.0.kind, &mut change, id).await?;
            let detail = json!({"revoked_keys": revoked, "generation": removed.to_string()});
            audit::note(&mut change, actor, "tenant.remove", target(id), detail).await?;
            change.commit().await?;
            Ok::<_, StoreError>(revoked)
        })
        .await
    }
}

/// Removes what opens a tenant's name or belongs to it, so that nothing is left for the next tenant
/// of that name. Returns the number of revoked keys.
pub(super) async fn remove_traces(
    kind: DatabaseKind,
    change: &mut Tx,
    name: &TenantName,
) -> Result<u64> {
    let revoked = keys::revoke_all(change, name).await?;
    secrets::delete_all(kind, change, name).await?;
    connections::remove(kind, change, name, None).await?;
    callback_secrets::delete(change, name).await?;
    file_tenants::delete(change, name).await?;
    Ok(revoked)
}

/// Returns the generation of the tenant that has a name now; that of the built-in one, if nobody
/// else has it.
pub(super) async fn present_generation(
    change: &mut Tx,
    name: &TenantName,
) -> Result<TenantGeneration> {
    let present = sqlx::query_scalar(
        "SELECT COALESCE((SELECT COALESCE(generation, created) FROM tenants WHERE id = $1), \
         (SELECT generation FROM file_tenants WHERE name = $1), $2)",
    )
    .bind(name.as_str())
    .bind(TenantGeneration::BUILT_IN.number());
    Ok(TenantGeneration::from_number(present.fetch_one(&mut **change).await?))
}

fn target(id: &TenantName) -> String {
    format!("tenant:{id}")
}

fn not_found(id: &TenantName) -> StoreError {
    StoreError::NotFound(format!("tenant `{id}`"))
}

type Statement<'q> = sqlx::query::Query<'q, Any, sqlx::any::AnyArguments>;

/// Binds `$1` to `$7`.
fn bind_policy<'q>(row: Statement<'q>, id: &TenantName, policy: &Policy) -> Statement<'q> {
    let Limit { rate, burst, max_in_flight } = &policy.limit;
    row.bind(id.as_str().to_owned())
        .bind(rate.map(|rate| rate.to_string()))
        .bind(burst.map(i64::from))
        .bind(max_in_flight.map(i64::from))
        .bind(i64::from(policy.weight))
        .bind(now())
        .bind(json!(policy.callback_hosts).to_string())
}

async fn overwrite(change: &mut Tx, id: &TenantName, policy: &Policy) -> Result<()> {
    let row = sqlx::query(
        "UPDATE tenants SET rate = $2, burst = $3, max_in_flight = $4, weight = $5, changed = $6, \
         callback_hosts = $7 WHERE id = $1",
    );
    bind_policy(row, id, policy).execute(&mut **change).await?;
    for table in ["DELETE FROM grants WHERE tenant = $1", "DELETE FROM limits WHERE tenant = $1"] {
        sqlx::query(table).bind(id.as_str()).execute(&mut **change).await?;
    }
    write_parts(change, id, policy).await
}

/// Writes the rows of a policy in other tables.
async fn write_parts(change: &mut Tx, id: &TenantName, policy: &Policy) -> Result<()> {
    let grants = policy.servers.list();
    if !grants.is_empty() {
        let placeholders = placeholders(grants.len(), 3);
        let text = format!("INSERT INTO grants (tenant, position, pattern) VALUES {placeholders}");
        let mut rows = sqlx::query(AssertSqlSafe(text)).persistent(false);
        for (position, grant) in (0_i64..).zip(grants) {
            rows = rows.bind(id.as_str()).bind(position).bind(grant.to_string());
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
    only: Option<&TenantName>,
) -> Result<BTreeMap<TenantName, StoredTenant>> {
    let only = only.map(TenantName::as_str);
    let rows: Vec<TenantRow> = sqlx::query_as(
        "SELECT id, COALESCE(generation, created), created, rate, burst, max_in_flight, weight, \
         callback_hosts FROM tenants WHERE $1 IS NULL OR id = $1",
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
    (id, generation, since, rate, burst, max_in_flight, weight, hosts): TenantRow,
    grants: Vec<GrantRow>,
    limits: Vec<LimitRow>,
) -> Result<(TenantName, StoredTenant)> {
    let pattern = |text: &str| Pattern::parse(text).map_err(|error| corrupt(&id, error));
    let grant = |text: &str| Grant::parse(text).map_err(|error| corrupt(&id, error));
    let scoped = limits.into_iter().map(|(_, text, rate, burst, max_in_flight)| {
        Ok((pattern(&text)?, limit(&id, rate, burst, max_in_flight)?))
    });
    let policy = Policy {
        limit: limit(&id, rate, burst, max_in_flight)?,
        weight: number(&id, weight)?,
        servers: Grants::new(grants.iter().map(|(_, text)| grant(text)).collect::<Result<_>>()?),
        limits: scoped.collect::<Result<_>>()?,
        callback_hosts: match hosts {
            Some(hosts) => serde_json::from_str(&hosts).map_err(|error| corrupt(&id, error))?,
            None => vec![],
        },
    };
    let generation = TenantGeneration::from_number(generation);
    let name = TenantName::parse(&id).map_err(|error| corrupt(&id, error))?;
    Ok((name, StoredTenant { generation, since, policy }))
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
