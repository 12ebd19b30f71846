//! Any tenant's calls by their id: failures, refusals and slow calls of the last while.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Extensions, HeaderMap, Method};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ok;
use crate::calls::Refusal;
use crate::events::{CallOutcome, EndedCall};
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::replicas::Forwarded;
use crate::http::rest::calls::{found, id_in};
use crate::http::rest::explain::explain_json;
use crate::http::rest::recent::{ask_others, record_json};
use crate::http::state::AppState;

/// The calls in one answer: by default, and at most.
const RECENT: usize = 100;
const RECENT_MAX: usize = 500;

/// The query of the calls of the last while.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecentParams {
    tenant: Option<String>,
    server: Option<String>,
    /// Calls with this label, or whose id or request id begins with this.
    search: Option<String>,
    kind: Option<RecentKind>,
    #[schemars(range(min = 1, max = 500))]
    limit: Option<usize>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecentKind {
    /// A server had the call, and no result came back; also calls whose callers went away.
    Failed,
    /// No server was given the call.
    Refused,
    /// A result came back, after more than half of the call's time.
    Slow,
}

impl RecentParams {
    fn wants(&self, call: &EndedCall) -> bool {
        let kind = match call.outcome {
            CallOutcome::Refused => RecentKind::Refused,
            CallOutcome::Failed | CallOutcome::Cancelled => RecentKind::Failed,
            CallOutcome::Ok | CallOutcome::ToolError => RecentKind::Slow,
        };
        let is_of =
            |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|it| it == name);
        let is_found = |text: &String| {
            call.tags.labels.contains(text)
                || call.id.to_string().starts_with(text)
                || call.tags.request_id.as_ref().is_some_and(|id| id.starts_with(text))
        };
        self.kind.is_none_or(|wanted| wanted == kind)
            && is_of(&self.tenant, call.tenant.name().as_str())
            && is_of(&self.server, &call.server)
            && self.search.as_ref().is_none_or(is_found)
    }
}

/// Lists failures, refusals and slow calls of the last while at this gateway, the latest first.
pub(super) async fn recent(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    params: Result<Query<RecentParams>, QueryRejection>,
) -> HttpResult {
    let Query(params) = params?;
    let limit = params.limit.unwrap_or(RECENT);
    if !(1..=RECENT_MAX).contains(&limit) {
        return Err(HttpError::invalid(format!("`limit` must be from 1 to {RECENT_MAX}")));
    }
    let found = app.recent.latest(limit, |call| params.wants(call));
    let calls: Vec<_> = found.iter().map(|call| with_tenant(call)).collect();
    ok(&json!({"calls": calls}))
}

fn with_tenant(call: &EndedCall) -> Value {
    let mut json = record_json(call);
    json["tenant"] = json!(call.tenant.name().as_str());
    json
}

pub(super) async fn show(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    find(&app, path, "", &headers, &extensions, with_tenant).await
}

pub(super) async fn explain(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    find(&app, path, "/explain", &headers, &extensions, |call| explain_json(call, true)).await
}

/// Finds a call here or at another replica.
async fn find(
    app: &AppState,
    path: Result<Path<String>, PathRejection>,
    suffix: &str,
    headers: &HeaderMap,
    extensions: &Extensions,
    write: impl Fn(&EndedCall) -> Value,
) -> HttpResult {
    let id = id_in(path)?;
    let known = app.recent.find_any(id).map(|call| write(&call));
    if known.is_some() || extensions.get::<Forwarded>().is_some() {
        return found(known);
    }
    let asked =
        ask_others(app, Method::GET, format!("/admin/v1/calls/{id}{suffix}"), headers).await;
    asked.ok_or_else(|| Refusal::NoSuchCall.into())
}
