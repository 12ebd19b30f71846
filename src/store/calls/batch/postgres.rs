//! PostgreSQL: one statement for a group, which is a transaction by itself. So a commit takes one
//! message there and back. The rows are arrays, one for each column, written as texts.

use std::collections::HashSet;
use std::fmt::{Display, Write};

use sqlx::{AnyConnection, Connection};

use super::super::super::Result;
use super::super::super::open::DatabaseKind::Postgres;
use super::super::{call_id, shard_of};
use super::counts::Counts;
use super::{CallBatch, Written, rare};
use crate::common::ids::CallId;

/// The statement is planned once for a connection, and the tables have few rows then: without
/// these, the plan would read them whole, for ever. No plan of other connections changes.
pub(super) const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET jit = off; \
    SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
    SET enable_mergejoin = off";

/// All parts read the rows as they were before. Returns the ids of the calls whose transitions took
/// place. Inserts first and counts last, in all gateways alike, so that they cannot deadlock.
const WRITE: &str = "\
    WITH new AS (\
        INSERT INTO calls (id, tenant, generation, scope, fingerprint, server, tool, state, \
        owner, request, arguments, created, begun, expires) \
        SELECT * FROM UNNEST(CAST($1 AS TEXT[]), CAST($2 AS TEXT[]), CAST($3 AS BIGINT[]), \
        CAST($4 AS TEXT[]), CAST($5 AS TEXT[]), CAST($6 AS TEXT[]), CAST($7 AS TEXT[]), \
        CAST($8 AS BIGINT[]), CAST($9 AS TEXT[]), CAST($10 AS TEXT[]), CAST($11 AS TEXT[]), \
        CAST($12 AS BIGINT[]), CAST($13 AS BIGINT[]), CAST($14 AS BIGINT[])) \
        ON CONFLICT DO NOTHING RETURNING id, tenant, generation), \
    labels AS (\
        INSERT INTO call_labels (tenant, label, call) SELECT new.tenant, label, call \
        FROM UNNEST(CAST($15 AS TEXT[]), CAST($16 AS TEXT[])) AS labelled (call, label) \
        JOIN new ON new.id = call ON CONFLICT DO NOTHING), \
    begun AS (\
        UPDATE calls SET state = given.state, begun = COALESCE(calls.begun, given.at) \
        FROM UNNEST(CAST($17 AS TEXT[]), CAST($18 AS BIGINT[]), CAST($19 AS BIGINT[])) \
        AS given (id, state, at) \
        WHERE calls.id = given.id AND calls.owner = $20 AND calls.state < 2 RETURNING calls.id), \
    ended AS (\
        UPDATE calls SET state = 2, arguments = NULL, ended = given.at, head = given.head, \
        result = given.result, result_len = given.len, parts = given.parts, \
        scope = CASE WHEN given.frees_key <> 0 THEN NULL ELSE calls.scope END \
        FROM UNNEST(CAST($21 AS TEXT[]), CAST($22 AS BIGINT[]), CAST($23 AS TEXT[]), \
        CAST($24 AS TEXT[]), CAST($25 AS BIGINT[]), CAST($26 AS BIGINT[]), CAST($27 AS BIGINT[])) \
        AS given (id, at, head, result, len, parts, frees_key) \
        WHERE calls.id = given.id AND calls.owner = $20 AND calls.state <> 2 \
        RETURNING calls.id, calls.tenant, calls.generation, calls.result_len), \
    counts AS (\
        INSERT INTO call_usage (tenant, generation, shard, records, bytes) \
        SELECT tenant, generation, CAST($28 AS BIGINT), SUM(records), SUM(bytes) FROM \
        (SELECT tenant, generation, 1 AS records, 0 AS bytes FROM new UNION ALL \
        SELECT tenant, generation, 0, result_len FROM ended) AS changed \
        GROUP BY tenant, generation ORDER BY tenant, generation \
        ON CONFLICT (tenant, generation, shard) DO UPDATE SET \
        records = call_usage.records + excluded.records, \
        bytes = call_usage.bytes + excluded.bytes) \
    SELECT (SELECT STRING_AGG(id, ' ') FROM new), (SELECT STRING_AGG(id, ' ') FROM begun), \
    (SELECT STRING_AGG(id, ' ') FROM ended)";

pub(super) async fn write(
    connection: &mut AnyConnection,
    owner: &str,
    batch: &CallBatch<'_>,
) -> Result<Written> {
    if !batch.has_rare() {
        return write_usual(connection, owner, batch).await;
    }
    let mut transaction = connection.begin_with(Postgres.begin_write()).await?;
    let written = write_usual(&mut transaction, owner, batch).await?;
    let mut counts = Counts::default();
    rare::write(Postgres, &mut transaction, owner, batch, &written, &mut counts).await?;
    counts.write(Postgres, &mut transaction, shard_of(owner)).await?;
    transaction.commit().await?;
    Ok(written)
}

/// The ids of calls, separated by spaces.
type Ids = Option<String>;

async fn write_usual(
    connection: &mut AnyConnection,
    owner: &str,
    batch: &CallBatch<'_>,
) -> Result<Written> {
    let CallBatch { begun, ended, .. } = batch;
    let mut new = batch.new.clone();
    // In one order, so that gateways that insert the same keys cannot deadlock.
    new.sort_by(|one, other| one.scope.cmp(&other.scope));
    let labels = || new.iter().flat_map(|call| call.labels.iter().map(|label| (call.id, label)));
    let (new_ids, begun_ids, ended_ids): (Ids, Ids, Ids) = sqlx::query_as(WRITE)
        .bind(plain(new.iter().map(|call| Some(call.id))))
        .bind(texts(new.iter().map(|call| Some(call.tenant.name().as_str()))))
        .bind(plain(new.iter().map(|call| Some(call.tenant.generation().number()))))
        .bind(texts(new.iter().map(|call| call.scope.as_deref())))
        .bind(texts(new.iter().map(|call| Some(call.fingerprint.as_str()))))
        .bind(texts(new.iter().map(|call| Some(call.server.as_str()))))
        .bind(texts(new.iter().map(|call| Some(call.tool.as_str()))))
        .bind(plain(new.iter().map(|call| Some(call.state as i64))))
        .bind(texts(new.iter().map(|call| Some(&*call.owner))))
        .bind(texts(new.iter().map(|call| Some(call.request.as_str()))))
        .bind(texts(new.iter().map(|call| call.arguments.as_deref())))
        .bind(plain(new.iter().map(|call| Some(call.created))))
        .bind(plain(new.iter().map(|call| call.begun())))
        .bind(plain(new.iter().map(|call| Some(call.expires))))
        .bind(plain(labels().map(|(call, _)| Some(call))))
        .bind(texts(labels().map(|(_, label)| Some(label.as_str()))))
        .bind(plain(begun.iter().map(|call| Some(call.id))))
        .bind(plain(begun.iter().map(|call| Some(call.state as i64))))
        .bind(plain(begun.iter().map(|call| Some(call.at))))
        .bind(owner)
        .bind(plain(ended.iter().map(|call| Some(call.id))))
        .bind(plain(ended.iter().map(|call| Some(call.at))))
        .bind(texts(ended.iter().map(|call| Some(call.head.as_str()))))
        .bind(texts(ended.iter().map(|call| call.result.as_deref())))
        .bind(plain(ended.iter().map(|call| Some(call.result_len))))
        .bind(plain(ended.iter().map(|call| Some(call.parts))))
        .bind(plain(ended.iter().map(|call| Some(i64::from(call.frees_key)))))
        .bind(shard_of(owner))
        .fetch_one(connection)
        .await?;
    Ok(Written { new: ids(new_ids)?, begun: ids(begun_ids)?, ended: ids(ended_ids)? })
}

fn ids(ids: Ids) -> Result<HashSet<CallId>> {
    ids.iter().flat_map(|ids| ids.split(' ')).map(call_id).collect()
}

/// Writes an array of numbers or ids.
fn plain(values: impl Iterator<Item = Option<impl Display>>) -> String {
    array(values, |array, value| _ = write!(array, "{value}"))
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> String {
    array(values, |array, text| {
        array.push('"');
        for part in text.split_inclusive(['"', '\\']) {
            let escaped = part.strip_suffix(['"', '\\']);
            array.push_str(escaped.unwrap_or(part));
            if escaped.is_some() {
                array.push('\\');
                array.push_str(&part[part.len() - 1..]);
            }
        }
        array.push('"');
    })
}

fn array<T>(values: impl Iterator<Item = Option<T>>, write: impl Fn(&mut String, T)) -> String {
    let mut array = "{".to_owned();
    for value in values {
        match value {
            Some(value) => write(&mut array, value),
            None => array.push_str("NULL"),
        }
        array.push(',');
    }
    if array.len() > 1 {
        array.pop();
    }
    array.push('}');
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_written_as_postgresql_reads_them() {
        assert_eq!(plain([None::<i64>; 0].into_iter()), "{}");
        assert_eq!(plain([Some(1), None, Some(-2)].into_iter()), "{1,NULL,-2}");
        let all = [Some("NULL"), None, Some(""), Some(r#"{"a":"\n"},"#)];
        assert_eq!(texts(all.into_iter()), r#"{"NULL",NULL,"","{\"a\":\"\\n\"},"}"#);
    }
}
