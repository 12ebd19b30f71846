//! MCP sessions that ended before their tokens expired.

use sqlx::AssertSqlSafe;

use super::tenants::skip_corrupt;
use super::{Result, Store, StoreError, Subject, now, placeholders, with_timeout};
use crate::common::ids::SessionId;

const ROWS_PER_READ: i64 = 5_000;
const ROWS_PER_STATEMENT: usize = 200;

/// Id, expiry, revision and tenant.
type Row = (String, i64, i64, Option<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedSession {
    pub id: SessionId,
    /// The tenant's unique text; `None` if an older version has written the row.
    pub tenant: Option<String>,
    /// The expiry of the session's token, in milliseconds since 1970.
    pub expires: i64,
}

/// How far ended sessions have been read.
#[derive(Debug, Default)]
pub struct EndedCursor {
    epoch: u64,
    /// The change that wrote the last one read.
    revision: i64,
    /// The last one read.
    id: String,
}

impl Store {
    /// Writes ended sessions. All replicas are notified.
    pub async fn end_sessions(&self, ended: &[EndedSession]) -> Result<()> {
        with_timeout(async {
            let (mut write, revision) = self.change_of(Subject::Sessions).await?;
            for rows in ended.chunks(ROWS_PER_STATEMENT) {
                let text = format!(
                    "INSERT INTO ended_sessions (id, expires, revision, tenant) VALUES {} \
                     ON CONFLICT (id) DO NOTHING",
                    placeholders(rows.len(), 4)
                );
                let mut insert = sqlx::query(AssertSqlSafe(text)).persistent(false);
                for EndedSession { id, tenant, expires } in rows {
                    insert = insert.bind(id.to_string()).bind(*expires).bind(revision);
                    insert = insert.bind(tenant.as_deref());
                }
                insert.execute(&mut *write).await?;
            }
            Ok::<_, StoreError>(write.commit().await?)
        })
        .await
    }

    /// Returns some sessions after the cursor whose tokens have not expired, and advances it; none
    /// if there are no more. Changes are serialised, so that no row appears behind the cursor.
    /// Corrupt rows are skipped.
    pub async fn ended_sessions(&self, read: &mut EndedCursor) -> Result<Vec<EndedSession>> {
        loop {
            let rows = self.ended_rows(read).await?;
            let Some((last, _, revision, _)) = rows.last() else {
                if !self.went_back(read).await? {
                    return Ok(vec![]);
                }
                *read = EndedCursor { epoch: self.epoch(), ..EndedCursor::default() };
                continue;
            };
            *read = EndedCursor { revision: *revision, id: last.clone(), ..*read };
            let ended: Vec<_> = rows.iter().map(ended).filter_map(skip_corrupt).collect();
            if !ended.is_empty() {
                return Ok(ended);
            }
        }
    }

    /// Returns whether the store has been replaced since the cursor was made, by a backup perhaps.
    /// Its next changes would come behind the cursor.
    async fn went_back(&self, cursor: &EndedCursor) -> Result<bool> {
        let revision = self.revision(Subject::Sessions).await?;
        Ok(self.epoch() != cursor.epoch || revision + 1 < cursor.revision)
    }

    /// Returns a cursor after all sessions that have ended so far.
    pub async fn ended_so_far(&self) -> Result<EndedCursor> {
        let epoch = self.epoch();
        let next = self.revision(Subject::Sessions).await? + 1;
        Ok(EndedCursor { epoch, revision: next, id: String::new() })
    }

    /// Returns whether a session has ended.
    pub async fn has_session_ended(&self, id: &SessionId) -> Result<bool> {
        let row = sqlx::query("SELECT id FROM ended_sessions WHERE id = $1").bind(id.to_string());
        let row = with_timeout(row.fetch_optional(&self.pool()?)).await?;
        Ok(row.is_some())
    }

    async fn ended_rows(&self, after: &EndedCursor) -> Result<Vec<Row>> {
        let rows = sqlx::query_as(
            "SELECT id, expires, revision, tenant FROM ended_sessions \
             WHERE (revision, id) > ($1, $2) AND expires > $3 ORDER BY revision, id LIMIT $4",
        )
        .bind(after.revision)
        .bind(after.id.clone())
        .bind(now())
        .bind(ROWS_PER_READ);
        with_timeout(rows.fetch_all(&self.pool()?)).await
    }

    /// Deletes those whose tokens have expired.
    pub async fn delete_ended_sessions(&self) -> Result<()> {
        let expired = "DELETE FROM ended_sessions WHERE id IN \
             (SELECT id FROM ended_sessions WHERE expires < $1 LIMIT $2)";
        self.delete_before(expired, now()).await.map(drop)
    }
}

fn ended((id, expires, _, tenant): &Row) -> Result<EndedSession> {
    let invalid = || StoreError::Corrupt(format!("`{id}` is not the id of an ended session"));
    let id = SessionId::parse(id).ok_or_else(invalid)?;
    Ok(EndedSession { id, tenant: tenant.clone(), expires: *expires })
}
