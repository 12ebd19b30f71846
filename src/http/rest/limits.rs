//! The caller's own limits, and where it stands: `GET /v1/limits`.

use std::sync::Arc;

use axum::extract::State;
use schemars::JsonSchema;
use serde::Serialize;

use super::servers::{admit, json};
use crate::common::limit_use::LimitUse;
use crate::gateway::Caller;
use crate::http::auth::Authenticated;
use crate::http::error::HttpResult;
use crate::http::state::AppState;
use crate::tenants::budgets::{REQUEST_BYTES, UNSENT_BYTES};

/// All limits of a tenant. Those that replicas do not share are those of this replica.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LimitsView<'a> {
    tenant: &'a str,
    limits: Vec<LimitUse>,
}

pub(crate) async fn show(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
) -> HttpResult {
    let rate_status = admit(&caller).await?;
    let tenant = caller.tenant.id.name().as_str();
    Ok(json(&LimitsView { tenant, limits: limits_of(&app, &caller) }, &rate_status))
}

fn limits_of(app: &AppState, caller: &Caller) -> Vec<LimitUse> {
    let tenant = &caller.tenant;
    let mut limits = tenant.limits.all();
    limits.extend(app.calls.limits(&tenant.id));
    limits.push(tenant.held.unsent.limit_use(UNSENT_BYTES));
    limits.push(tenant.held.requests.limit_use(REQUEST_BYTES));
    limits.push(app.stream_quota.limit_use(&tenant.id));
    limits.extend(app.gateway.servers(caller).filter_map(|it| it.session_limit(&tenant.id)));
    limits
}
