//! Transitions that few groups have: callbacks, calls that leave nothing behind, and calls that
//! are handed over.

use sqlx::{AnyConnection, AssertSqlSafe};

use super::super::super::Result;
use super::super::super::open::DatabaseKind;
use super::super::{NewCall, callbacks, json};
use super::counts::Counts;
use super::{CallBatch, Written};
use crate::common::ids::CallId;

impl CallBatch<'_> {
    pub(super) fn has_rare(&self) -> bool {
        self.new.iter().any(|call| call.callback.is_some())
            || self.ended.iter().any(|call| call.has_callback)
            || !self.forgotten.is_empty()
            || !self.handed_over.is_empty()
    }
}

pub(super) async fn write(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    owner: &str,
    batch: &CallBatch<'_>,
    written: &Written,
    counts: &mut Counts,
) -> Result<()> {
    let is_new = |call: &&NewCall| written.new.contains(&call.id);
    callbacks::insert(kind, connection, batch.new.iter().copied().filter(is_new)).await?;
    // In each case, as its record may have ended before: it was given up too soon.
    let called: Vec<_> = batch.ended.iter().filter(|call| call.has_callback).collect();
    if !called.is_empty() {
        let calls: Vec<_> = called.iter().map(|call| call.id.to_string()).collect();
        callbacks::make_due(kind, connection, &json(&calls)).await?;
    }
    if !batch.forgotten.is_empty() {
        forget(kind, connection, owner, &batch.forgotten, counts).await?;
    }
    if !batch.handed_over.is_empty() {
        let calls: Vec<_> = batch.handed_over.iter().map(CallId::to_string).collect();
        let text = format!(
            "UPDATE calls SET owner = '' WHERE id IN {} AND owner = $2 AND state = 0",
            kind.json_texts()
        );
        let hand_over = sqlx::query(AssertSqlSafe(text)).bind(json(&calls)).bind(owner.to_owned());
        hand_over.execute(connection).await?;
    }
    Ok(())
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
pub(in super::super) async fn delete_labels(
    kind: DatabaseKind,
    connection: &mut AnyConnection,
    calls: &str,
) -> Result<()> {
    let text = format!("DELETE FROM call_labels WHERE call IN {}", kind.json_texts());
    sqlx::query(AssertSqlSafe(text)).bind(calls).execute(connection).await?;
    Ok(())
}
