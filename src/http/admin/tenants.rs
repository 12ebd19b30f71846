//! Tenants and their policies.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Request;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{created, object, ok};
use crate::common::ids::TenantName;
use crate::common::policy::{Policy, PolicyText};
use crate::http::auth::Administrator;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::tenants::{KnownTenant, TenantView};

pub(super) async fn list(State(app): State<Arc<AppState>>, _: Administrator) -> HttpResult {
    let (stored, file_tenants) = (app.store.tenants().await?, app.store.file_tenants().await?);
    let known = app.directory.known_tenants(&stored, &file_tenants);
    let views = known.iter().map(|(id, tenant)| TenantView::of(id, tenant));
    ok(&json!({"tenants": views.collect::<Vec<_>>()}))
}

pub(super) async fn show(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let id = tenant_id(&id)?;
    ok(&TenantView::of(&id, &find(&app, &id).await?))
}

/// Shows a tenant's limits, and how much of them it uses at this gateway.
pub(super) async fn limits(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let id = tenant_id(&id)?;
    let tenant = app.directory.tenant(&id);
    let tenant = tenant.ok_or_else(|| HttpError::NotFound(format!("tenant `{id}`")))?;
    ok(&json!({"tenant": id.as_str(), "limits": tenant.limits.all()}))
}

pub(super) async fn add(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    request: Request<Body>,
) -> HttpResult {
    let mut body = object(&app, request).await?;
    let id = match body.remove("id") {
        Some(Value::String(id)) => tenant_id(&id)?,
        _ => return Err(HttpError::invalid("`id` must name the tenant")),
    };
    let policy = policy(Value::Object(body))?;
    refuse_if_in_file(&app, &id)?;
    app.store.add_tenant(&actor, &id, &policy).await?;
    created(&TenantView::of(&id, &find(&app, &id).await?))
}

/// Changes the given members; null removes one (RFC 7396). The answer of `GET` can be sent back.
pub(super) async fn change(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path(id) = path?;
    let id = tenant_id(&id)?;
    let mut body = object(&app, request).await?;
    refuse_if_in_file(&app, &id)?;
    let shown = json!(TenantView::of(&id, &find(&app, &id).await?));
    for name in ["id", "source", "since"] {
        remove_unchanged(&mut body, name, &shown[name])?;
    }
    let body = Value::Object(body);
    // A misspelt member that is to be removed would go unnoticed.
    PolicyText::deserialize(&body).map_err(HttpError::invalid)?;
    let change = |before: Policy| {
        let mut merged = json!(before);
        merge(&mut merged, body);
        if let Some(members) = merged.as_object_mut() {
            // Removed means no limit; an absent member would mean the default.
            members.entry("max_in_flight").or_insert(Value::Null);
        }
        policy(merged)
    };
    app.store.change_tenant(&actor, &id, change).await?;
    ok(&TenantView::of(&id, &find(&app, &id).await?))
}

pub(super) async fn remove(
    State(app): State<Arc<AppState>>,
    Administrator { actor, .. }: Administrator,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(id) = path?;
    let id = tenant_id(&id)?;
    refuse_if_in_file(&app, &id)?;
    let revoked_keys = app.store.remove_tenant(&actor, &id).await?;
    ok(&json!({"id": id.as_str(), "revoked_keys": revoked_keys}))
}

pub(super) fn tenant_id(text: &str) -> Result<TenantName, HttpError> {
    TenantName::parse(text).map_err(HttpError::invalid)
}

/// Finds a tenant of the file, of the store, or the anonymous one.
pub(super) async fn find(app: &AppState, id: &TenantName) -> Result<KnownTenant, HttpError> {
    let stored = app.store.tenant(id).await?.map(|tenant| (id.clone(), tenant));
    let file_tenants = app.store.file_tenants().await?;
    let found =
        app.directory.known_tenants(&stored.into_iter().collect(), &file_tenants).remove(id);
    found.ok_or_else(|| HttpError::NotFound(format!("tenant `{id}`")))
}

/// Removes a member that cannot be changed; fails if it differs.
fn remove_unchanged(
    body: &mut Map<String, Value>,
    name: &str,
    value: &Value,
) -> Result<(), HttpError> {
    match body.remove(name) {
        Some(given) if given != *value => {
            Err(HttpError::invalid(format!("`{name}` is {value}, and cannot be changed")))
        }
        _ => Ok(()),
    }
}

fn refuse_if_in_file(app: &AppState, id: &TenantName) -> Result<(), HttpError> {
    if app.directory.is_in_file(id) {
        Err(HttpError::InConfigurationFile(id.clone()))
    } else {
        Ok(())
    }
}

fn policy(members: Value) -> Result<Policy, HttpError> {
    serde_json::from_value(members).map_err(HttpError::invalid)
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
