//! Errors as HTTP: the one place where codes become statuses.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::value::RawValue;

use super::rest::call::text_value;
use crate::common::ids::CallId;
use crate::gateway::CallError;
use crate::tenants::limits::RateStatus;

pub(super) static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

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

/// A server's own error, as it gave it.
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
        CallError::Unauthenticated { .. } => StatusCode::UNAUTHORIZED,
        CallError::Forbidden(_) => StatusCode::FORBIDDEN,
        CallError::ServerNotFound { .. } | CallError::ToolNotFound { .. } => StatusCode::NOT_FOUND,
        CallError::ToolHeld { .. } | CallError::SecretMissing { .. } => StatusCode::CONFLICT,
        CallError::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        CallError::InputRequired => StatusCode::UNPROCESSABLE_ENTITY,
        CallError::Backend(_)
        | CallError::BackendExited { .. }
        | CallError::BackendProtocol { .. }
        | CallError::BackendHttp { .. }
        | CallError::BackendTooLarge => StatusCode::BAD_GATEWAY,
        CallError::TenantBusy { .. } | CallError::RateLimited { .. } => {
            StatusCode::TOO_MANY_REQUESTS
        }
        CallError::AuthUnavailable
        | CallError::Overloaded
        | CallError::TooManyProcesses
        | CallError::ServerUnavailable { .. }
        | CallError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        CallError::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
        CallError::Attempted { .. } => unreachable!("the last is none"),
    }
}

impl IntoResponse for CallError {
    fn into_response(self) -> Response<Body> {
        let status = status_of(&self);
        let backend = match self.last() {
            Self::Backend(error) => Some(BackendProblem {
                code: error.code,
                message: &error.message,
                data: error.data.as_deref(),
            }),
            _ => None,
        };
        let mut response = problem(
            status,
            &Problem {
                title: status.canonical_reason().unwrap_or_default(),
                status: status.as_u16(),
                code: self.code(),
                detail: self.to_string(),
                retryable: self.is_retryable(),
                executed: self.executed().as_str(),
                backend,
            },
        );
        let headers = response.headers_mut();
        if let Some(retry_after) = self.retry_after() {
            // In whole seconds, rounded up: who comes back too early is refused again.
            let seconds = retry_after.as_secs_f64().ceil().max(1.0) as u64;
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        headers.insert(super::rest::call::ATTEMPTS.clone(), self.attempts().into());
        if let Self::Unauthenticated { challenge, .. } = self.last() {
            headers.extend(
                HeaderValue::from_str(challenge).ok().map(|it| (header::WWW_AUTHENTICATE, it)),
            );
        }
        if let Some(rate_status) = self.rate_status() {
            rate_headers(headers, rate_status);
        }
        response
    }
}

/// Where a tenant stands with its rates.
pub(super) fn rate_headers(headers: &mut HeaderMap, rate_status: &RateStatus) {
    if rate_status.is_empty() {
        return;
    }
    headers.insert(RATE_LIMIT_POLICY.clone(), text_value(rate_status.policy()));
    headers.insert(RATE_LIMIT.clone(), text_value(rate_status.remaining()));
}

/// An error of a tool call, with the call's id.
pub(super) fn call_failed(error: CallError, call: CallId) -> Response<Body> {
    let mut response = error.into_response();
    let headers = response.headers_mut();
    headers.insert(super::rest::call::CALL_ID.clone(), super::rest::call::call_id_value(call));
    headers.insert(super::rest::call::OUTCOME.clone(), HeaderValue::from_static("error"));
    response
}

pub(super) async fn no_such_path(uri: Uri) -> Response<Body> {
    let detail = format!(
        "there is nothing at `{}`; tools are called by POST /v1/servers/SERVER/tools/TOOL, MCP is spoken at /mcp",
        uri.path()
    );
    plain_problem(StatusCode::NOT_FOUND, "not_found", detail)
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Response<Body> {
    let detail = format!("`{}` cannot be asked with {method}", uri.path());
    plain_problem(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

pub(super) fn plain_problem(status: StatusCode, code: &str, detail: String) -> Response<Body> {
    problem_of(status, code, detail, "no")
}

/// What is over the gateway's own limits for now may be tried again.
pub(super) fn problem_of(
    status: StatusCode,
    code: &str,
    detail: String,
    executed: &str,
) -> Response<Body> {
    let title = status.canonical_reason().unwrap_or_default();
    let retryable = status == StatusCode::SERVICE_UNAVAILABLE && executed == "no";
    let problem_body = Problem {
        title,
        status: status.as_u16(),
        code,
        detail,
        retryable,
        executed,
        backend: None,
    };
    let mut response = problem(status, &problem_body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, 1.into());
    }
    response
}

fn problem(status: StatusCode, body: &Problem<'_>) -> Response<Body> {
    let body = serde_json::to_vec(body).expect("a problem is plain data");
    let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, content_type, body).into_response()
}
