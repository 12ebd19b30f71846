//! Any tenant's calls by their id: failures, refusals and slow calls of the last while.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Extensions, HeaderMap};
use serde_json::{Value, json};

use crate::calls::Refusal;
use crate::events::EndedCall;
use crate::http::auth::Administrator;
use crate::http::error::HttpResult;
use crate::http::replicas::Forwarded;
use crate::http::rest::calls::{found, id_in};
use crate::http::rest::explain::explain_json;
use crate::http::rest::recent::{ask_others, record_json};
use crate::http::state::AppState;

pub(super) async fn show(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    let write = |call: &EndedCall| {
        let mut json = record_json(call);
        json["tenant"] = json!(call.tenant.name().as_str());
        json
    };
    find(&app, path, "", &headers, &extensions, write).await
}

pub(super) async fn explain(
    State(app): State<Arc<AppState>>,
    _: Administrator,
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    extensions: Extensions,
) -> HttpResult {
    find(&app, path, "/explain", &headers, &extensions, |call| explain_json(call, true)).await
}

/// Finds a call here or at another replica.
async fn find(
    app: &AppState,
    path: Result<Path<String>, PathRejection>,
    suffix: &str,
    headers: &HeaderMap,
    extensions: &Extensions,
    write: impl Fn(&EndedCall) -> Value,
) -> HttpResult {
    let id = id_in(path)?;
    let known = app.recent.find_any(id).map(|call| write(&call));
    if known.is_some() || extensions.get::<Forwarded>().is_some() {
        return found(known);
    }
    let asked = ask_others(app, format!("/admin/v1/calls/{id}{suffix}"), headers).await;
    asked.ok_or_else(|| Refusal::NoSuchCall.into())
}
