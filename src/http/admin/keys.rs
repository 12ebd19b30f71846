//! Keys of tenants and of administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, json as answer, object};
use super::tenants::tenant_id;
use crate::http::Front;
use crate::http::auth::Administrator;
use crate::ids::TenantId;
use crate::keys::{KeyId, parse_name};
use crate::store::{Actor, KeyOwner, KeyRecord};

/// What a key shall be.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    name: Option<String>,
    /// RFC 3339.
    expires: Option<Timestamp>,
}

/// A key as administrators see it.
#[derive(Serialize)]
struct View<'a> {
    id: &'a str,
    name: Option<&'a str>,
    state: &'static str,
    created: Option<Timestamp>,
    expires: Option<Timestamp>,
    revoked: Option<Timestamp>,
    last_used: Option<Timestamp>,
    /// All of it, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

impl<'a> View<'a> {
    fn of(record: &'a KeyRecord) -> Self {
        let time = |ms: Option<i64>| ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self {
            id: record.id.as_str(),
            name: record.name.as_deref(),
            state: record.state(Timestamp::now().as_millisecond()).as_str(),
            created: time(Some(record.created)),
            expires: time(record.expires),
            revoked: time(record.revoked),
            last_used: time(record.last_used),
            key: None,
        }
    }
}

pub(super) async fn list(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path(tenant): Path<String>,
) -> Answer {
    let tenant = existing(&front, &tenant).await?;
    keys_of(&front, &KeyOwner::Tenant(tenant)).await
}

pub(super) async fn list_admin(State(front): State<Arc<Front>>, _: Administrator) -> Answer {
    keys_of(&front, &KeyOwner::Admin).await
}

pub(super) async fn create(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(tenant): Path<String>,
    request: Request<Body>,
) -> Answer {
    let tenant = existing(&front, &tenant).await?;
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

async fn keys_of(front: &Front, owner: &KeyOwner) -> Answer {
    let keys = front.store.list_keys(owner).await?;
    let keys: Vec<_> = keys.iter().map(View::of).collect();
    Ok(answer(StatusCode::OK, &json!({"keys": keys})))
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
    let view = View { key: Some(new.key.expose()), ..View::of(&new.record) };
    Ok(answer(StatusCode::CREATED, &view))
}

/// A tenant of the file, of the store, or of those who call without a key.
async fn existing(front: &Front, id: &str) -> Result<TenantId, AdminError> {
    let id = tenant_id(id)?;
    if front.directory.tenant(&id).is_some() || front.store.tenant(&id).await?.is_some() {
        return Ok(id);
    }
    Err(AdminError::NotFound(format!("tenant `{id}`")))
}
