//! SQLite: a statement for each row. Reading rows from JSON takes SQLite four times as long, and
//! one statement with many rows twice as long. A text has many statements, so that few messages go
//! to the connection's thread and back.

use futures_util::TryStreamExt;
use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AnyConnection, AssertSqlSafe, Connection, Either, Executor};

use super::super::super::Result;
use super::super::super::open::DatabaseKind::Sqlite;
use super::super::{EndedCall, NewCall, shard_of};
use super::counts::Counts;
use super::{BegunCall, CallBatch, Written, rare};

/// The numbers of statements in a text, which stay prepared.
const CHUNKS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];

const INSERT: &str = "INSERT INTO calls (id, tenant, generation, scope, fingerprint, server, \
    tool, state, owner, request, arguments, created, begun, expires) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;";
const LABEL: &str = "INSERT INTO call_labels (tenant, label, call) VALUES (?, ?, ?) \
    ON CONFLICT DO NOTHING;";
const BEGIN: &str = "UPDATE calls SET state = ?, begun = COALESCE(begun, ?) \
    WHERE id = ? AND owner = ? AND state < 2;";
/// Without the scope: SQLite would write its place in the index again, in a page of its own.
const END: &str = "UPDATE calls SET state = 2, arguments = NULL, ended = ?, head = ?, \
    result = ?, result_len = ?, parts = ? WHERE id = ? AND owner = ? AND state <> 2;";
const FREE_KEY: &str = "UPDATE calls SET scope = NULL WHERE id = ?;";

type Statements = Query<'static, Any, AnyArguments>;

pub(super) async fn write(
    connection: &mut AnyConnection,
    owner: &str,
    batch: &CallBatch<'_>,
) -> Result<Written> {
    let CallBatch { new, begun, ended, .. } = batch;
    let mut transaction = connection.begin_with(Sqlite.begin_write()).await?;
    let inserted = run_each(&mut transaction, INSERT, new, insert).await?;
    let began =
        run_each(&mut transaction, BEGIN, begun, |statements, call| begin(statements, owner, call));
    let began = began.await?;
    let has_ended =
        run_each(&mut transaction, END, ended, |statements, call| end(statements, owner, call));
    let has_ended = has_ended.await?;

    let (mut counts, mut written) = (Counts::default(), Written::default());
    let (mut labels, mut freed) = (vec![], vec![]);
    for call in took_place(new, &inserted) {
        counts.add(&call.tenant, 1, 0);
        labels.extend(call.labels.iter().map(|label| (*call, label)));
        written.new.insert(call.id);
    }
    written.begun = took_place(begun, &began).map(|call| call.id).collect();
    for call in took_place(ended, &has_ended) {
        counts.add(&call.tenant, 0, call.result_len);
        freed.extend(call.frees_key.then_some(call.id));
        written.ended.insert(call.id);
    }
    run_each(&mut transaction, LABEL, &labels, |statements, (call, label)| {
        let tenant = call.tenant.name().as_str();
        statements.bind(tenant).bind(label.as_str()).bind(call.id.to_string())
    })
    .await?;
    run_each(&mut transaction, FREE_KEY, &freed, |statements, call| {
        statements.bind(call.to_string())
    })
    .await?;
    rare::write(Sqlite, &mut transaction, owner, batch, &written, &mut counts).await?;
    counts.write(Sqlite, &mut transaction, shard_of(owner)).await?;
    transaction.commit().await?;
    Ok(written)
}

fn insert(statements: Statements, call: &&NewCall) -> Statements {
    statements
        .bind(call.id.to_string())
        .bind(call.tenant.name().as_str())
        .bind(call.tenant.generation().number())
        .bind(call.scope.as_deref())
        .bind(call.fingerprint.as_str())
        .bind(call.server.as_str())
        .bind(call.tool.as_str())
        .bind(call.state as i64)
        .bind(&*call.owner)
        .bind(call.request.as_str())
        .bind(call.arguments.as_deref())
        .bind(call.created)
        .bind(call.begun())
        .bind(call.expires)
}

fn begin(statements: Statements, owner: &str, call: &BegunCall) -> Statements {
    statements.bind(call.state as i64).bind(call.at).bind(call.id.to_string()).bind(owner)
}

fn end(statements: Statements, owner: &str, call: &&EndedCall) -> Statements {
    statements
        .bind(call.at)
        .bind(call.head.as_str())
        .bind(call.result.as_deref())
        .bind(call.result_len)
        .bind(call.parts)
        .bind(call.id.to_string())
        .bind(owner)
}

/// Runs a statement for each row. Returns for each whether it has changed anything.
async fn run_each<T>(
    connection: &mut AnyConnection,
    statement: &'static str,
    rows: &[T],
    bind: impl Fn(Statements, &T) -> Statements,
) -> Result<Vec<bool>> {
    let (mut changed, mut rest) = (Vec::with_capacity(rows.len()), rows);
    for len in CHUNKS {
        while let Some((chunk, after)) = rest.split_at_checked(len) {
            let statements = sqlx::query(AssertSqlSafe(statement.repeat(len)));
            let mut ran = connection.fetch_many(chunk.iter().fold(statements, &bind));
            while let Some(ran) = ran.try_next().await? {
                if let Either::Left(ran) = ran {
                    changed.push(ran.rows_affected() > 0);
                }
            }
            rest = after;
        }
    }
    Ok(changed)
}

fn took_place<'a, T>(rows: &'a [T], changed: &'a [bool]) -> impl Iterator<Item = &'a T> {
    rows.iter().zip(changed).filter_map(|(row, changed)| changed.then_some(row))
}
