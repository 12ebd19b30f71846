//! Callbacks that are to be delivered. A gateway takes some for a while; if it is killed, any
//! gateway takes them again.

use sqlx::{AnyConnection, AssertSqlSafe};

use super::super::open::DatabaseKind;
use super::super::tenants::skip_corrupt;
use super::super::{Result, Store, StoreError, with_timeout};
use super::{NewCall, call_id, json};
use crate::common::ids::{CallId, TenantGeneration, TenantId, TenantName};

/// Few enough that others wait for milliseconds only.
const ROWS_PER_STEP: i64 = 500;

/// A callback that its call's caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCallback {
    pub url: String,
    /// JSON.
    pub about: String,
}

/// A callback that is this gateway's to deliver, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenCallback {
    pub call: CallId,
    pub tenant: TenantId,
    pub url: String,
    pub about: String,
    /// As in the record; `None` if nobody knows how the call ended.
    pub head: Option<String>,
    pub ended: i64,
    /// This one included.
    pub attempts: u32,
}

/// The progress of a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackStatus {
    pub state: CallbackState,
    pub attempts: u32,
    /// Why the last attempt has failed.
    pub problem: Option<String>,
}

/// The state of a callback, by its number in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackState {
    /// The call has not ended.
    Waiting = 0,
    Due = 1,
    Delivered = 2,
    GivenUp = 3,
}

type TakenRow = (String, String, i64, String, String, Option<String>, i64, i64);

impl CallbackState {
    fn of(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::Waiting,
            1 => Self::Due,
            2 => Self::Delivered,
            3 => Self::GivenUp,
            _ => return Err(StoreError::Corrupt(format!("a callback is in the state {number}"))),
        })
    }
}

impl Store {
    /// Returns the names of tenants that have callbacks to deliver now. Steps from tenant to tenant
    /// in the index: a backlog costs no more than one callback.
    pub async fn tenants_with_due_callbacks(&self) -> Result<Vec<TenantName>> {
        let text = format!(
            "WITH RECURSIVE named(tenant) AS (\
             SELECT MIN(tenant) FROM call_callbacks WHERE state = 1 UNION ALL \
             SELECT (SELECT MIN(later.tenant) FROM call_callbacks AS later \
             WHERE later.state = 1 AND later.tenant > named.tenant) FROM named \
             WHERE named.tenant IS NOT NULL) \
             SELECT tenant FROM named WHERE tenant IS NOT NULL \
             AND (SELECT MIN(due) FROM call_callbacks WHERE state = 1 \
             AND call_callbacks.tenant = named.tenant) <= ({})",
            self.0.kind.clock()
        );
        let names = sqlx::query_scalar::<_, String>(AssertSqlSafe(text));
        let names = with_timeout(names.fetch_all(&self.pool()?)).await?;
        let name = |name: String| TenantName::parse(&name).map_err(StoreError::from);
        Ok(names.into_iter().map(name).filter_map(skip_corrupt).collect())
    }

    /// Takes some callbacks of a tenant for `lease_ms`, those first that wait for longest. Of
    /// several gateways, one gets each. Each counts as attempted.
    pub async fn take_callbacks(
        &self,
        tenant: &TenantName,
        limit: u32,
        lease_ms: i64,
    ) -> Result<Vec<TakenCallback>> {
        let clock = self.0.kind.clock();
        let text = format!(
            "UPDATE call_callbacks SET attempts = attempts + 1, due = ({clock}) + $3 \
             WHERE state = 1 AND due <= ({clock}) AND call IN \
             (SELECT call FROM call_callbacks WHERE state = 1 AND tenant = $1 \
             AND due <= ({clock}) ORDER BY due LIMIT $2) \
             RETURNING call, tenant, generation, url, about, head, COALESCE(ended, 0), attempts"
        );
        let rows = sqlx::query_as(AssertSqlSafe(text)).bind(tenant.as_str().to_owned());
        let rows = rows.bind(i64::from(limit)).bind(lease_ms);
        let rows: Vec<TakenRow> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        Ok(rows.into_iter().map(taken).filter_map(skip_corrupt).collect())
    }

    /// Has a callback delivered again after `pause_ms`.
    pub async fn retry_callback(
        &self,
        callback: &TakenCallback,
        pause_ms: i64,
        problem: &str,
    ) -> Result<()> {
        let text = format!(
            "UPDATE call_callbacks SET due = ({}) + $3, problem = $4 \
             WHERE call = $1 AND state = 1 AND attempts = $2",
            self.0.kind.clock()
        );
        let retry = sqlx::query(AssertSqlSafe(text)).bind(callback.call.to_string());
        let retry = retry.bind(i64::from(callback.attempts)).bind(pause_ms);
        with_timeout(retry.bind(problem.to_owned()).execute(&self.pool()?)).await.map(drop)
    }

    /// Ends a callback. Its row stays as long as the record of its call.
    pub async fn end_callback(
        &self,
        callback: &TakenCallback,
        state: CallbackState,
        problem: Option<&str>,
    ) -> Result<()> {
        with_timeout(async {
            let mut write = self.write().await?;
            sqlx::query(
                "UPDATE call_callbacks SET state = $2, problem = $3, due = NULL \
                 WHERE call = $1 AND state = 1",
            )
            .bind(callback.call.to_string())
            .bind(state as i64)
            .bind(problem.map(str::to_owned))
            .execute(&mut *write)
            .await?;
            sqlx::query(
                "DELETE FROM call_callbacks WHERE call = $1 \
                 AND NOT EXISTS (SELECT 1 FROM calls WHERE id = $1)",
            )
            .bind(callback.call.to_string())
            .execute(&mut *write)
            .await?;
            Ok::<_, StoreError>(write.commit().await?)
        })
        .await
    }

    /// Returns the progress of a call's callback, if it has one.
    pub async fn callback_status(&self, call: CallId) -> Result<Option<CallbackStatus>> {
        let row = sqlx::query_as::<_, (i64, i64, Option<String>)>(
            "SELECT state, attempts, problem FROM call_callbacks WHERE call = $1",
        );
        let row = with_timeout(row.bind(call.to_string()).fetch_optional(&self.pool()?)).await?;
        row.map(|(state, attempts, problem)| {
            let (state, attempts) = (CallbackState::of(state)?, attempts_of(attempts));
            Ok(CallbackStatus { state, attempts, problem })
        })
        .transpose()
    }

    /// Deletes some callbacks of a tenant that is gone with all its calls. Returns whether there
    /// may be more.
    pub async fn delete_tenants_callbacks(&self, tenant: &TenantId) -> Result<bool> {
        let deleted = sqlx::query(
            "DELETE FROM call_callbacks WHERE call IN (SELECT call FROM call_callbacks \
             WHERE state = 1 AND tenant = $1 AND generation = $2 LIMIT $3)",
        );
        let deleted = deleted
            .bind(tenant.name().to_string())
            .bind(tenant.generation().number())
            .bind(ROWS_PER_STEP);
        let deleted = with_timeout(deleted.execute(&self.pool()?)).await?;
        Ok(deleted.rows_affected() == ROWS_PER_STEP.unsigned_abs())
    }
}

/// Inserts the callbacks of new calls.
pub(super) async fn insert<'a>(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    new: impl Iterator<Item = &'a NewCall>,
) -> Result<()> {
    let row = |call: &'a NewCall| {
        let NewCallback { url, about } = call.callback.as_ref()?;
        let (tenant, generation) = (call.tenant.name().as_str(), call.tenant.generation().number());
        Some((call.id.to_string(), tenant, generation, url, about))
    };
    let rows: Vec<_> = new.filter_map(row).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let text = format!(
        "INSERT INTO call_callbacks (call, tenant, generation, url, about, state) \
         SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), value ->> 3, value ->> 4, 0 \
         FROM {} WHERE TRUE ON CONFLICT DO NOTHING",
        kind.json_rows()
    );
    sqlx::query(AssertSqlSafe(text)).bind(json(&rows)).execute(connection).await?;
    Ok(())
}

/// Has the callbacks delivered of calls that have ended: a JSON array of their ids.
pub(super) async fn make_due(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    calls: &str,
) -> Result<()> {
    let text = format!(
        "UPDATE call_callbacks SET state = 1, due = ({}), head = calls.head, ended = calls.ended \
         FROM calls WHERE calls.id = call AND calls.state > 1 AND call IN {} \
         AND call_callbacks.state = 0",
        kind.clock(),
        kind.json_texts()
    );
    sqlx::query(AssertSqlSafe(text)).bind(calls).execute(connection).await?;
    Ok(())
}

/// Deletes the callbacks of calls whose records are deleted, except those still to be delivered: a
/// JSON array of the calls' ids.
pub(super) async fn delete_settled(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    calls: &str,
) -> Result<()> {
    let text =
        format!("DELETE FROM call_callbacks WHERE call IN {} AND state <> 1", kind.json_texts());
    sqlx::query(AssertSqlSafe(text)).bind(calls).execute(connection).await?;
    Ok(())
}

fn taken(row: TakenRow) -> Result<TakenCallback> {
    let (call, tenant, generation, url, about, head, ended, attempts) = row;
    let tenant = TenantName::parse(&tenant).map_err(StoreError::from)?;
    Ok(TakenCallback {
        call: call_id(&call)?,
        tenant: tenant.of(TenantGeneration::from_number(generation)),
        url,
        about,
        head,
        ended,
        attempts: attempts_of(attempts),
    })
}

fn attempts_of(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
