//! Usage and the audit log.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::ok;
use super::tenants::tenant_id;
use crate::http::auth::store_quota::{self, StorePermit};
use crate::http::auth::{Administrator, Authenticated};
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::store::{UsageOf, UsageQuery, UsageTotal};

/// The period of a report without `from`.
const DEFAULT_PERIOD: SignedDuration = SignedDuration::from_hours(24);
/// The longest periods: by minute, and in total.
const BY_MINUTE_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);
const TOTAL_MAX: SignedDuration = SignedDuration::from_hours(400 * 24);
/// The most reports at once. A tenant has one at a time, so that one is left for the others.
pub(crate) const TENANT_REPORTS_MAX: usize = 2;
pub(crate) const ADMIN_REPORTS_MAX: usize = 1;
/// The entries of the audit log in one response: by default, and at most.
const ENTRIES: u32 = 100;
const ENTRIES_MAX: u32 = 1000;

/// The query of a usage report: `?from=2026-11-01T00:00:00Z&to=…&by=minute`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageParams {
    #[schemars(regex(pattern = "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"))]
    tenant: Option<String>,
    #[serde(default, deserialize_with = "moment")]
    from: Option<Timestamp>,
    #[serde(default, deserialize_with = "moment")]
    to: Option<Timestamp>,
    #[serde(default)]
    by: By,
}

/// Parses a time of a query. The library's own words are about digits and years.
fn moment<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Timestamp>, D::Error> {
    let text = String::deserialize(value)?;
    text.parse().map(Some).map_err(|_| {
        D::Error::custom(format!("`{text}` is not a time; write it as 2026-11-01T00:00:00Z"))
    })
}

#[derive(Default, Deserialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum By {
    Minute,
    #[default]
    Total,
}

/// The usage of a tool by a tenant.
#[derive(Serialize, JsonSchema)]
pub(crate) struct UsageView {
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
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minute: Option<Timestamp>,
}

fn usage_view(total: UsageTotal) -> UsageView {
    let counts = total.counts;
    let ms = |us: u64| us as f64 / 1000.0;
    UsageView {
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
        generation: total.generation.map(|generation| generation.to_string()),
        minute: total.minute.and_then(|ms| Timestamp::from_millisecond(ms).ok()),
    }
}

/// Reports the usage of all tenants, or of one.
pub(super) async fn usage(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    params: Result<Query<UsageParams>, QueryRejection>,
) -> HttpResult {
    let Query(params) = params?;
    let tenant = params.tenant.as_deref().map(tenant_id).transpose()?;
    let _permit = store_quota::wait(&app.admin_reports).await?;
    report(&app, tenant.map_or(UsageOf::Everybody, UsageOf::Name), &params).await
}

/// Reports the caller's own usage.
pub(crate) async fn own_usage(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    params: Result<Query<UsageParams>, QueryRejection>,
) -> HttpResult {
    let Query(params) = params?;
    if params.tenant.is_some() {
        return Err(HttpError::InvalidRequest(
            "`tenant` is for administrators; this reports your own usage".to_owned(),
        ));
    }
    let _permit = StorePermit::of(&app.tenant_reports, &caller, "").await?;
    let (id, since) = (caller.tenant.id.clone(), caller.tenant.since);
    report(&app, UsageOf::Tenant { id, since }, &params).await
}

async fn report(app: &AppState, whose: UsageOf, params: &UsageParams) -> HttpResult {
    let to = params.to.unwrap_or_else(Timestamp::now);
    let from = params.from.unwrap_or_else(|| to.saturating_sub(DEFAULT_PERIOD).unwrap_or(to));
    let longest = if params.by == By::Minute { BY_MINUTE_MAX } else { TOTAL_MAX };
    if to.duration_since(from) > longest {
        let days = longest.as_hours() / 24;
        return Err(HttpError::invalid(format!("`from` and `to` are more than {days} days apart")));
    }
    let query = UsageQuery {
        from: from.as_millisecond(),
        to: to.as_millisecond(),
        whose,
        by_minute: params.by == By::Minute,
    };
    let usage = app.store.usage(&query).await?;
    let usage: Vec<_> = usage.into_iter().map(usage_view).collect();
    ok(&json!({"from": from, "to": to, "usage": usage}))
}

/// The query of the audit log: at most `limit` entries, before the one with the id `before`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditParams {
    #[schemars(range(min = 1, max = 1000))]
    limit: Option<u32>,
    #[schemars(extend("format" = "uuid"))]
    before: Option<String>,
}

/// An entry of the audit log.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EntryView {
    id: String,
    at: Option<Timestamp>,
    actor: String,
    action: String,
    target: String,
    detail: Value,
}

/// Lists changes and their authors, the latest first.
pub(super) async fn audit(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    params: Result<Query<AuditParams>, QueryRejection>,
) -> HttpResult {
    let Query(params) = params?;
    let limit = params.limit.unwrap_or(ENTRIES);
    if !(1..=ENTRIES_MAX).contains(&limit) {
        return Err(HttpError::invalid(format!("`limit` must be from 1 to {ENTRIES_MAX}")));
    }
    let before = params.before.as_deref().map(audit_id).transpose()?;
    let entries = app.store.audit(limit, before.as_deref()).await?;
    let entries: Vec<_> = entries
        .into_iter()
        .map(|entry| EntryView {
            id: entry.id,
            at: Timestamp::from_millisecond(entry.at).ok(),
            actor: entry.actor,
            action: entry.action,
            target: entry.target,
            detail: entry.detail,
        })
        .collect();
    ok(&json!({"entries": entries}))
}

/// Parses the id of an entry of the audit log, as the store writes it.
fn audit_id(text: &str) -> Result<String, HttpError> {
    let id = Uuid::try_parse(text);
    let invalid = || HttpError::invalid("`before` must be the `id` of an entry of the audit log");
    id.map(|id| id.to_string()).map_err(|_| invalid())
}
