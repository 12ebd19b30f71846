//! Reads the bodies of administrators' requests and writes the responses.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::http::body;
use crate::http::error::{HttpError, HttpResult};
use crate::http::state::AppState;

/// Reads the JSON object of a request; an empty body is an empty object.
pub(super) async fn object(
    app: &AppState,
    request: Request<Body>,
) -> Result<Map<String, Value>, HttpError> {
    let deadline = Instant::now() + body::TIMEOUT;
    let body = body::read(request.into_body(), app.max_body, deadline).await?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&body)
        .map_err(|error| HttpError::invalid(format!("the body must be a JSON object: {error}")))
}

/// Reads a request whose members are those of `T`.
pub(super) async fn read<T: DeserializeOwned>(
    app: &AppState,
    request: Request<Body>,
) -> Result<T, HttpError> {
    let members = Value::Object(object(app, request).await?);
    serde_json::from_value(members).map_err(HttpError::invalid)
}

pub(crate) fn ok(body: &impl Serialize) -> HttpResult {
    respond(StatusCode::OK, body)
}

pub(super) fn created(body: &impl Serialize) -> HttpResult {
    respond(StatusCode::CREATED, body)
}

fn respond(status: StatusCode, body: &impl Serialize) -> HttpResult {
    let body = serde_json::to_vec(body).expect("views are plain data");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((status, headers, body).into_response())
}
