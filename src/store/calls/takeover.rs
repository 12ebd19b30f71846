//! Calls of gateways that are gone: those that have begun are given up, the others are claimed.

use super::super::tenants::skip_corrupt;
use super::super::{Result, Store, StoreError, Tx, with_timeout};
use super::{CallState, ClaimedCall, call_id, callbacks, json};
use crate::common::ids::{CallId, TenantGeneration, TenantName};

type ClaimedRow =
    (String, String, i64, String, String, String, String, Option<String>, Option<i64>, i64);

impl Store {
    /// Returns the gateways that have calls which have not ended.
    pub async fn call_owners(&self) -> Result<Vec<String>> {
        let owners = sqlx::query_scalar("SELECT DISTINCT owner FROM calls WHERE state < 2");
        with_timeout(owners.fetch_all(&self.pool()?)).await
    }

    /// Returns whether a replica has sent a heartbeat lately.
    pub async fn is_replica_alive(&self, id: &str) -> Result<bool> {
        let now: i64 =
            with_timeout(sqlx::query_scalar(self.0.kind.clock()).fetch_one(&self.pool()?)).await?;
        let seen: Option<i64> = with_timeout(
            sqlx::query_scalar("SELECT seen FROM replicas WHERE id = $1")
                .bind(id.to_owned())
                .fetch_optional(&self.pool()?),
        )
        .await?;
        Ok(seen.is_some_and(|seen| seen > now - super::super::replicas::GONE_AFTER_MS))
    }

    /// Gives up the calls that `owner` has begun: their outcome is unknown. Returns how many.
    pub async fn abandon_calls(&self, owner: &str, at: i64) -> Result<u64> {
        with_timeout(async {
            let mut write = self.write().await?;
            let given_up: Vec<String> = sqlx::query_scalar(
                "UPDATE calls SET state = 3, ended = $2 WHERE owner = $1 AND state < 2 \
                 AND state = 1 RETURNING id",
            )
            .bind(owner)
            .bind(at)
            .fetch_all(&mut *write)
            .await?;
            self.ended_here(write, &given_up).await
        })
        .await
    }

    /// Gives up one call, if `owner` has begun it and it has not ended.
    pub async fn abandon_call(&self, id: CallId, owner: &str, at: i64) -> Result<()> {
        with_timeout(async {
            let mut write = self.write().await?;
            let given_up: Vec<String> = sqlx::query_scalar(
                "UPDATE calls SET state = 3, ended = $3 WHERE id = $1 AND owner = $2 \
                 AND state = 1 RETURNING id",
            )
            .bind(id.to_string())
            .bind(owner)
            .bind(at)
            .fetch_all(&mut *write)
            .await?;
            self.ended_here(write, &given_up).await.map(drop)
        })
        .await
    }

    /// Takes some calls that `from` has accepted and not begun. Of several gateways, one gets each.
    pub async fn claim_calls(
        &self,
        from: &str,
        owner: &str,
        limit: u32,
    ) -> Result<Vec<ClaimedCall>> {
        let rows = sqlx::query_as(
            "UPDATE calls SET owner = $2 WHERE owner = $1 AND state = 0 AND id IN \
             (SELECT id FROM calls WHERE owner = $1 AND state < 2 AND state = 0 \
             ORDER BY id LIMIT $3) \
             RETURNING id, tenant, generation, fingerprint, server, tool, request, arguments, \
             begun, expires",
        );
        let rows = rows.bind(from.to_owned()).bind(owner.to_owned());
        let rows = rows.bind(i64::from(limit));
        let rows: Vec<ClaimedRow> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        Ok(rows.into_iter().map(claimed).filter_map(skip_corrupt).collect())
    }

    /// Returns some calls that a gateway has not ended, created before `before`, the oldest first.
    pub async fn open_calls(
        &self,
        owner: &str,
        before: i64,
        limit: u32,
    ) -> Result<Vec<(CallId, CallState)>> {
        let rows = sqlx::query_as(
            "SELECT id, state FROM calls WHERE owner = $1 AND state < 2 AND created < $2 \
             ORDER BY id LIMIT $3",
        );
        let rows = rows.bind(owner.to_owned()).bind(before).bind(i64::from(limit));
        let rows: Vec<(String, i64)> = with_timeout(rows.fetch_all(&self.pool()?)).await?;
        rows.into_iter().map(|(id, state)| Ok((call_id(&id)?, CallState::of(state)?))).collect()
    }

    /// Leaves an accepted call to any gateway.
    pub async fn hand_over_call(&self, id: CallId, owner: &str) -> Result<()> {
        let left =
            sqlx::query("UPDATE calls SET owner = '' WHERE id = $1 AND owner = $2 AND state = 0");
        let left = left.bind(id.to_string()).bind(owner.to_owned());
        with_timeout(left.execute(&self.pool()?)).await.map(drop)
    }

    /// Ends a call that has not begun, whoever has it. Returns whether it did.
    pub async fn cancel_call(&self, id: CallId, head: &str, at: i64) -> Result<bool> {
        with_timeout(async {
            let mut write = self.write().await?;
            let cancelled: Vec<String> = sqlx::query_scalar(
                "UPDATE calls SET state = 2, scope = NULL, arguments = NULL, head = $2, \
                 ended = $3 WHERE id = $1 AND state = 0 RETURNING id",
            )
            .bind(id.to_string())
            .bind(head)
            .bind(at)
            .fetch_all(&mut *write)
            .await?;
            Ok::<_, StoreError>(self.ended_here(write, &cancelled).await? > 0)
        })
        .await
    }

    /// Commits the end of calls, and has their callbacks delivered. Returns how many calls.
    async fn ended_here(&self, mut write: Tx, calls: &[String]) -> Result<u64> {
        if calls.is_empty() {
            return Ok(0);
        }
        callbacks::make_due(self.0.kind, &mut write, &json(&calls)).await?;
        write.commit().await?;
        Ok(calls.len() as u64)
    }
}

fn claimed(row: ClaimedRow) -> Result<ClaimedCall> {
    let (id, tenant, generation, fingerprint, server, tool, request, arguments, begun, expires) =
        row;
    let tenant = TenantName::parse(&tenant).map_err(StoreError::from)?;
    Ok(ClaimedCall {
        id: call_id(&id)?,
        tenant: tenant.of(TenantGeneration::from_number(generation)),
        fingerprint,
        server,
        tool,
        request,
        arguments: arguments.unwrap_or_default(),
        begun,
        expires,
    })
}
