//! MCP sessions that ended before their tokens did.

use sqlx::AssertSqlSafe;

use super::changes::{Subject, announce};
use super::{Store, StoreError, in_time, now, places};
use crate::ids::SessionId;

/// Rows that are read at once.
const PAGE: i64 = 5_000;
/// Rows that are written by one statement.
const ROWS_PER_STATEMENT: usize = 200;
/// Rows that are deleted by one statement.
const DELETED_PER_STATEMENT: i64 = 1_000;

/// A session that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    /// Which.
    pub id: SessionId,
    /// Until when its token would be good, in milliseconds since 1970.
    pub expires: i64,
    /// Which change has noted it. Later ones have greater numbers.
    pub revision: i64,
}

impl Store {
    /// Notes that sessions have ended, each with the time when its token does. All replicas hear of it.
    pub async fn end_sessions(&self, ended: &[(SessionId, i64)]) -> Result<(), StoreError> {
        in_time(async {
            let mut write = self.write().await?;
            let revision = announce(self.0.kind, &mut write, Subject::Sessions).await?;
            for rows in ended.chunks(ROWS_PER_STATEMENT) {
                let text = format!(
                    "INSERT INTO ended_sessions (id, expires, revision) VALUES {} \
                     ON CONFLICT (id) DO NOTHING",
                    places(rows.len(), 3)
                );
                let mut insert = sqlx::query(AssertSqlSafe(text)).persistent(false);
                for (id, expires) in rows {
                    insert = insert.bind(id.to_string()).bind(*expires).bind(revision);
                }
                insert.execute(&mut *write).await?;
            }
            Ok::<_, StoreError>(write.commit().await?)
        })
        .await
    }

    /// Sessions that were noted after `last`, in that order, and are still of interest: some of them, none if there are no
    /// more. Changes are made one after the other, so that none comes later before one that was read.
    pub async fn ended_sessions(
        &self,
        last: Option<&EndedSession>,
    ) -> Result<Vec<EndedSession>, StoreError> {
        let (revision, id) = match last {
            Some(last) => (last.revision, last.id.to_string()),
            None => (0, String::new()),
        };
        let rows = sqlx::query_as(
            "SELECT id, expires, revision FROM ended_sessions \
             WHERE (revision, id) > ($1, $2) AND expires > $3 ORDER BY revision, id LIMIT $4",
        )
        .bind(revision)
        .bind(id)
        .bind(now())
        .bind(PAGE);
        let rows: Vec<(String, i64, i64)> = in_time(rows.fetch_all(self.pool())).await?;
        let ended = |(id, expires, revision): (String, i64, i64)| {
            let unreadable = || StoreError::Corrupt(format!("`{id}` is no session"));
            let id = SessionId::parse(&id).ok_or_else(unreadable)?;
            Ok(EndedSession { id, expires, revision })
        };
        rows.into_iter().map(ended).collect()
    }

    /// Deletes those whose tokens have ended too.
    pub async fn delete_ended_sessions(&self) -> Result<(), StoreError> {
        loop {
            let some = sqlx::query(
                "DELETE FROM ended_sessions WHERE id IN \
                 (SELECT id FROM ended_sessions WHERE expires < $1 LIMIT $2)",
            );
            let some = some.bind(now()).bind(DELETED_PER_STATEMENT).execute(self.pool());
            if in_time(some).await?.rows_affected() < DELETED_PER_STATEMENT.unsigned_abs() {
                return Ok(());
            }
        }
    }
}
