//! What administrators get to read, and what they send.

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::common::ids::TenantId;
use crate::gateway::CallError;
use crate::http::error::{plain_problem, problem_of};
use crate::http::{Front, body};
use crate::store::StoreError;

/// Why an administrator does not get what was asked for.
pub(crate) enum AdminError {
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

pub(crate) type Answer = Result<Response<Body>, AdminError>;

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
            Self::Store(error) => return of_store(&error),
            Self::Invalid(detail) => (StatusCode::BAD_REQUEST, "invalid_request", detail),
            Self::OfFile(id) => {
                let detail =
                    format!("tenant `{id}` stands in the configuration file, and is changed there");
                (StatusCode::CONFLICT, "in_configuration_file", detail)
            }
            Self::NotFound(what) => {
                (StatusCode::NOT_FOUND, "not_found", format!("there is no {what}"))
            }
        };
        plain_problem(status, code, detail)
    }
}

/// Why the store did not do it. What a database says about itself is for the log.
fn of_store(error: &StoreError) -> Response<Body> {
    let (status, code) = match error {
        StoreError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
        StoreError::AlreadyExists(_) => (StatusCode::CONFLICT, "already_exists"),
        StoreError::TooManyKeys(_) => (StatusCode::CONFLICT, "too_many_keys"),
        StoreError::NotHeld { .. } => (StatusCode::CONFLICT, "definition_changed"),
        StoreError::TooManyRows(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
        StoreError::Unavailable(_) => {
            tracing::warn!(%error, "the store could not be asked");
            let detail = "the store cannot be reached now; a change may or may not have been made";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return problem_of(status, "store_unavailable", detail.to_owned(), "unknown");
        }
        StoreError::InvalidUrl(_) | StoreError::Corrupt(_) => {
            tracing::error!(%error, "the store failed");
            let detail = "the store failed; the reason is in the gateway's log".to_owned();
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return problem_of(status, "internal_error", detail, "unknown");
        }
    };
    plain_problem(status, code, error.to_string())
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

pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("views are plain data");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, body).into_response()
}
