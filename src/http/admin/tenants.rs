//! Tenants and what they may do.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{AdminError, Answer, json as answer, object};
use crate::http::Front;
use crate::http::auth::Administrator;
use crate::ids::TenantId;
use crate::policy::Policy;
use crate::store::Actor;

/// A tenant as administrators see it.
#[derive(Serialize)]
struct View<'a> {
    id: &'a str,
    /// `file`, which alone can change it, or `store`.
    source: &'static str,
    #[serde(flatten)]
    policy: &'a Policy,
}

impl<'a> View<'a> {
    fn of(front: &Front, id: &'a TenantId, policy: &'a Policy) -> Self {
        let source = if front.directory.file_policy(id).is_some() { "file" } else { "store" };
        Self { id: id.as_str(), source, policy }
    }
}

pub(super) async fn list(State(front): State<Arc<Front>>, _: Administrator) -> Answer {
    let mut tenants = front.store.tenants().await?;
    tenants.extend(front.directory.file_policies().clone());
    let views: Vec<_> = tenants.iter().map(|(id, policy)| View::of(&front, id, policy)).collect();
    Ok(answer(StatusCode::OK, &json!({"tenants": views})))
}

pub(super) async fn show(
    State(front): State<Arc<Front>>,
    _: Administrator,
    Path(id): Path<String>,
) -> Answer {
    let id = tenant_id(&id)?;
    let policy = match front.directory.file_policy(&id) {
        Some(policy) => policy.clone(),
        None => in_store(&front, &id).await?,
    };
    Ok(answer(StatusCode::OK, &View::of(&front, &id, &policy)))
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
    Ok(answer(StatusCode::CREATED, &View::of(&front, &id, &policy)))
}

/// Members that are given are changed, those that are null are taken away (RFC 7396).
pub(super) async fn change(
    State(front): State<Arc<Front>>,
    Administrator(key): Administrator,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Answer {
    let id = tenant_id(&id)?;
    let body = object(&front, request).await?;
    not_of_file(&front, &id)?;
    let change = |before: Policy| {
        let mut merged = json!(before);
        merge(&mut merged, Value::Object(body));
        policy(merged)
    };
    let policy = front.store.change_tenant(&Actor::key(key), &id, change).await?;
    Ok(answer(StatusCode::OK, &View::of(&front, &id, &policy)))
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

async fn in_store(front: &Front, id: &TenantId) -> Result<Policy, AdminError> {
    let policy = front.store.tenant(id).await?;
    policy.ok_or_else(|| AdminError::NotFound(format!("tenant `{id}`")))
}

fn not_of_file(front: &Front, id: &TenantId) -> Result<(), AdminError> {
    match front.directory.file_policy(id) {
        Some(_) => Err(AdminError::OfFile(id.clone())),
        None => Ok(()),
    }
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
