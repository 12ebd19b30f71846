//! The replicas that use this store.

use super::{Result, Store, StoreError, with_timeout};

/// A replica without a heartbeat for so long counts as gone.
pub(super) const GONE_AFTER_MS: i64 = 10_000;
/// Rows of replicas that are gone are not read any more.
const KEPT_MS: i64 = 60_000;

impl Store {
    /// Writes a heartbeat. Returns the ids and addresses of all other live replicas.
    pub async fn heartbeat(&self, id: &str, address: &str) -> Result<Vec<(String, String)>> {
        with_timeout(async {
            let mut write = self.write().await?;
            let now: i64 = sqlx::query_scalar(self.0.kind.clock()).fetch_one(&mut *write).await?;
            sqlx::query(
                "INSERT INTO replicas (id, address, seen) VALUES ($1, $2, $3) \
                 ON CONFLICT (id) DO UPDATE SET address = excluded.address, seen = excluded.seen",
            )
            .bind(id)
            .bind(address)
            .bind(now)
            .execute(&mut *write)
            .await?;
            let others: Vec<(String, String)> = sqlx::query_as(
                "SELECT id, address FROM replicas WHERE id <> $1 AND seen > $2 ORDER BY id",
            )
            .bind(id)
            .bind(now - GONE_AFTER_MS)
            .fetch_all(&mut *write)
            .await?;
            write.commit().await?;
            Ok::<_, StoreError>(others)
        })
        .await
    }

    pub async fn remove_replica(&self, id: &str) -> Result<()> {
        let left = sqlx::query("DELETE FROM replicas WHERE id = $1").bind(id);
        with_timeout(left.execute(&self.pool()?)).await.map(drop)
    }

    /// Deletes the rows of replicas that are long gone.
    pub async fn delete_gone_replicas(&self) -> Result<()> {
        let now: i64 =
            with_timeout(sqlx::query_scalar(self.0.kind.clock()).fetch_one(&self.pool()?)).await?;
        let gone = sqlx::query("DELETE FROM replicas WHERE seen < $1").bind(now - KEPT_MS);
        with_timeout(gone.execute(&self.pool()?)).await.map(drop)
    }
}
