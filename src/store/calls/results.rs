//! Results that are too long for their record, in parts.

use super::super::{Result, Store, StoreError, with_timeout};
use crate::common::ids::CallId;

impl Store {
    /// Writes one part. May be repeated.
    pub async fn put_result_part(&self, call: CallId, part: i64, data: &str) -> Result<()> {
        let put = sqlx::query(
            "INSERT INTO call_results (call, part, data) VALUES ($1, $2, $3) \
             ON CONFLICT (call, part) DO UPDATE SET data = excluded.data",
        );
        let put = put.bind(call.to_string()).bind(part).bind(data.to_owned());
        with_timeout(put.execute(&self.pool()?)).await.map(drop)
    }

    /// Returns all parts of a result together, or `None` if it was evicted meanwhile.
    pub async fn result_parts(&self, call: CallId, parts: i64) -> Result<Option<String>> {
        let mut whole = String::new();
        for part in 0..parts {
            let data =
                sqlx::query_scalar("SELECT data FROM call_results WHERE call = $1 AND part = $2");
            let data = data.bind(call.to_string()).bind(part);
            let data: Option<String> = with_timeout(data.fetch_optional(&self.pool()?)).await?;
            let Some(data) = data else { return Ok::<_, StoreError>(None) };
            whole.push_str(&data);
        }
        Ok(Some(whole))
    }
}
