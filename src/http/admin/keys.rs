//! Keys of tenants and of administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, json as answer, object};
use super::tenants::{find, tenant_id};
use crate::common::keys::{KeyId, parse_name};
use crate::http::Front;
use crate::http::auth::Administrator;
use crate::store::{Actor, KeyOwner, KeyRecord};
use crate::tenants::KeyView;

/// What a key shall be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    name: Option<String>,
    /// RFC 3339.
    expires: Option<Timestamp>,
}

pub(super) async fn list(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path(tenant): Path<String>,
) -> Answer {
    let tenant = tenant_id(&tenant)?;
    let owner = KeyOwner::Tenant(tenant.clone());
    let keys = front.store.list_keys(&owner).await?;
    // A tenant that has left the file may have left keys.
    if keys.is_empty() {
        find(&front, &tenant).await?;
    }
    Ok(shown(&keys))
}

pub(super) async fn list_admin(State(front): State<Arc<Front>>, _: Administrator) -> Answer {
    Ok(shown(&front.store.list_keys(&KeyOwner::Admin).await?))
}

pub(super) async fn create(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(tenant): Path<String>,
    request: Request<Body>,
) -> Answer {
    let tenant = tenant_id(&tenant)?;
    find(&front, &tenant).await?;
    create_for(&front, key, &KeyOwner::Tenant(tenant), request).await
}

pub(super) async fn create_admin(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    request: Request<Body>,
) -> Answer {
    create_for(&front, key, &KeyOwner::Admin, request).await
}

pub(super) async fn revoke(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(id): Path<String>,
) -> Answer {
    let id = KeyId::parse(&id).ok_or_else(|| AdminError::NotFound(format!("key `{id}`")))?;
    front.store.revoke_key(&Actor::key(key), &id).await?;
    Ok(answer(StatusCode::OK, &json!({"id": id.as_str(), "state": "revoked"})))
}

fn shown(keys: &[KeyRecord]) -> Response<Body> {
    let keys: Vec<_> = keys.iter().map(KeyView::of).collect();
    answer(StatusCode::OK, &json!({"keys": keys}))
}

async fn create_for(
    front: &Front,
    actor: KeyId,
    owner: &KeyOwner,
    request: Request<Body>,
) -> Answer {
    let body = Value::Object(object(front, request).await?);
    let invalid = |error: String| AdminError::Invalid(error);
    let wish: Wish = serde_json::from_value(body).map_err(|error| invalid(error.to_string()))?;
    if let Some(name) = &wish.name {
        parse_name(name).map_err(|error| invalid(error.to_string()))?;
    }
    if wish.expires.is_some_and(|expires| expires <= Timestamp::now()) {
        return Err(invalid("`expires` must be in the future".to_owned()));
    }
    let expires = wish.expires.map(|expires| expires.as_millisecond());
    let new =
        front.store.create_key(&Actor::key(actor), owner, wish.name.as_deref(), expires).await?;
    Ok(answer(StatusCode::CREATED, &KeyView::of_new(&new)))
}
