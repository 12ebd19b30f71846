//! Reads records of calls.

use sqlx::AssertSqlSafe;

use super::super::tenants::skip_corrupt;
use super::super::{Result, Store, StoreError, can_be_stored, with_timeout};
use super::{CallState, StoredCall, call_id};
use crate::common::ids::{CallId, ServerId, TenantId};

/// The columns of a [`Row`].
const COLUMNS: &str = "id, fingerprint, server, tool, state, owner, request, created, \
                                  begun, ended, expires, head, result, parts";
/// For lists: without results.
const COLUMNS_OF_LIST: &str = "id, fingerprint, server, tool, state, owner, request, created, \
                               begun, ended, expires, head, CAST(NULL AS TEXT), parts";

type Row = (
    String,
    String,
    String,
    String,
    i64,
    String,
    String,
    i64,
    Option<i64>,
    Option<i64>,
    i64,
    Option<String>,
    Option<String>,
    i64,
);

/// Calls of one tenant, the latest first.
#[derive(Clone, Debug)]
pub struct CallQuery {
    pub tenant: TenantId,
    pub label: Option<String>,
    /// All, if empty.
    pub states: Vec<CallState>,
    /// Older than this one.
    pub before: Option<CallId>,
    pub limit: u32,
}

impl Store {
    /// Returns the record that has a key.
    pub async fn call_of_scope(&self, scope: &str) -> Result<Option<StoredCall>> {
        let text = format!("SELECT {COLUMNS} FROM calls WHERE scope = $1");
        let row = sqlx::query_as(AssertSqlSafe(text)).bind(scope.to_owned());
        let row = with_timeout(row.fetch_optional(&self.pool()?)).await?;
        row.map(stored).transpose()
    }

    /// Returns a tenant's record.
    pub async fn call(&self, tenant: &TenantId, id: CallId) -> Result<Option<StoredCall>> {
        let text = format!(
            "SELECT {COLUMNS} FROM calls WHERE id = $1 AND tenant = $2 AND generation = $3"
        );
        let row = sqlx::query_as(AssertSqlSafe(text))
            .bind(id.to_string())
            .bind(tenant.name().as_str())
            .bind(tenant.generation().number());
        let row = with_timeout(row.fetch_optional(&self.pool()?)).await?;
        row.map(stored).transpose()
    }

    /// Returns calls without their results, and no batches. Corrupt ones are skipped.
    pub async fn calls(&self, query: &CallQuery) -> Result<Vec<StoredCall>> {
        if query.label.as_deref().is_some_and(|label| !can_be_stored(label)) {
            return Ok(vec![]);
        }
        let states: Vec<_> = query.states.iter().map(|state| (*state as i64).to_string()).collect();
        let of_state = match states.is_empty() {
            true => String::new(),
            false => format!("AND state IN ({})", states.join(", ")),
        };
        let of_label = match query.label {
            Some(_) => {
                "id IN (SELECT call FROM call_labels WHERE tenant = $1 AND label = $3 \
                 AND call < $4)"
            }
            None => "CAST($3 AS TEXT) IS NULL",
        };
        let text = format!(
            "SELECT {COLUMNS_OF_LIST} FROM calls WHERE tenant = $1 AND generation = $2 \
             AND tool <> '' AND {of_label} AND id < $4 {of_state} ORDER BY id DESC LIMIT $5"
        );
        // No id is greater.
        let before = query.before.map_or_else(|| "g".to_owned(), |id| id.to_string());
        let rows = sqlx::query_as(AssertSqlSafe(text))
            .bind(query.tenant.name().as_str())
            .bind(query.tenant.generation().number())
            .bind(query.label.clone())
            .bind(before)
            .bind(i64::from(query.limit));
        let rows: Vec<Row> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        Ok(rows.into_iter().map(stored).filter_map(skip_corrupt).collect())
    }
}

fn stored(row: Row) -> Result<StoredCall> {
    let (id, fingerprint, server, tool, state, owner, request, created, begun, ended, expires) =
        (row.0, row.1, row.2, row.3, row.4, row.5, row.6, row.7, row.8, row.9, row.10);
    Ok(StoredCall {
        id: call_id(&id)?,
        fingerprint,
        server: ServerId::parse(&server).map_err(StoreError::from)?,
        tool,
        state: CallState::of(state)?,
        owner,
        request,
        created,
        begun,
        ended,
        expires,
        head: row.11,
        result: row.12,
        parts: row.13,
    })
}
