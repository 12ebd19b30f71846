//! Usage of tenants, by the minute.

use std::collections::BTreeMap;

use sqlx::AssertSqlSafe;

use super::{Result, Store, StoreError, Tx, now, placeholders, with_timeout};
use crate::common::ids::{ServerId, TenantGeneration, TenantId, TenantName};
use crate::common::usage::Counts;

pub const USAGE_ROWS_MAX: usize = 10_000;
/// With more, SQLite gets slower: it searches the parameters one by one.
const ROWS_PER_STATEMENT: usize = 50;
const COLUMNS: usize = 12;
const MINUTE_MS: i64 = 60_000;
/// Few enough that the statement ends in time.
const DELETED_PER_STATEMENT: i64 = 10_000;
/// No replica sends a batch again after this time.
const BATCH_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// One tool in one minute. Sorted, so that replicas that write the same rows cannot deadlock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageKey {
    /// The beginning of the minute, in milliseconds since 1970.
    pub minute: i64,
    pub tenant: TenantId,
    pub server: ServerId,
    pub tool: String,
}

#[derive(Clone, Debug)]
pub struct UsageQuery {
    /// In milliseconds since 1970, inclusive.
    pub from: i64,
    /// Exclusive.
    pub to: i64,
    pub whose: UsageOf,
    /// Returns a total for each minute, instead of one.
    pub by_minute: bool,
}

/// The tenants of a report.
#[derive(Clone, Debug)]
pub enum UsageOf {
    Everybody,
    /// All tenants that have or had this name.
    Name(TenantName),
    /// One tenant. `since` is in milliseconds since 1970.
    Tenant {
        id: TenantId,
        since: i64,
    },
}

/// Usage of one tool, in one minute or in the whole period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageTotal {
    pub minute: Option<i64>,
    pub tenant: TenantName,
    /// `None` if a version that knows no generations has counted.
    pub generation: Option<TenantGeneration>,
    pub server: ServerId,
    pub tool: String,
    pub counts: Counts,
}

/// In a result, of rows that were counted without a generation.
const UNKNOWN_GENERATION: i64 = -1;
const COUNTS: &str = "calls, errors, tool_errors, queue_us, backend_us, bytes_in, bytes_out";

/// Minute, tenant, server, tool, generation and counts.
type TotalRow = (i64, String, String, String, i64, i64, i64, i64, i64, i64, i64, i64);

impl Store {
    /// Adds usage of a replica. A batch with a known number is ignored, so that a replica may send
    /// it again if it does not know the outcome.
    pub async fn add_usage(
        &self,
        replica: &str,
        batch: u64,
        rows: &BTreeMap<UsageKey, Counts>,
    ) -> Result<()> {
        let rows: Vec<_> = rows.iter().collect();
        with_timeout(async {
            let mut write = self.write().await?;
            if !is_new(&mut write, replica, batch).await? {
                return Ok(());
            }
            for rows in rows.chunks(ROWS_PER_STATEMENT) {
                add(&mut write, rows).await?;
            }
            Ok::<_, StoreError>(write.commit().await?)
        })
        .await
    }

    /// Returns usage by tenant, server and tool.
    pub async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageTotal>> {
        // An `OR` would prevent the use of the indexes on tenants.
        let (whose, of_older, name, generation, since) = match &query.whose {
            UsageOf::Everybody => ("$4 IS NULL", "$4 IS NULL", None, UNKNOWN_GENERATION, i64::MIN),
            UsageOf::Name(name) => {
                ("tenant = $4", "tenant = $4", Some(name), UNKNOWN_GENERATION, i64::MIN)
            }
            UsageOf::Tenant { id, since } => {
                let whose = "tenant = $4 AND generation = $5";
                let (name, generation) = (Some(id.name()), id.generation().number());
                (whose, "tenant = $4", name, generation, since - since.rem_euclid(MINUTE_MS))
            }
        };
        // Multiplied by 0, all minutes are the same.
        let text = format!(
            "SELECT minute * $1, tenant, server, tool, generation, CAST(SUM(calls) AS BIGINT), \
             CAST(SUM(errors) AS BIGINT), CAST(SUM(tool_errors) AS BIGINT), \
             CAST(SUM(queue_us) AS BIGINT), CAST(SUM(backend_us) AS BIGINT), \
             CAST(SUM(bytes_in) AS BIGINT), CAST(SUM(bytes_out) AS BIGINT) FROM \
             (SELECT minute, tenant, server, tool, generation, {COUNTS} FROM tenant_usage \
             WHERE minute >= $2 AND minute < $3 AND {whose} UNION ALL \
             SELECT minute, tenant, server, tool, CAST($5 AS BIGINT), {COUNTS} FROM usage \
             WHERE minute >= $6 AND minute < $3 AND {of_older}) AS counted \
             GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT $7"
        );
        let rows = sqlx::query_as(AssertSqlSafe(text))
            .bind(i64::from(query.by_minute))
            .bind(query.from)
            .bind(query.to)
            .bind(name.map(TenantName::as_str))
            .bind(generation)
            .bind(query.from.max(since))
            .bind(i64::try_from(USAGE_ROWS_MAX + 1).unwrap_or(i64::MAX));
        let rows: Vec<TotalRow> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        if rows.len() > USAGE_ROWS_MAX {
            return Err(StoreError::TooManyRows(USAGE_ROWS_MAX));
        }
        rows.into_iter().map(|row| total(row, query.by_minute)).collect()
    }

    /// Deletes usage and audit entries from before these times. Returns how many.
    pub async fn delete_old(&self, usage_before: i64, audit_before: i64) -> Result<u64> {
        let usage = "DELETE FROM tenant_usage WHERE (minute, tenant, generation, server, tool) IN \
             (SELECT minute, tenant, generation, server, tool FROM tenant_usage \
             WHERE minute < $1 LIMIT $2)";
        let older = "DELETE FROM usage WHERE (minute, tenant, server, tool) IN \
             (SELECT minute, tenant, server, tool FROM usage WHERE minute < $1 LIMIT $2)";
        let audit = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 LIMIT $2)";
        let batches = "DELETE FROM usage_batches WHERE (replica, batch) IN \
             (SELECT replica, batch FROM usage_batches WHERE added < $1 LIMIT $2)";
        self.delete_before(batches, now() - BATCH_KEPT_MS).await?;
        Ok(self.delete_before(usage, usage_before).await?
            + self.delete_before(older, usage_before).await?
            + self.delete_before(audit, audit_before).await?)
    }

    /// Deletes rows from before this time, in several statements. Returns how many.
    pub(super) async fn delete_before(&self, text: &'static str, before: i64) -> Result<u64> {
        let mut deleted = 0;
        loop {
            let some = sqlx::query(text).bind(before).bind(DELETED_PER_STATEMENT);
            let some = with_timeout(some.execute(&self.pool()?)).await?.rows_affected();
            deleted += some;
            if some < DELETED_PER_STATEMENT.unsigned_abs() {
                return Ok(deleted);
            }
        }
    }
}

/// Inserts the number of a batch. A replica that inserts the same one waits until the transaction
/// ends.
async fn is_new(write: &mut Tx, replica: &str, batch: u64) -> Result<bool> {
    let noted = sqlx::query(
        "INSERT INTO usage_batches (replica, batch, added) VALUES ($1, $2, $3) \
         ON CONFLICT (replica, batch) DO NOTHING",
    )
    .bind(replica)
    .bind(batch.cast_signed())
    .bind(now())
    .execute(&mut **write)
    .await?;
    Ok(noted.rows_affected() == 1)
}

async fn add(write: &mut Tx, rows: &[(&UsageKey, &Counts)]) -> Result<()> {
    let text = format!(
        "INSERT INTO tenant_usage AS usage (minute, tenant, generation, server, tool, {COUNTS}) \
         VALUES {} ON CONFLICT (minute, tenant, generation, server, tool) DO UPDATE SET \
         calls = usage.calls + excluded.calls, errors = usage.errors + excluded.errors, \
         tool_errors = usage.tool_errors + excluded.tool_errors, \
         queue_us = usage.queue_us + excluded.queue_us, \
         backend_us = usage.backend_us + excluded.backend_us, \
         bytes_in = usage.bytes_in + excluded.bytes_in, \
         bytes_out = usage.bytes_out + excluded.bytes_out",
        placeholders(rows.len(), COLUMNS)
    );
    let is_full = rows.len() == ROWS_PER_STATEMENT;
    let mut insert = sqlx::query(AssertSqlSafe(text)).persistent(is_full);
    for (UsageKey { minute, tenant, server, tool }, counts) in rows {
        insert = insert.bind(*minute).bind(tenant.name().as_str());
        insert = insert.bind(tenant.generation().number()).bind(server.as_str()).bind(tool);
        let Counts { calls, errors, tool_errors, queue_us, backend_us, bytes_in, bytes_out } =
            **counts;
        for count in [calls, errors, tool_errors, queue_us, backend_us, bytes_in, bytes_out] {
            insert = insert.bind(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    insert.execute(&mut **write).await?;
    Ok(())
}

fn total(row: TotalRow, by_minute: bool) -> Result<UsageTotal> {
    let (minute, tenant, server, tool, generation, ..) = &row;
    let corrupt = |error| StoreError::Corrupt(format!("usage: {error}"));
    let counts = [row.5, row.6, row.7, row.8, row.9, row.10, row.11].map(i64::unsigned_abs);
    let [calls, errors, tool_errors, queue_us, backend_us, bytes_in, bytes_out] = counts;
    Ok(UsageTotal {
        minute: by_minute.then_some(*minute),
        tenant: TenantName::parse(tenant).map_err(corrupt)?,
        generation: Some(*generation)
            .filter(|number| *number != UNKNOWN_GENERATION)
            .map(TenantGeneration::from_number),
        server: ServerId::parse(server).map_err(corrupt)?,
        tool: tool.clone(),
        counts: Counts { calls, errors, tool_errors, queue_us, backend_us, bytes_in, bytes_out },
    })
}
