//! Tenants and what they may do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::answer::{AdminError, Answer, json as answer, object};
use crate::common::ids::TenantId;
use crate::common::policy::Policy;
use crate::http::Front;
use crate::http::auth::Administrator;
use crate::store::Actor;
use crate::tenants::{Source, TenantView};

pub(super) async fn list(State(front): State<Arc<Front>>, _: Administrator) -> Answer {
    let known = front.directory.known_tenants(front.store.tenants().await?);
    let views = known.iter().map(|(id, (source, policy))| TenantView::of(id, *source, policy));
    Ok(answer(StatusCode::OK, &json!({"tenants": views.collect::<Vec<_>>()})))
}

pub(super) async fn show(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path(id): Path<String>,
) -> Answer {
    let id = tenant_id(&id)?;
    let (source, policy) = find(&front, &id).await?;
    Ok(answer(StatusCode::OK, &TenantView::of(&id, source, &policy)))
}

pub(super) async fn add(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    request: Request<Body>,
) -> Answer {
    let mut body = object(&front, request).await?;
    let id = match body.remove("id") {
        Some(Value::String(id)) => tenant_id(&id)?,
        _ => return Err(AdminError::Invalid("`id` must name the tenant".to_owned())),
    };
    let policy = policy(Value::Object(body))?;
    not_of_file(&front, &id)?;
    front.store.add_tenant(&Actor::key(key), &id, &policy).await?;
    Ok(answer(StatusCode::CREATED, &TenantView::of(&id, Source::Store, &policy)))
}

/// Members that are given are changed, those that are null are taken away (RFC 7396). What `GET` gave can be sent back.
pub(super) async fn change(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Answer {
    let id = tenant_id(&id)?;
    let mut body = object(&front, request).await?;
    not_of_file(&front, &id)?;
    let change = |before: Policy| {
        take_same(&mut body, "id", id.as_str())?;
        take_same(&mut body, "source", Source::Store.as_str())?;
        let mut merged = json!(before);
        merge(&mut merged, Value::Object(body));
        if let Some(members) = merged.as_object_mut() {
            // Not absent, which would mean the default: it was taken away.
            members.entry("max_in_flight").or_insert(Value::Null);
        }
        policy(merged)
    };
    let policy = front.store.change_tenant(&Actor::key(key), &id, change).await?;
    Ok(answer(StatusCode::OK, &TenantView::of(&id, Source::Store, &policy)))
}

pub(super) async fn remove(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(id): Path<String>,
) -> Result<Response<Body>, AdminError> {
    let id = tenant_id(&id)?;
    not_of_file(&front, &id)?;
    let revoked_keys = front.store.remove_tenant(&Actor::key(key), &id).await?;
    Ok(answer(StatusCode::OK, &json!({"id": id.as_str(), "revoked_keys": revoked_keys})))
}

pub(super) fn tenant_id(text: &str) -> Result<TenantId, AdminError> {
    TenantId::parse(text).map_err(|error| AdminError::Invalid(error.to_string()))
}

/// A tenant of the file, of the store, or of those who call without a key.
pub(super) async fn find(front: &Front, id: &TenantId) -> Result<(Source, Policy), AdminError> {
    let stored = front.store.tenant(id).await?.map(|policy| (id.clone(), policy));
    let found = front.directory.known_tenants(stored.into_iter().collect()).remove(id);
    found.ok_or_else(|| AdminError::NotFound(format!("tenant `{id}`")))
}

/// Takes away a member that cannot be changed, if it is what it must be.
fn take_same(body: &mut Map<String, Value>, name: &str, value: &str) -> Result<(), AdminError> {
    match body.remove(name) {
        Some(given) if given != value => {
            Err(AdminError::Invalid(format!("`{name}` is \"{value}\", and cannot be changed")))
        }
        _ => Ok(()),
    }
}

fn not_of_file(front: &Front, id: &TenantId) -> Result<(), AdminError> {
    if front.directory.is_in_file(id) { Err(AdminError::OfFile(id.clone())) } else { Ok(()) }
}

fn policy(members: Value) -> Result<Policy, AdminError> {
    serde_json::from_value(members).map_err(|error| AdminError::Invalid(error.to_string()))
}

fn merge(into: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *into = patch;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let Some(members) = into.as_object_mut() else { return };
    for (name, value) in patch {
        if value.is_null() {
            members.remove(&name);
        } else {
            merge(members.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_keeps_what_it_does_not_name() {
        let mut value =
            json!({"rate": "1/s", "weight": 2, "limits": {"a": {"rate": "1/s"}, "b": {}}});
        merge(&mut value, json!({"rate": null, "limits": {"a": {"burst": 2}, "b": null}}));
        assert_eq!(value, json!({"weight": 2, "limits": {"a": {"rate": "1/s", "burst": 2}}}));
    }
}
