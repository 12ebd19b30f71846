//! Deletes what has expired and evicts results, in steps that block nobody for long.

use sqlx::any::AnyArguments;
use sqlx::query::QueryAs;
use sqlx::{Any, AssertSqlSafe};

use super::super::{Result, Store, StoreError, with_timeout};
use super::batch::{count_deleted, count_evicted, delete_labels};
use super::{call_id, callbacks, json};
use crate::common::ids::{CallId, TenantGeneration, TenantId, TenantName};

/// Few enough that others wait for milliseconds only.
const ROWS_PER_STEP: i64 = 500;

/// The records and result bytes of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTotal {
    pub tenant: TenantId,
    pub records: i64,
    pub bytes: i64,
}

/// One step of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub bytes: i64,
    /// The last call that was looked at; `None` if there are no more.
    pub last: Option<CallId>,
}

/// Id, tenant, generation and bytes of a deleted record.
type Gone = (String, String, i64, i64);
type Deletion = QueryAs<'static, Any, Gone, AnyArguments>;

impl Store {
    /// Returns how much each tenant keeps.
    pub async fn call_totals(&self) -> Result<Vec<CallTotal>> {
        let rows = sqlx::query_as::<_, (String, i64, i64, i64)>(
            "SELECT tenant, generation, CAST(SUM(records) AS BIGINT), CAST(SUM(bytes) AS BIGINT) \
             FROM call_usage GROUP BY tenant, generation",
        );
        let rows = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        let total = |(tenant, generation, records, bytes): (String, i64, i64, i64)| {
            let name = TenantName::parse(&tenant).map_err(StoreError::from)?;
            let tenant = name.of(TenantGeneration::from_number(generation));
            Ok(CallTotal { tenant, records, bytes })
        };
        rows.into_iter().map(total).collect()
    }

    /// Deletes some records that have expired. Returns whether there may be more.
    pub async fn delete_expired_calls(&self, owner: &str, now: i64) -> Result<bool> {
        let gone = sqlx::query_as(
            "DELETE FROM calls WHERE id IN \
             (SELECT id FROM calls WHERE expires < $1 ORDER BY expires LIMIT $2) \
             RETURNING id, tenant, generation, result_len",
        );
        self.delete_calls(owner, gone.bind(now).bind(ROWS_PER_STEP)).await
    }

    /// Returns the tenants that keep calls and exist no more. The built-in tenant always exists.
    pub async fn gone_call_tenants(&self) -> Result<Vec<TenantId>> {
        let rows = sqlx::query_as::<_, (String, i64)>(
            "SELECT DISTINCT tenant, generation FROM call_usage WHERE generation <> 0 \
             AND NOT EXISTS (SELECT 1 FROM tenants WHERE tenants.id = call_usage.tenant \
             AND COALESCE(tenants.generation, tenants.created) = call_usage.generation) \
             AND NOT EXISTS (SELECT 1 FROM file_tenants \
             WHERE file_tenants.name = call_usage.tenant \
             AND file_tenants.generation = call_usage.generation)",
        );
        let rows = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        let tenant = |(name, generation): (String, i64)| {
            Ok(TenantName::parse(&name)?.of(TenantGeneration::from_number(generation)))
        };
        rows.into_iter().map(tenant).collect()
    }

    /// Forgets how much a tenant keeps that is gone with all its calls.
    pub async fn forget_call_usage(&self, tenant: &TenantId) -> Result<()> {
        let forget = sqlx::query("DELETE FROM call_usage WHERE tenant = $1 AND generation = $2");
        let forget = forget.bind(tenant.name().to_string()).bind(tenant.generation().number());
        with_timeout(forget.execute(&self.pool()?)).await.map(drop)
    }

    /// Deletes some records of a tenant that is gone. Returns whether there may be more.
    pub async fn delete_tenants_calls(&self, owner: &str, tenant: &TenantId) -> Result<bool> {
        let gone = sqlx::query_as(
            "DELETE FROM calls WHERE id IN \
             (SELECT id FROM calls WHERE tenant = $1 AND generation = $2 LIMIT $3) \
             RETURNING id, tenant, generation, result_len",
        );
        let gone = gone
            .bind(tenant.name().to_string())
            .bind(tenant.generation().number())
            .bind(ROWS_PER_STEP);
        self.delete_calls(owner, gone).await
    }

    /// Deletes one record, if it has expired or is still as it was read.
    pub async fn delete_call(
        &self,
        owner: &str,
        id: CallId,
        ended: Option<i64>,
        now: i64,
    ) -> Result<()> {
        let gone = sqlx::query_as(
            "DELETE FROM calls WHERE id = $1 AND (ended = $2 OR expires < $3) \
             RETURNING id, tenant, generation, result_len",
        );
        let gone = gone.bind(id.to_string()).bind(ended).bind(now);
        self.delete_calls(owner, gone).await.map(drop)
    }

    /// Runs a deletion, and deletes what belongs to the calls.
    async fn delete_calls(&self, owner: &str, delete: Deletion) -> Result<bool> {
        with_timeout(async {
            let mut write = self.write().await?;
            let gone = delete.fetch_all(&mut *write).await?;
            if gone.is_empty() {
                return Ok(false);
            }
            let calls: Vec<_> = gone.iter().map(|(id, ..)| id).collect();
            let calls = json(&calls);
            delete_labels(self.0.kind, &mut write, &calls).await?;
            callbacks::delete_settled(self.0.kind, &mut write, &calls).await?;
            let text =
                format!("DELETE FROM call_results WHERE call IN {}", self.0.kind.json_texts());
            sqlx::query(AssertSqlSafe(text)).bind(&calls).execute(&mut *write).await?;
            count_deleted(self.0.kind, &mut write, owner, &gone).await?;
            write.commit().await?;
            Ok::<_, StoreError>(gone.len() as i64 == ROWS_PER_STEP)
        })
        .await
    }

    /// Evicts results of a tenant, the oldest first, after the call `after`, until `enough` bytes
    /// are gone or the step is over.
    pub async fn evict_results(
        &self,
        owner: &str,
        tenant: &TenantId,
        after: Option<CallId>,
        enough: i64,
    ) -> Result<Evicted> {
        with_timeout(async {
            let mut write = self.write().await?;
            let rows: Vec<(String, i64)> = sqlx::query_as(
                "SELECT id, result_len FROM calls WHERE tenant = $1 AND generation = $2 \
                 AND id > $3 ORDER BY id LIMIT $4",
            )
            .bind(tenant.name().as_str())
            .bind(tenant.generation().number())
            .bind(after.map(|id| id.to_string()).unwrap_or_default())
            .bind(ROWS_PER_STEP)
            .fetch_all(&mut *write)
            .await?;
            let (mut bytes, mut last, mut evicted) = (0, None, vec![]);
            for (id, len) in rows {
                if bytes >= enough {
                    break;
                }
                bytes += len;
                last = Some(call_id(&id)?);
                evicted.extend((len > 0).then_some(id));
            }
            let calls = json(&evicted);
            for text in [
                "UPDATE calls SET result = NULL, result_len = 0, parts = 0 WHERE id IN",
                "DELETE FROM call_results WHERE call IN",
            ] {
                let text = format!("{text} {}", self.0.kind.json_texts());
                sqlx::query(AssertSqlSafe(text)).bind(&calls).execute(&mut *write).await?;
            }
            count_evicted(self.0.kind, &mut write, owner, tenant, bytes).await?;
            write.commit().await?;
            Ok::<_, StoreError>(Evicted { bytes, last })
        })
        .await
    }
}
