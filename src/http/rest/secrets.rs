//! Secrets that tenants set for servers of their own: `/v1/servers/{server}/secrets`. No response
//! ever holds a value.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::config::Secret;
use crate::http::admin::ok;
use crate::http::auth::store_quota::StorePermit;
use crate::http::auth::{Authenticated, credential};
use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;
use crate::store::Actor;
use crate::tenants::SecretError;
use crate::tenants::secrets::by_tenant;
use crate::tenants::secrets::{Label, VALUE_LEN_MAX};

/// The largest body: a value in which every character is written as `\u0000`, and its object.
const BODY_LEN_MAX: usize = 6 * VALUE_LEN_MAX + 1024;
/// The most requests of tenants that use the store at once.
pub(crate) const REQUESTS_MAX: usize = 1;

/// Lists the secrets that the server needs, and which of them are set.
pub(crate) async fn list(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> HttpResult {
    let Path(server) = path?;
    let server = app.gateway.server(&caller, &server)?;
    let _permit = StorePermit::of(&app.secret_requests, &caller, server.id().as_str()).await?;
    let records = app.store.list_secrets(caller.tenant.id.name(), Some(server.id())).await?;
    let views = by_tenant::views(server.id(), Some(server.config()), &records);
    ok(&json!({"secrets": views}))
}

pub(crate) async fn set(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> HttpResult {
    let Path((server, name)) = path?;
    let server = app.gateway.server(&caller, &server)?;
    require_key(request.headers())?;
    let (limit, deadline) = (BODY_LEN_MAX.min(app.max_body), Instant::now() + body::TIMEOUT);
    let (head, body) = request.into_parts();
    let (body, _held) = body::read_for(&caller, &head.headers, body, limit, deadline).await?;
    let value = value_of(&body)?;
    let _permit = StorePermit::of(&app.secret_requests, &caller, server.id().as_str()).await?;
    let tenant = &caller.tenant.id;
    let label = Label { tenant: tenant.name(), server: server.id(), name: &name };
    let set = app.directory.secrets();
    let view = set.set(&Actor::tenant(tenant), label, server.config(), &value).await?;
    ok(&view)
}

pub(crate) async fn remove(
    State(app): State<Arc<AppState>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> HttpResult {
    let Path((server, name)) = path?;
    let server = app.gateway.server(&caller, &server)?;
    require_key(&headers)?;
    let _permit = StorePermit::of(&app.secret_requests, &caller, server.id().as_str()).await?;
    let tenant = &caller.tenant.id;
    let label = Label { tenant: tenant.name(), server: server.id(), name: &name };
    app.directory.secrets().remove(&Actor::tenant(tenant), label).await?;
    let view = json!({"server": server.id().as_str(), "name": name, "set": false});
    ok(&view)
}

/// Refuses anonymous callers: they are many, and share one tenant.
pub(super) fn require_key(headers: &HeaderMap) -> Result<(), HttpError> {
    match credential(headers)? {
        Some(_) => Ok(()),
        None => Err(HttpError::Forbidden(
            "a caller without a key cannot change secrets; the operator can, by `trunkline secret \
             set`",
        )),
    }
}

/// Reads `{"value": "…"}`. Errors show nothing of the body.
pub(crate) fn value_of(body: &[u8]) -> Result<Secret, HttpError> {
    let members = serde_json::from_slice::<Map<String, Value>>(body).unwrap_or_default();
    let is_alone = members.len() == 1;
    match members.into_iter().next() {
        Some((name, Value::String(value))) if is_alone && name == "value" => Ok(Secret::new(value)),
        _ => Err(HttpError::invalid("the body must be {\"value\": \"…\"}")),
    }
}

impl From<SecretError> for HttpError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Store(error) => Self::Store(error),
            other => Self::InvalidRequest(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_object_with_a_value_and_nothing_else() {
        let value = value_of(br#"{"value": "a\u00e9\n"}"#).ok().unwrap();
        assert_eq!(value.expose(), "aé\n");
        for bad in [
            "",
            "hunter2",
            "\"hunter2\"",
            "[\"hunter2\"]",
            "{}",
            r#"{"Value": "hunter2"}"#,
            r#"{"value": 1}"#,
            r#"{"value": "hunter2", "x": 1}"#,
        ] {
            let Err(HttpError::InvalidRequest(problem)) = value_of(bad.as_bytes()) else {
                panic!("{bad} was accepted")
            };
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
