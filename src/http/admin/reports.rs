//! What was used, who changed what, and how the servers are.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::answer::{AdminError, Answer, json as answer};
use super::tenants::tenant_id;
use crate::common::ids::TenantId;
use crate::http::Front;
use crate::http::auth::store_quota;
use crate::http::auth::store_quota::Turn;
use crate::http::auth::{Administrator, Authenticated};
use crate::http::rest::servers::ServerView;
use crate::store::{UsageQuery, UsageTotal};

/// What is shown if nobody says since when.
const LATELY: SignedDuration = SignedDuration::from_hours(24);
/// The longest time that is shown at once, minute by minute and in all.
const BY_MINUTE_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);
const TOTAL_MAX: SignedDuration = SignedDuration::from_hours(400 * 24);
/// Reports that are made at once. Of a tenant's own there is one at a time, so that one is left for the others.
pub(crate) const TENANTS_REPORTS: usize = 2;
pub(crate) const ADMINS_REPORTS: usize = 1;
/// Entries of the audit log in one answer: unless asked otherwise, and at most.
const ENTRIES: u32 = 100;
const ENTRIES_MAX: u32 = 1000;

/// Which usage: `?from=2026-11-01T00:00:00Z&to=…&by=minute`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageParams {
    tenant: Option<String>,
    from: Option<Timestamp>,
    to: Option<Timestamp>,
    #[serde(default)]
    by: By,
}

#[derive(Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum By {
    /// Every minute on its own.
    Minute,
    /// All the time together.
    #[default]
    Total,
}

#[derive(Serialize)]
struct UsageView {
    #[serde(skip_serializing_if = "Option::is_none")]
    minute: Option<Timestamp>,
    tenant: String,
    server: String,
    tool: String,
    calls: u64,
    errors: u64,
    tool_errors: u64,
    queue_ms: f64,
    backend_ms: f64,
    bytes_in: u64,
    bytes_out: u64,
}

impl From<UsageTotal> for UsageView {
    fn from(total: UsageTotal) -> Self {
        let counts = total.counts;
        let ms = |us: u64| us as f64 / 1000.0;
        Self {
            minute: total.minute.and_then(|ms| Timestamp::from_millisecond(ms).ok()),
            tenant: total.tenant.to_string(),
            server: total.server.to_string(),
            tool: total.tool,
            calls: counts.calls,
            errors: counts.errors,
            tool_errors: counts.tool_errors,
            queue_ms: ms(counts.queue_us),
            backend_ms: ms(counts.backend_us),
            bytes_in: counts.bytes_in,
            bytes_out: counts.bytes_out,
        }
    }
}

/// Everybody's usage, or one tenant's.
pub(super) async fn usage(
    State(front): State<Arc<Front>>,
    _: Administrator,
    params: Result<Query<UsageParams>, QueryRejection>,
) -> Answer {
    let Query(params) = params.map_err(invalid)?;
    let tenant = params.tenant.as_deref().map(tenant_id).transpose()?;
    let _turn = store_quota::wait(&front.admins_reports).await?;
    report(&front, tenant, &params).await
}

/// A tenant's own usage.
pub(crate) async fn own_usage(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    params: Result<Query<UsageParams>, QueryRejection>,
) -> Answer {
    let Query(params) = params.map_err(invalid)?;
    if params.tenant.is_some() {
        return Err(AdminError::Invalid(
            "`tenant` is for administrators: this is your own usage".to_owned(),
        ));
    }
    let _turn = Turn::of(&front.tenants_reports, &caller, "").await?;
    report(&front, Some(caller.tenant.id.clone()), &params).await
}

async fn report(front: &Front, tenant: Option<TenantId>, params: &UsageParams) -> Answer {
    let to = params.to.unwrap_or_else(Timestamp::now);
    let from = params.from.unwrap_or_else(|| to.saturating_sub(LATELY).unwrap_or(to));
    let longest = if params.by == By::Minute { BY_MINUTE_MAX } else { TOTAL_MAX };
    if to.duration_since(from) > longest {
        let days = longest.as_hours() / 24;
        return Err(AdminError::Invalid(format!(
            "`from` and `to` are too far apart: at most {days} days can be shown"
        )));
    }
    let query = UsageQuery {
        from: from.as_millisecond(),
        to: to.as_millisecond(),
        tenant,
        by_minute: params.by == By::Minute,
    };
    let usage = front.store.usage(&query).await?;
    let usage: Vec<_> = usage.into_iter().map(UsageView::from).collect();
    Ok(answer(StatusCode::OK, &json!({"from": from, "to": to, "usage": usage})))
}

/// Which entries: at most `limit`, before the one with the id `before`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditParams {
    limit: Option<u32>,
    before: Option<String>,
}

/// Who changed what, the latest first.
pub(super) async fn audit(
    State(front): State<Arc<Front>>,
    _: Administrator,
    params: Result<Query<AuditParams>, QueryRejection>,
) -> Answer {
    let Query(params) = params.map_err(invalid)?;
    let limit = params.limit.unwrap_or(ENTRIES);
    if !(1..=ENTRIES_MAX).contains(&limit) {
        return Err(AdminError::Invalid(format!("`limit` must be from 1 to {ENTRIES_MAX}")));
    }
    let entries = front.store.audit(limit, params.before.as_deref()).await?;
    let entries: Vec<_> = entries
        .into_iter()
        .map(|entry| {
            json!({
                "id": entry.id,
                "at": Timestamp::from_millisecond(entry.at).ok(),
                "actor": entry.actor,
                "action": entry.action,
                "target": entry.target,
                "detail": entry.detail,
            })
        })
        .collect();
    Ok(answer(StatusCode::OK, &json!({"entries": entries})))
}

/// All servers, whoever may use them.
pub(super) async fn servers(State(front): State<Arc<Front>>, _: Administrator) -> Answer {
    let registry = front.gateway.registry();
    let servers = registry.servers();
    let servers: Vec<_> =
        servers.iter().map(|server| ServerView::for_operator(registry, server)).collect();
    Ok(answer(StatusCode::OK, &json!({"servers": servers})))
}

fn invalid(rejection: QueryRejection) -> AdminError {
    AdminError::Invalid(rejection.body_text())
}
