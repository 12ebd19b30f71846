//! Secrets that tenants set for their own servers: `/v1/servers/{server}/secrets`. Values come in and never go out.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::config::Secret;
use crate::gateway::CallError;
use crate::http::admin::{AdminError, Answer, answer};
use crate::http::auth::store_quota::Turn;
use crate::http::auth::{Authenticated, credential};
use crate::http::{Front, body};
use crate::store::Actor;
use crate::tenants::SecretError;
use crate::tenants::secrets::by_tenant;
use crate::tenants::secrets::{Label, VALUE_LEN_MAX};

/// The largest request: a value in which every character is written as `\u0000`, and what is around it.
const BODY_LEN_MAX: usize = 6 * VALUE_LEN_MAX + 1024;
/// Requests of tenants that are at the store at once.
pub(crate) const TURNS: usize = 1;

/// What the caller's server needs, and what is set.
pub(crate) async fn list(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<String>, PathRejection>,
) -> Answer {
    let Path(server) = path.map_err(invalid_path)?;
    let server = front.gateway.server(&caller, &server)?;
    let _turn = Turn::of(&front.secret_turns, &caller, server.id().as_str()).await?;
    let records = front.store.list_secrets(&caller.tenant.id, Some(server.id())).await?;
    let views = by_tenant::views(server.id(), Some(server.config()), &records);
    Ok(answer(StatusCode::OK, &json!({"secrets": views})))
}

/// Sets one.
pub(crate) async fn set(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<(String, String)>, PathRejection>,
    request: Request<Body>,
) -> Answer {
    let Path((server, name)) = path.map_err(invalid_path)?;
    let server = front.gateway.server(&caller, &server)?;
    let (parts, request_body) = request.into_parts();
    has_key(&parts.headers)?;
    let (limit, deadline) = (BODY_LEN_MAX.min(front.max_body), Instant::now() + body::TIMEOUT);
    let body = body::read_of(&caller, &parts.headers, request_body, limit, deadline).await?;
    let value = value_of(&body)?;
    let _turn = Turn::of(&front.secret_turns, &caller, server.id().as_str()).await?;
    let tenant = &caller.tenant.id;
    let label = Label { tenant, server: server.id(), name: &name };
    let set = front.directory.secrets();
    let view = set.set(&Actor::tenant(tenant), label, server.config(), &value).await?;
    Ok(answer(StatusCode::OK, &view))
}

/// Removes one.
pub(crate) async fn remove(
    State(front): State<Arc<Front>>,
    Authenticated(caller): Authenticated,
    path: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Answer {
    let Path((server, name)) = path.map_err(invalid_path)?;
    let server = front.gateway.server(&caller, &server)?;
    has_key(&headers)?;
    let _turn = Turn::of(&front.secret_turns, &caller, server.id().as_str()).await?;
    let tenant = &caller.tenant.id;
    let label = Label { tenant, server: server.id(), name: &name };
    front.directory.secrets().remove(&Actor::tenant(tenant), label).await?;
    Ok(answer(StatusCode::OK, &json!({"server": server.id().as_str(), "name": name, "set": false})))
}

/// Whoever needs no key is anybody, and must not decide what the others' server is given.
fn has_key(headers: &HeaderMap) -> Result<(), CallError> {
    match credential(headers)? {
        Some(_) => Ok(()),
        None => Err(CallError::Forbidden(
            "callers without a key cannot change secrets; the operator can, with `trunkline secret set`",
        )),
    }
}

/// The value in `{"value": "…"}`. Errors show nothing of the body.
pub(crate) fn value_of(body: &[u8]) -> Result<Secret, AdminError> {
    let members = serde_json::from_slice::<Map<String, Value>>(body).unwrap_or_default();
    let is_alone = members.len() == 1;
    match members.into_iter().next() {
        Some((name, Value::String(value))) if is_alone && name == "value" => Ok(Secret::new(value)),
        _ => Err(AdminError::Invalid("the body must be {\"value\": \"…\"}".to_owned())),
    }
}

fn invalid_path(rejection: PathRejection) -> AdminError {
    AdminError::Invalid(rejection.body_text())
}

impl From<SecretError> for AdminError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Store(error) => Self::Store(error),
            other => Self::Invalid(other.to_string()),
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
            let Err(AdminError::Invalid(problem)) = value_of(bad.as_bytes()) else {
                panic!("{bad} was accepted")
            };
            assert!(!problem.contains("hunter2"), "{problem}");
        }
    }
}
