//! Calls a tool on behalf of a tenant, as the live page does for an operator who tries one.
//!
//! The call goes the way of every call, within the tenant's rights and limits, and counts in its
//! usage. An administrator could make a key of the tenant and call with it; this leaves no key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use serde::Deserialize;
use serde_json::json;

use super::tenants::tenant_id;
use crate::gateway::Caller;
use crate::http::auth::{Administrator, Authenticated};
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::call::{ToolPath, call_tool};
use crate::http::state::AppState;

/// The tenant that a path names, and the tool.
#[derive(Deserialize)]
pub(super) struct TenantToolPath {
    tenant: String,
    #[serde(flatten)]
    tool: ToolPath,
}

/// Calls a tool as a tenant. Noted in the audit log first, and not made if it cannot be noted.
pub(super) async fn call_tool_as(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<TenantToolPath>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path(TenantToolPath { tenant, tool }) = path?;
    let id = tenant_id(&tenant)?;
    if app.directory.is_stale() {
        return Err(HttpError::AuthUnavailable);
    }
    let tenant = app.directory.tenant(&id);
    let tenant = tenant.ok_or_else(|| HttpError::NotFound(format!("tenant `{id}`")))?;
    let detail = json!({"server": tool.server(), "tool": tool.tool()});
    app.store.note_change(&actor, "call.as_tenant", format!("tenant:{id}"), detail).await?;
    let caller = Authenticated(Caller::of(tenant));
    Ok(call_tool(State(app), Ok(caller), Ok(Path(tool)), request).await)
}
