//! Tenants' secrets, set by administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use serde_json::json;
use tokio::time::Instant;

use super::answer::{AdminError, Answer, json as answer};
use super::tenants::{find, tenant_id};
use crate::common::ids::ServerId;
use crate::http::auth::Administrator;
use crate::http::rest::secrets::value_of;
use crate::http::{Front, body};
use crate::store::Actor;
use crate::tenants::secrets::Label;
use crate::tenants::secrets::by_tenant;

pub(super) async fn list(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path((tenant, server)): Path<(String, String)>,
) -> Answer {
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let records = front.store.list_secrets(&tenant, Some(&server)).await?;
    let known = front.gateway.registry().get(server.as_str());
    // Of tenants and servers that are gone something may be left.
    if records.is_empty() {
        find(&front, &tenant).await?;
        known.as_ref().ok_or_else(|| unknown(&server))?;
    }
    let views = by_tenant::views(&server, known.as_ref().map(|known| known.config()), &records);
    Ok(answer(StatusCode::OK, &json!({"secrets": views})))
}

pub(super) async fn set(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path((tenant, server, name)): Path<(String, String, String)>,
    request: Request<Body>,
) -> Answer {
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let (parts, request_body) = request.into_parts();
    let deadline = Instant::now() + body::TIMEOUT;
    let body = body::read(&parts.headers, request_body, front.max_body, deadline).await?;
    let value = value_of(&body)?;
    find(&front, &tenant).await?;
    let known = front.gateway.registry().get(server.as_str()).ok_or_else(|| unknown(&server))?;
    let label = Label { tenant: &tenant, server: &server, name: &name };
    let set = front.directory.secrets();
    let view = set.set(&Actor::key(key), label, known.config(), &value).await?;
    Ok(answer(StatusCode::OK, &view))
}

pub(super) async fn remove(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path((tenant, server, name)): Path<(String, String, String)>,
) -> Answer {
    let (tenant, server) = (tenant_id(&tenant)?, server_id(&server)?);
    let label = Label { tenant: &tenant, server: &server, name: &name };
    front.directory.secrets().remove(&Actor::key(key), label).await?;
    Ok(answer(StatusCode::OK, &json!({"server": server.as_str(), "name": name, "set": false})))
}

fn server_id(text: &str) -> Result<ServerId, AdminError> {
    ServerId::parse(text).map_err(|error| AdminError::Invalid(error.to_string()))
}

fn unknown(server: &ServerId) -> AdminError {
    AdminError::NotFound(format!("server `{server}`"))
}
