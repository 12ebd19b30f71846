//! JSON-RPC answers, and the HTTP that goes with them.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::gateway::CallError;
use crate::http::error::{rate_headers, status_of};
use crate::protocol::jsonrpc::{
    INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Malformed, PARSE_ERROR,
};
use crate::protocol::mcp::headers::HeaderMismatch;
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{
    Era, HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION,
};
use crate::tenants::limits::RateStatus;

/// An error, as a client of either era reads it.
#[derive(Debug)]
pub(super) struct RpcError {
    pub(super) code: i64,
    message: String,
    data: Option<Box<RawValue>>,
    /// Where the request as such is to blame, not what became of it.
    status: Option<StatusCode>,
    /// The same where only a modern client can be told so.
    modern_status: Option<StatusCode>,
    /// Where the tenant stands with its rates, if it is to be told.
    rate_status: RateStatus,
}

impl RpcError {
    /// With the status that a modern client gets for this code, and no more than the code to go by.
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        let (message, rate_status) = (message.into(), RateStatus::default());
        Self { code, message, data: None, status: None, modern_status: None, rate_status }
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        let method: String = method.chars().take(64).collect();
        Self::new(METHOD_NOT_FOUND, format!("there is no method {method:?} here"))
    }

    pub(super) fn code(&self) -> i64 {
        self.code
    }

    /// The same under another code.
    pub(super) fn with_code(self, code: i64) -> Self {
        Self { code, ..self }
    }

    pub(super) fn with_data(self, data: &Value) -> Self {
        let data = serde_json::value::to_raw_value(data).expect("plain data");
        Self { data: Some(data), ..self }
    }

    /// With a status whatever the era.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status: Some(status), ..self }
    }

    /// With a status in the modern era, where the code alone does not say it.
    pub(super) fn with_modern_status(self, status: StatusCode) -> Self {
        Self { modern_status: Some(status), ..self }
    }

    /// With where the tenant stands with its rates.
    pub(super) fn with_rate_status(self, rate_status: RateStatus) -> Self {
        Self { rate_status, ..self }
    }

    /// The message as JSON. Without an id that could be read, JSON-RPC answers with `null`.
    pub(super) fn body(&self, id: Option<&RawValue>) -> Bytes {
        let frame = crate::protocol::jsonrpc::Frame::error(
            id,
            self.code,
            &self.message,
            self.data.as_deref(),
        );
        without_line_end(frame.into_bytes())
    }

    /// Modern clients read the kind of some errors from the status too. For legacy ones an answered request is
    /// a success of HTTP's, whatever the answer: their SDKs lose the error otherwise.
    pub(super) fn status(&self, era: Era) -> StatusCode {
        match (self.status, era) {
            (Some(status), _) => status,
            (None, Era::Legacy) => StatusCode::OK,
            (None, Era::Modern) => self.modern_status.unwrap_or(match self.code {
                METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
                PARSE_ERROR
                | INVALID_REQUEST
                | HEADER_MISMATCH
                | MISSING_CLIENT_CAPABILITY
                | UNSUPPORTED_PROTOCOL_VERSION => StatusCode::BAD_REQUEST,
                _ => StatusCode::OK,
            }),
        }
    }

    /// For a stream that cannot be opened: there is no request to answer, only HTTP's.
    pub(super) fn respond_without_id(&self) -> Response<Body> {
        let of_code =
            u16::try_from(self.code).ok().and_then(|code| StatusCode::from_u16(code).ok());
        let status = self.status.or(of_code).unwrap_or(StatusCode::BAD_REQUEST);
        self.respond_with(status, None)
    }

    pub(super) fn respond(&self, era: Era, id: Option<&RawValue>) -> Response<Body> {
        self.respond_with(self.status(era), id)
    }

    fn respond_with(&self, status: StatusCode, id: Option<&RawValue>) -> Response<Body> {
        let mut response = respond(status, self.body(id));
        rate_headers(response.headers_mut(), &self.rate_status);
        response
    }
}

impl From<ParamsError> for RpcError {
    fn from(error: ParamsError) -> Self {
        Self::invalid_params(error.to_string()).with_modern_status(StatusCode::BAD_REQUEST)
    }
}

impl From<HeaderMismatch> for RpcError {
    fn from(mismatch: HeaderMismatch) -> Self {
        Self::new(HEADER_MISMATCH, mismatch.to_string())
    }
}

impl From<&Malformed<'_>> for RpcError {
    fn from(malformed: &Malformed<'_>) -> Self {
        let error = match malformed {
            Malformed::NotJson => Self::new(PARSE_ERROR, "the body is not valid JSON"),
            Malformed::Batch => Self::new(INVALID_REQUEST, "Batch requests not supported"),
            Malformed::Invalid { why, .. } => Self::new(INVALID_REQUEST, *why),
        };
        error.with_status(StatusCode::BAD_REQUEST)
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        // Of all attempts; what follows is about the last.
        let (attempts, executed) = (error.attempts(), error.executed());
        let is_retryable = error.is_retryable();
        let rate_status = error.rate_status().cloned().unwrap_or_default();
        let error = error.into_last();
        let code = match &error {
            // What the server said is passed on as it is.
            CallError::Backend(_) => {
                let CallError::Backend(error) = error else { unreachable!("just seen") };
                let (code, message, data) = (error.code, error.message, error.data);
                return Self { data, rate_status, ..Self::new(code, message) };
            }
            CallError::HeaderMismatch(_) => HEADER_MISMATCH,
            CallError::InvalidRequest(_) => INVALID_REQUEST,
            CallError::InvalidArguments(_)
            | CallError::ServerNotFound { .. }
            | CallError::ToolNotFound { .. } => INVALID_PARAMS,
            // The gateway's own codes lie outside the range that JSON-RPC and MCP keep for themselves: they
            // are the statuses of the REST API.
            other => i64::from(status_of(other).as_u16()),
        };
        let mut data = json!({
            "code": error.code(),
            "retryable": is_retryable,
            "executed": executed.as_str(),
        });
        if attempts > 1 {
            data["attempts"] = json!(attempts);
        }
        if let Some(retry_after) = error.retry_after() {
            data["retryAfterMs"] = json!(retry_after.as_millis() as u64);
        }
        Self::new(code, error.to_string()).with_data(&data).with_rate_status(rate_status)
    }
}

/// A successful answer; `result` is JSON.
pub(super) fn result(id: &RawValue, result: &str) -> Bytes {
    // Of exactly the right length, it becomes `Bytes` as it is.
    [r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","result":"#, result, "}"].concat().into()
}

/// A notification; `params` is JSON.
pub(super) fn notification(method: &str, params: &str) -> Bytes {
    without_line_end(crate::protocol::jsonrpc::Frame::notification(method, params).into_bytes())
}

fn without_line_end(mut frame: Vec<u8>) -> Bytes {
    frame.pop();
    frame.into()
}

/// JSON over HTTP.
pub(super) fn respond(status: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Taken, and there will be no answer.
pub(super) fn accepted() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
