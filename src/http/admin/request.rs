//! Reads the bodies of administrators' requests and writes the responses.

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::http::body;
use crate::http::error::HttpError;
use crate::http::state::AppState;

/// Reads the JSON object of a request; an empty body is an empty object.
pub(super) async fn object(
    app: &AppState,
    request: Request<Body>,
) -> Result<Map<String, Value>, HttpError> {
    let (parts, request_body) = request.into_parts();
    let deadline = Instant::now() + body::TIMEOUT;
    let body = body::read(&parts.headers, request_body, app.max_body, deadline).await?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    let invalid = |error: serde_json::Error| {
        HttpError::InvalidRequest(format!("the body must be a JSON object: {error}"))
    };
    serde_json::from_slice(&body).map_err(invalid)
}

pub(crate) fn respond(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}
