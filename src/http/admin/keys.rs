//! Keys of tenants and of administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Request;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

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
    name: Option<String>,
    /// RFC 3339.
    expires: Option<Timestamp>,
}

pub(super) async fn list(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    Path(tenant): Path<String>,
) -> HttpResult {
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
    Administrator(key): Administrator,
    Path(tenant): Path<String>,
    request: Request<Body>,
) -> HttpResult {
    let tenant = tenant_id(&tenant)?;
    find(&app, &tenant).await?;
    create_for(&app, key, &KeyOwner::Tenant(tenant), request).await
}

pub(super) async fn create_admin(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    request: Request<Body>,
) -> HttpResult {
    create_for(&app, key, &KeyOwner::Admin, request).await
}

pub(super) async fn revoke(
    State(app): State<Arc<AppState>>,
    Administrator(key): Administrator,
    Path(id): Path<String>,
) -> HttpResult {
    let id = KeyId::parse(&id).ok_or_else(|| HttpError::NotFound(format!("key `{id}`")))?;
    app.store.revoke_key(&Actor::key(key), &id).await?;
    ok(&json!({"id": id.as_str(), "state": "revoked"}))
}

fn key_list(keys: &[KeyRecord]) -> HttpResult {
    let keys: Vec<_> = keys.iter().map(KeyView::of).collect();
    ok(&json!({"keys": keys}))
}

async fn create_for(
    app: &AppState,
    actor: KeyId,
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
    let (actor, expires) = (Actor::key(actor), expires.map(Timestamp::as_millisecond));
    let key = app.store.create_key(&actor, owner, name.as_deref(), expires).await?;
    created(&KeyView::of_new(&key))
}
