//! What administrators get to read, and what they send.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::gateway::CallError;
use crate::http::error::plain_problem;
use crate::http::{Front, body};
use crate::ids::TenantId;
use crate::store::StoreError;

/// When to try again what the store could not do now.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why an administrator does not get what was asked for.
pub(in crate::http) enum AdminError {
    /// Who asks, or the request itself.
    Call(CallError),
    /// What is asked for cannot be understood.
    Invalid(String),
    /// The tenant stands in the configuration file.
    OfFile(TenantId),
    /// There is nothing of that name.
    NotFound(String),
    /// The store.
    Store(StoreError),
}

pub(in crate::http) type Answer = Result<Response<Body>, AdminError>;

impl From<CallError> for AdminError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response<Body> {
        let (status, code, detail) = match self {
            Self::Call(error) => return error.into_response(),
            Self::Invalid(detail) => (StatusCode::BAD_REQUEST, "invalid_request", detail),
            Self::OfFile(id) => {
                let detail =
                    format!("tenant `{id}` stands in the configuration file, and is changed there");
                (StatusCode::CONFLICT, "in_configuration_file", detail)
            }
            Self::NotFound(what) => {
                (StatusCode::NOT_FOUND, "not_found", format!("there is no {what}"))
            }
            Self::Store(error) => of_store(&error),
        };
        let mut response = plain_problem(status, code, detail);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.as_secs().into());
        }
        response
    }
}

fn of_store(error: &StoreError) -> (StatusCode, &'static str, String) {
    let (status, code) = match error {
        StoreError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
        StoreError::AlreadyExists(_) => (StatusCode::CONFLICT, "already_exists"),
        StoreError::TooManyKeys(_) => (StatusCode::CONFLICT, "too_many_keys"),
        StoreError::TooManyRows(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
        StoreError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable"),
        StoreError::InvalidUrl(_) | StoreError::Corrupt(_) => {
            tracing::error!(%error, "the store failed an administrator");
            let detail = "the store failed; its reason is in the gateway's log".to_owned();
            return (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail);
        }
    };
    (status, code, error.to_string())
}

/// The object that a request sends; empty if it sends nothing.
pub(super) async fn object(
    front: &Front,
    request: Request<Body>,
) -> Result<Map<String, Value>, AdminError> {
    let (parts, request_body) = request.into_parts();
    let deadline = Instant::now() + body::TIMEOUT;
    let body = body::read(&parts.headers, request_body, front.max_body, deadline).await?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    let invalid = |error: serde_json::Error| {
        AdminError::Invalid(format!("the body must be a JSON object: {error}"))
    };
    serde_json::from_slice(&body).map_err(invalid)
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}
