//! Keys of tenants and of administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::tenants::{find, tenant_id};
use super::{created, ok, read};
use crate::common::keys::{KeyId, parse_name};
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::store::{Actor, KeyOwner, KeyRecord};
use crate::tenants::KeyView;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyRequest {
    #[schemars(regex(pattern = r"^[^\u0000-\u001f\u007f-\u009f]{1,100}$"))]
    name: Option<String>,
    /// In the future (RFC 3339).
    expires: Option<Timestamp>,
}

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(tenant) = path?;
    let tenant = tenant_id(&tenant)?;
    let owner = KeyOwner::Tenant(tenant.clone());
    let keys = app.store.list_keys(&owner).await?;
    // A tenant that was removed from the file may have keys left.
    if keys.is_empty() {
        find(&app, &tenant).await?;
    }
    key_list(&keys)
}

pub(super) async fn list_admin(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    key_list(&app.store.list_keys(&KeyOwner::Admin).await?)
}

pub(super) async fn create(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path(tenant) = path?;
    let tenant = tenant_id(&tenant)?;
    find(&app, &tenant).await?;
    create_for(&app, &actor, &KeyOwner::Tenant(tenant), request).await
}

pub(super) async fn create_admin(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    request: Request<Body>,
) -> HttpResult {
    create_for(&app, &actor, &KeyOwner::Admin, request).await
}

pub(super) async fn revoke(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let id = KeyId::parse(&id).ok_or_else(|| HttpError::NotFound(format!("key `{id}`")))?;
    app.store.revoke_key(&actor, &id).await?;
    // Whatever goes on with the key ends here before the answer; elsewhere within two seconds.
    app.directory.read_since(Instant::now()).await;
    ok(&json!({"id": id.as_str(), "state": "revoked"}))
}

fn key_list(keys: &[KeyRecord]) -> HttpResult {
    let keys: Vec<_> = keys.iter().map(KeyView::of).collect();
    ok(&json!({"keys": keys}))
}

async fn create_for(
    app: &AppState,
    actor: &Actor,
    owner: &KeyOwner,
    request: Request<Body>,
) -> HttpResult {
    let NewKeyRequest { name, expires } = read(app, request).await?;
    if let Some(name) = &name {
        parse_name(name).map_err(HttpError::invalid)?;
    }
    if expires.is_some_and(|expires| expires <= Timestamp::now()) {
        return Err(HttpError::invalid("`expires` must be in the future"));
    }
    let expires = expires.map(Timestamp::as_millisecond);
    let key = app.store.create_key(actor, owner, name.as_deref(), expires).await?;
    created(&KeyView::of_new(&key))
}
