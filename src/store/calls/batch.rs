//! Writes many transitions of calls in one transaction: one statement for each kind, whose rows are
//! one JSON array.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

use super::super::open::DatabaseKind;
use super::super::{Result, Store, StoreError, with_timeout};
use super::{CallState, EndedCall, NewCall, call_id, callbacks, json, shard_of};
use crate::common::ids::{CallId, TenantGeneration, TenantId, TenantName};

/// Keys are random, so a transaction changes pages all over the index of scopes. They must be in
/// memory (32 MiB, by the negative number), and be copied from the log seldom (every 32 MiB of it).
const SQLITE_SETTINGS: &str = "PRAGMA cache_size = -32768; PRAGMA wal_autocheckpoint = 8192";

/// Transitions that are written together.
#[derive(Clone, Debug, Default)]
pub struct CallBatch {
    pub new: Vec<NewCall>,
    /// Accepted calls that begin, when, and their state from then on: a batch stays accepted.
    pub begun: Vec<(CallId, i64, CallState)>,
    pub ended: Vec<EndedCall>,
    /// Calls that leave nothing behind: no server has seen them.
    pub forgotten: Vec<CallId>,
    /// Accepted calls that another gateway shall begin.
    pub handed_over: Vec<CallId>,
}

/// The calls whose transitions took place. All others were refused by the state of their record.
#[derive(Debug, Default)]
pub struct Written {
    pub new: HashSet<CallId>,
    pub begun: HashSet<CallId>,
    pub ended: HashSet<CallId>,
}

/// Changes of the counters, by tenant. Sorted, so that gateways cannot deadlock.
#[derive(Default)]
struct Counts(BTreeMap<TenantId, (i64, i64)>);

/// The writer's own connection. Opened anew after an error.
pub struct CallConnection {
    store: Store,
    owner: Arc<str>,
    /// With SQLite: each commit waits for the disk.
    is_full: bool,
    /// With the epoch of the store that it belongs to.
    open: Option<(u64, AnyConnection)>,
}

impl CallBatch {
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
            && self.begun.is_empty()
            && self.ended.is_empty()
            && self.forgotten.is_empty()
            && self.handed_over.is_empty()
    }
}

impl Store {
    /// Returns a connection for the transitions of one gateway's calls. `is_full`: with SQLite, a
    /// commit is safe even if the machine loses power.
    pub fn call_connection(&self, owner: Arc<str>, is_full: bool) -> CallConnection {
        CallConnection { store: self.clone(), owner, is_full, open: None }
    }
}

impl CallConnection {
    /// Writes all transitions, or none. After an error nobody knows which.
    pub async fn write(&mut self, batch: &CallBatch) -> Result<Written> {
        let kind = self.store.0.kind;
        let (epoch, mut connection) = match self.open.take() {
            // Also fails if the file is away.
            Some(open) if open.0 == self.store.epoch() => self.store.pool().map(|_| open)?,
            _ => (self.store.epoch(), with_timeout(connect(&self.store, self.is_full)).await?),
        };
        let owner = self.owner.clone();
        let written = with_timeout(write(kind, &mut connection, &owner, batch)).await?;
        self.open = Some((epoch, connection));
        Ok(written)
    }
}

async fn connect(store: &Store, is_full: bool) -> Result<AnyConnection> {
    let mut connection = store.pool()?.acquire().await?.detach();
    if store.0.kind == DatabaseKind::Sqlite {
        let level = if is_full { "FULL" } else { "NORMAL" };
        let text = format!("PRAGMA synchronous = {level}; {SQLITE_SETTINGS}");
        connection.execute(AssertSqlSafe(text)).await?;
    }
    Ok(connection)
}

async fn write(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    batch: &CallBatch,
) -> Result<Written> {
    let mut transaction = connection.begin_with(kind.begin_write()).await?;
    let (mut written, mut counts) = (Written::default(), Counts::default());
    if !batch.new.is_empty() {
        written.new = insert(kind, &mut transaction, &batch.new).await?;
        for call in batch.new.iter().filter(|call| written.new.contains(&call.id)) {
            counts.add(&call.tenant, 1, 0);
        }
    }
    if !batch.begun.is_empty() {
        let row = |(id, at, state): &(CallId, i64, CallState)| (id.to_string(), *at, *state as i64);
        let rows: Vec<_> = batch.begun.iter().map(row).collect();
        let text = format!(
            "UPDATE calls SET state = CAST(batch.value ->> 2 AS BIGINT), \
             begun = CAST(batch.value ->> 1 AS BIGINT) FROM {} \
             WHERE calls.id = (batch.value ->> 0) AND calls.owner = $2 AND calls.state < 2 \
             RETURNING calls.id",
            kind.json_rows()
        );
        written.begun = ids(&mut transaction, text, &json(&rows), owner).await?;
    }
    if !batch.ended.is_empty() {
        written.ended = end(kind, &mut transaction, owner, &batch.ended).await?;
        for call in batch.ended.iter().filter(|call| written.ended.contains(&call.id)) {
            counts.add(&call.tenant, 0, call.result_len);
        }
    }
    if !batch.forgotten.is_empty() {
        forget(kind, &mut transaction, owner, &batch.forgotten, &mut counts).await?;
    }
    if !batch.handed_over.is_empty() {
        let rows: Vec<_> = batch.handed_over.iter().map(CallId::to_string).collect();
        let text = format!(
            "UPDATE calls SET owner = '' WHERE id IN {} AND owner = $2 AND state = 0 RETURNING id",
            kind.json_texts()
        );
        ids(&mut transaction, text, &json(&rows), owner).await?;
    }
    counts.write(kind, &mut transaction, shard_of(owner)).await?;
    transaction.commit().await?;
    Ok(written)
}

/// Inserts those whose key nobody has. Returns which.
async fn insert(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    new: &[NewCall],
) -> Result<HashSet<CallId>> {
    let mut new: Vec<_> = new.iter().collect();
    // In one order, so that gateways that insert the same keys cannot deadlock.
    new.sort_by(|one, other| one.scope.cmp(&other.scope));
    let rows: Vec<_> = new
        .iter()
        .map(|call| {
            (
                call.id.to_string(),
                call.tenant.name().as_str(),
                call.tenant.generation().number(),
                &call.scope,
                &call.fingerprint,
                call.server.as_str(),
                &call.tool,
                call.state as i64,
                &*call.owner,
                &call.request,
                &call.arguments,
                (call.created, (call.state as i64 > 0).then_some(call.created), call.expires),
            )
        })
        .collect();
    let text = format!(
        "INSERT INTO calls (id, tenant, generation, scope, fingerprint, server, tool, state, \
         owner, request, arguments, created, begun, expires) \
         SELECT value ->> 0, value ->> 1, CAST(value ->> 2 AS BIGINT), value ->> 3, value ->> 4, \
         value ->> 5, value ->> 6, CAST(value ->> 7 AS BIGINT), value ->> 8, value ->> 9, \
         value ->> 10, CAST(value -> 11 ->> 0 AS BIGINT), CAST(value -> 11 ->> 1 AS BIGINT), \
         CAST(value -> 11 ->> 2 AS BIGINT) FROM {} WHERE TRUE \
         ON CONFLICT DO NOTHING RETURNING id",
        kind.json_rows()
    );
    let inserted = sqlx::query_scalar::<_, String>(AssertSqlSafe(text)).bind(json(&rows));
    let inserted = inserted.fetch_all(&mut *connection).await?;
    let inserted: HashSet<_> = inserted.iter().map(|id| call_id(id)).collect::<Result<_>>()?;
    let mut labels = vec![];
    for call in new.iter().filter(|call| inserted.contains(&call.id)) {
        let of = (call.tenant.name().as_str(), call.id.to_string());
        labels.extend(call.labels.iter().map(|label| (of.0, label, of.1.clone())));
    }
    if !labels.is_empty() {
        let text = format!(
            "INSERT INTO call_labels (tenant, label, call) \
             SELECT value ->> 0, value ->> 1, value ->> 2 FROM {} WHERE TRUE \
             ON CONFLICT DO NOTHING",
            kind.json_rows()
        );
        sqlx::query(AssertSqlSafe(text)).bind(json(&labels)).execute(&mut *connection).await?;
    }
    let is_new = |call: &&NewCall| inserted.contains(&call.id);
    callbacks::insert(kind, connection, new.into_iter().filter(is_new)).await?;
    Ok(inserted)
}

/// Ends calls that have not ended yet; also those that another gateway has given up too soon.
async fn end(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    ended: &[EndedCall],
) -> Result<HashSet<CallId>> {
    let rows: Vec<_> = ended
        .iter()
        .map(|call| {
            let EndedCall { at, head, result, result_len, parts, .. } = call;
            (call.id.to_string(), at, head, result, result_len, parts)
        })
        .collect();
    // Without the scope: SQLite would write its place in the index again, in a page of its own.
    let text = format!(
        "UPDATE calls SET state = 2, arguments = NULL, ended = CAST(batch.value ->> 1 AS BIGINT), \
         head = batch.value ->> 2, result = batch.value ->> 3, \
         result_len = CAST(batch.value ->> 4 AS BIGINT), \
         parts = CAST(batch.value ->> 5 AS BIGINT) FROM {} \
         WHERE calls.id = (batch.value ->> 0) AND calls.owner = $2 AND calls.state <> 2 \
         RETURNING calls.id",
        kind.json_rows()
    );
    let has_ended = ids(connection, text, &json(&rows), owner).await?;
    let frees_key = |call: &&EndedCall| call.frees_key && has_ended.contains(&call.id);
    let freed: Vec<_> = ended.iter().filter(frees_key).map(|call| call.id.to_string()).collect();
    if !freed.is_empty() {
        let text = format!("UPDATE calls SET scope = NULL WHERE id IN {}", kind.json_texts());
        sqlx::query(AssertSqlSafe(text)).bind(json(&freed)).execute(&mut *connection).await?;
    }
    // In each case, as its record may have ended before: it was given up too soon.
    let called: Vec<_> = ended.iter().filter(|it| it.has_callback).map(|it| it.id).collect();
    if !called.is_empty() {
        let calls: Vec<_> = called.iter().map(CallId::to_string).collect();
        callbacks::make_due(kind, connection, &json(&calls)).await?;
    }
    Ok(has_ended)
}

async fn forget(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    forgotten: &[CallId],
    counts: &mut Counts,
) -> Result<()> {
    let rows: Vec<_> = forgotten.iter().map(CallId::to_string).collect();
    let rows = json(&rows);
    let text = format!(
        "DELETE FROM calls WHERE id IN {} AND owner = $2 AND state <> 2 \
         RETURNING id, tenant, generation, result_len",
        kind.json_texts()
    );
    let gone: Vec<(String, String, i64, i64)> = sqlx::query_as(AssertSqlSafe(text))
        .bind(&rows)
        .bind(owner)
        .fetch_all(&mut *connection)
        .await?;
    counts.remove(&gone)?;
    callbacks::delete_settled(kind, connection, &rows).await?;
    delete_labels(kind, connection, &rows).await
}

/// Deletes the labels of calls that are gone: a JSON array of their ids.
pub(super) async fn delete_labels(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    calls: &str,
) -> Result<()> {
    let text = format!("DELETE FROM call_labels WHERE call IN {}", kind.json_texts());
    sqlx::query(AssertSqlSafe(text)).bind(calls).execute(connection).await?;
    Ok(())
}

async fn ids(
    connection: &mut AnyConnection,
    text: String,
    rows: &str,
    owner: &str,
) -> Result<HashSet<CallId>> {
    let ids = sqlx::query_scalar::<_, String>(AssertSqlSafe(text)).bind(rows).bind(owner);
    ids.fetch_all(connection).await?.iter().map(|id| call_id(id)).collect()
}

impl Counts {
    fn add(&mut self, tenant: &TenantId, records: i64, bytes: i64) {
        let counts = self.0.entry(tenant.clone()).or_default();
        *counts = (counts.0 + records, counts.1 + bytes);
    }

    /// Counts rows as deleted: id, tenant, generation and bytes of each.
    fn remove(&mut self, rows: &[(String, String, i64, i64)]) -> Result<()> {
        for (_, tenant, generation, bytes) in rows {
            let name = TenantName::parse(tenant).map_err(StoreError::from)?;
            self.add(&name.of(TenantGeneration::from_number(*generation)), -1, -bytes);
        }
        Ok(())
    }

    async fn write(
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
pub(super) async fn count_deleted(
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
pub(super) async fn count_evicted(
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
