//! Errors of requests, and the one place where an error becomes an HTTP status.

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::value::RawValue;

use super::headers::{ATTEMPTS, CALL_ID, OUTCOME, add_rate_status, call_id_value};
use crate::common::ids::{CallId, TenantId};
use crate::gateway::CallError;
use crate::store::StoreError;

/// The reason why a request fails: an error of HTTP itself, of the call, or of the store.
pub(crate) enum HttpError {
    Call(CallError),
    Unauthenticated {
        detail: &'static str,
        /// The value of `WWW-Authenticate`.
        challenge: String,
    },
    /// The store cannot be asked for this key now.
    AuthUnavailable,
    Forbidden(&'static str),
    InvalidRequest(String),
    PayloadTooLarge {
        limit: usize,
    },
    NotFound(String),
    /// The tenant stands in the configuration file, where the API cannot change it.
    InConfigurationFile(TenantId),
    Store(StoreError),
}

pub(crate) type HttpResult = Result<Response<Body>, HttpError>;

/// The body of an error, `application/problem+json` (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    title: &'a str,
    status: u16,
    code: &'a str,
    detail: String,
    retryable: bool,
    executed: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<BackendProblem<'a>>,
}

/// A server's own JSON-RPC error, unchanged.
#[derive(Serialize)]
struct BackendProblem<'a> {
    code: i64,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
}

pub(super) fn status_of(error: &CallError) -> StatusCode {
    match error.last() {
        CallError::InvalidRequest(_)
        | CallError::InvalidArguments(_)
        | CallError::HeaderMismatch(_) => StatusCode::BAD_REQUEST,
        CallError::ServerNotFound { .. } | CallError::ToolNotFound { .. } => StatusCode::NOT_FOUND,
        CallError::ToolHeld { .. } | CallError::SecretMissing { .. } => StatusCode::CONFLICT,
        CallError::InputRequired => StatusCode::UNPROCESSABLE_ENTITY,
        CallError::Backend(_)
        | CallError::BackendExited { .. }
        | CallError::BackendProtocol { .. }
        | CallError::BackendHttp { .. }
        | CallError::BackendTooLarge => StatusCode::BAD_GATEWAY,
        CallError::TenantBusy { .. } | CallError::RateLimited { .. } => {
            StatusCode::TOO_MANY_REQUESTS
        }
        CallError::Overloaded
        | CallError::TooManyProcesses
        | CallError::ServerUnavailable { .. }
        | CallError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        CallError::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
        CallError::Attempted { .. } => unreachable!("the last error is not a history"),
    }
}

impl HttpError {
    /// Returns the stable code that callers match on.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Call(error) => error.code(),
            Self::Unauthenticated { .. } => "unauthenticated",
            Self::AuthUnavailable => "auth_unavailable",
            Self::Forbidden(_) => "forbidden",
            Self::InvalidRequest(_) => "invalid_request",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::NotFound(_) => "not_found",
            Self::InConfigurationFile(_) => "in_configuration_file",
            Self::Store(error) => match error {
                StoreError::NotFound(_) => "not_found",
                StoreError::AlreadyExists(_) => "already_exists",
                StoreError::TooManyKeys(_) => "too_many_keys",
                StoreError::NotHeld { .. } => "definition_changed",
                StoreError::TooManyRows(_) => "invalid_request",
                StoreError::Unavailable(_) => "store_unavailable",
                StoreError::InvalidUrl(_) | StoreError::Corrupt(_) => "internal_error",
            },
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Call(error) => status_of(error),
            Self::Unauthenticated { .. } => StatusCode::UNAUTHORIZED,
            Self::AuthUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::InvalidRequest(_) => StatusCode::BAD_REQUEST,
            Self::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::InConfigurationFile(_) => StatusCode::CONFLICT,
            Self::Store(error) => match error {
                StoreError::NotFound(_) => StatusCode::NOT_FOUND,
                StoreError::AlreadyExists(_)
                | StoreError::TooManyKeys(_)
                | StoreError::NotHeld { .. } => StatusCode::CONFLICT,
                StoreError::TooManyRows(_) => StatusCode::BAD_REQUEST,
                StoreError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
                StoreError::InvalidUrl(_) | StoreError::Corrupt(_) => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            },
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Call(error) => error.to_string(),
            Self::Unauthenticated { detail, .. } | Self::Forbidden(detail) => (*detail).to_owned(),
            Self::AuthUnavailable => {
                "this key or token cannot be looked up now: the store does not answer".to_owned()
            }
            Self::InvalidRequest(detail) => detail.clone(),
            Self::PayloadTooLarge { limit } => {
                format!("the body is larger than the limit of {limit} bytes")
            }
            Self::NotFound(noun) => format!("there is no {noun}"),
            Self::InConfigurationFile(id) => {
                format!("tenant `{id}` is defined in the configuration file; change it there")
            }
            // A database's own words are for the log only.
            Self::Store(StoreError::Unavailable(_)) => {
                "the store cannot be reached now; a change may or may not have been made".to_owned()
            }
            Self::Store(StoreError::InvalidUrl(_) | StoreError::Corrupt(_)) => {
                "the store failed; the gateway's log has the reason".to_owned()
            }
            Self::Store(error) => error.to_string(),
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response<Body> {
        match &self {
            Self::Call(error) => return call_response(error),
            Self::Store(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(%error, "the store could not be asked");
            }
            Self::Store(error @ (StoreError::InvalidUrl(_) | StoreError::Corrupt(_))) => {
                tracing::error!(%error, "the store failed");
            }
            _ => {}
        }
        let status = self.status();
        let executed = match &self {
            Self::Store(_) if status.is_server_error() => "unknown",
            _ => "no",
        };
        let mut response = problem(status, self.code(), self.detail(), executed);
        let headers = response.headers_mut();
        if let Self::Unauthenticated { challenge, .. } = self {
            let challenge = HeaderValue::from_str(&challenge).ok();
            headers.extend(challenge.map(|challenge| (header::WWW_AUTHENTICATE, challenge)));
        }
        response
    }
}

impl From<CallError> for HttpError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl From<StoreError> for HttpError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<PathRejection> for HttpError {
    fn from(rejection: PathRejection) -> Self {
        Self::InvalidRequest(rejection.body_text())
    }
}

impl From<QueryRejection> for HttpError {
    fn from(rejection: QueryRejection) -> Self {
        Self::InvalidRequest(rejection.body_text())
    }
}

fn call_response(error: &CallError) -> Response<Body> {
    let status = status_of(error);
    let backend = match error.last() {
        CallError::Backend(error) => Some(BackendProblem {
            code: error.code,
            message: &error.message,
            data: error.data.as_deref(),
        }),
        _ => None,
    };
    let mut response = Problem {
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        code: error.code(),
        detail: error.to_string(),
        retryable: error.is_retryable(),
        executed: error.executed().as_str(),
        backend,
    }
    .into_response();
    let headers = response.headers_mut();
    if let Some(retry_after) = error.retry_after() {
        // In whole seconds, rounded up: a caller that comes back too early is refused again.
        let seconds = retry_after.as_secs_f64().ceil().max(1.0) as u64;
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    headers.insert(ATTEMPTS.clone(), error.attempts().into());
    if let Some(rate_status) = error.rate_status() {
        add_rate_status(headers, rate_status);
    }
    response
}

/// Responds to a failed tool call, with the call's id.
pub(super) fn call_failed(error: HttpError, call: CallId) -> Response<Body> {
    let mut response = error.into_response();
    let headers = response.headers_mut();
    headers.insert(CALL_ID.clone(), call_id_value(call));
    headers.entry(ATTEMPTS.clone()).or_insert(0.into());
    headers.insert(OUTCOME.clone(), HeaderValue::from_static("error"));
    response
}

pub(super) async fn no_such_path(uri: Uri) -> Response<Body> {
    let detail = format!(
        "there is nothing at `{}`; tools are called by POST /v1/servers/SERVER/tools/TOOL, MCP is \
         spoken at /mcp",
        uri.path()
    );
    problem(StatusCode::NOT_FOUND, "not_found", detail, "no")
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Response<Body> {
    let detail = format!("`{}` does not accept {method}", uri.path());
    problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail, "no")
}

/// Responds with a problem of the gateway's own. A 503 is temporary: it may be retried.
fn problem(status: StatusCode, code: &str, detail: String, executed: &str) -> Response<Body> {
    let is_temporary = status == StatusCode::SERVICE_UNAVAILABLE;
    let mut response = Problem {
        title: status.canonical_reason().unwrap_or_default(),
        status: status.as_u16(),
        code,
        detail,
        retryable: is_temporary && executed == "no",
        executed,
        backend: None,
    }
    .into_response();
    if is_temporary {
        response.headers_mut().insert(header::RETRY_AFTER, 1.into());
    }
    response
}

impl IntoResponse for Problem<'_> {
    fn into_response(self) -> Response<Body> {
        let body = serde_json::to_vec(&self).expect("a problem is plain data");
        let status = StatusCode::from_u16(self.status).expect("made of a status");
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        (status, content_type, body).into_response()
    }
}
