//! How much each tenant keeps, counted in the transactions that change it.

use std::collections::BTreeMap;

use sqlx::{AnyConnection, AssertSqlSafe};

use super::super::super::open::DatabaseKind;
use super::super::super::{Result, StoreError};
use super::super::{json, shard_of};
use crate::common::ids::{TenantGeneration, TenantId, TenantName};

/// Changes of the counters, by tenant. Sorted, so that gateways cannot deadlock.
#[derive(Default)]
pub(super) struct Counts(BTreeMap<TenantId, (i64, i64)>);

impl Counts {
    pub(super) fn add(&mut self, tenant: &TenantId, records: i64, bytes: i64) {
        let counts = match self.0.get_mut(tenant) {
            Some(counts) => counts,
            None => self.0.entry(tenant.clone()).or_default(),
        };
        *counts = (counts.0 + records, counts.1 + bytes);
    }

    /// Counts rows as deleted: id, tenant, generation and bytes of each.
    pub(super) fn remove(&mut self, rows: &[(String, String, i64, i64)]) -> Result<()> {
        for (_, tenant, generation, bytes) in rows {
            let name = TenantName::parse(tenant).map_err(StoreError::from)?;
            self.add(&name.of(TenantGeneration::from_number(*generation)), -1, -bytes);
        }
        Ok(())
    }

    pub(super) async fn write(
        &self,
        kind: DatabaseKind,
        connection: &mut AnyConnection,
        shard: i64,
    ) -> Result<()> {
        let changed = self.0.iter().filter(|(_, counts)| **counts != (0, 0));
        let rows: Vec<_> = changed
            .map(|(tenant, (records, bytes))| {
                (tenant.name().as_str(), tenant.generation().number(), shard, records, bytes)
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let text = format!(
            "INSERT INTO call_usage (tenant, generation, shard, records, bytes) \
             SELECT value ->> 0, CAST(value ->> 1 AS BIGINT), CAST(value ->> 2 AS BIGINT), \
             CAST(value ->> 3 AS BIGINT), CAST(value ->> 4 AS BIGINT) FROM {} WHERE TRUE \
             ON CONFLICT (tenant, generation, shard) DO UPDATE SET \
             records = call_usage.records + excluded.records, \
             bytes = call_usage.bytes + excluded.bytes",
            kind.json_rows()
        );
        sqlx::query(AssertSqlSafe(text)).bind(json(&rows)).execute(connection).await?;
        Ok(())
    }
}

/// Notes that rows are gone: id, tenant, generation and bytes of each.
pub(in super::super) async fn count_deleted(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    rows: &[(String, String, i64, i64)],
) -> Result<()> {
    let mut counts = Counts::default();
    counts.remove(rows)?;
    counts.write(kind, connection, shard_of(owner)).await
}

/// Notes that bytes of a tenant are gone.
pub(in super::super) async fn count_evicted(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    tenant: &TenantId,
    bytes: i64,
) -> Result<()> {
    let mut counts = Counts::default();
    counts.add(tenant, 0, -bytes);
    counts.write(kind, connection, shard_of(owner)).await
}
