//! Tenants' secrets, set by administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use serde_json::json;
use tokio::time::Instant;

use super::ok;
use super::pins::server_id;
use super::tenants::{find, tenant_id};
use crate::common::ids::ServerId;
use crate::http::auth::Administrator;
use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::rest::secrets::value_of;
use crate::http::state::AppState;
use crate::tenants::secrets::Label;
use crate::tenants::secrets::by_tenant;

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<(String, String)>, PathRejection>,
) -> HttpResult {
    let Path((tenant, server)) = path?;
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let records = app.store.list_secrets(&tenant, Some(&server)).await?;
    let known = app.gateway.registry().get(server.as_str());
    // Removed tenants and servers may have secrets left.
    if records.is_empty() {
        find(&app, &tenant).await?;
        known.as_ref().ok_or_else(|| unknown(&server))?;
    }
    let views = by_tenant::views(&server, known.as_ref().map(|known| known.config()), &records);
    ok(&json!({"secrets": views}))
}

pub(super) async fn set(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<(String, String, String)>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path((tenant, server, name)) = path?;
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let deadline = Instant::now() + body::TIMEOUT;
    let value = value_of(&body::read(request.into_body(), app.max_body, deadline).await?)?;
    find(&app, &tenant).await?;
    let known = app.gateway.registry().get(server.as_str()).ok_or_else(|| unknown(&server))?;
    let label = Label { tenant: &tenant, server: &server, name: &name };
    let secrets = app.directory.secrets();
    let view = secrets.set(&actor, label, known.config(), &value).await?;
    ok(&view)
}

pub(super) async fn remove(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<(String, String, String)>, PathRejection>,
) -> HttpResult {
    let Path((tenant, server, name)) = path?;
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let label = Label { tenant: &tenant, server: &server, name: &name };
    app.directory.secrets().remove(&actor, label).await?;
    ok(&json!({"server": server.as_str(), "name": name, "set": false}))
}

fn unknown(server: &ServerId) -> HttpError {
    HttpError::NotFound(format!("server `{server}`"))
}
