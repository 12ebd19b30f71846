//! The body of an error, and its response.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::common::ids::CallId;
use crate::common::limit_use::LimitUse;
use crate::protocol::jsonrpc::JsonText;

/// The wait that is asked for where no better time is known.
pub(super) const RETRY_SOON_MS: u64 = 1000;

/// The body of an error, `application/problem+json` (RFC 9457).
#[derive(Serialize, JsonSchema)]
pub(super) struct Problem<'a> {
    pub(super) title: &'a str,
    pub(super) status: u16,
    pub(super) code: &'a str,
    pub(super) detail: String,
    pub(super) retryable: bool,
    pub(super) executed: &'a str,
    /// The path of the explanation of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<BackendProblem<'a>>,
    /// The argument that does not fit its schema: a JSON Pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pointer: Option<&'a str>,
    /// The tenant's own limit that is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<LimitUse>,
    /// The page at which a person of the tenant connects it to the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connect_url: Option<&'a str>,
    /// The exact time that the header `Retry-After` rounds up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_ms: Option<u64>,
}

/// A server's own JSON-RPC error, unchanged.
#[derive(Serialize, JsonSchema)]
pub(super) struct BackendProblem<'a> {
    pub(super) code: i64,
    #[schemars(with = "String")]
    pub(super) message: &'a JsonText,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub(super) data: Option<&'a RawValue>,
}

/// Rounds up: a caller that comes back too early is refused again.
pub(super) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs_f64().ceil().max(1.0) as u64
}

/// Returns the path of the explanation of a failed call, if its kind of error has one.
pub(super) fn explain_link(status: StatusCode, call: CallId) -> Option<String> {
    matches!(status.as_u16(), 429 | 503 | 504).then(|| format!("/v1/calls/{call}/explain"))
}

impl<'a> Problem<'a> {
    /// Returns a problem of the gateway's own. A 503 is temporary: it may be retried.
    pub(super) fn new(
        status: StatusCode,
        code: &'a str,
        detail: String,
        executed: &'a str,
    ) -> Self {
        let is_temporary = status == StatusCode::SERVICE_UNAVAILABLE;
        Self {
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            code,
            detail,
            retryable: is_temporary && executed == "no",
            executed,
            explain: None,
            backend: None,
            pointer: None,
            limit: None,
            connect_url: None,
            retry_after_ms: is_temporary.then_some(RETRY_SOON_MS),
        }
    }

    /// Adds the link to the explanation of a call, if there is one.
    pub(super) fn explained_by(mut self, call: Option<CallId>) -> Self {
        let status = StatusCode::from_u16(self.status).expect("made of a status");
        self.explain = call.and_then(|call| explain_link(status, call));
        self
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let body = serde_json::to_vec(&self).expect("a problem is plain data");
        let status = StatusCode::from_u16(self.status).expect("made of a status");
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, content_type, body).into_response();
        let seconds = self.retry_after_ms.map(|ms| whole_seconds(Duration::from_millis(ms)));
        let retry_after = seconds.map(|seconds| (header::RETRY_AFTER, seconds.into()));
        response.headers_mut().extend(retry_after);
        response
    }
}
