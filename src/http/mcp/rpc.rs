//! JSON-RPC responses, and the HTTP responses that carry them.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::common::ids::CallId;
use crate::common::limit_use::millis_up;
use crate::gateway::{CallError, Held};
use crate::http::error::status_of;
use crate::http::headers::{CALL_ID, add_rate_status, text_value};
use crate::http::problem::explain_link;
use crate::http::unsent::hold;
use crate::protocol::jsonrpc::{
    Frame, INVALID_PARAMS, INVALID_REQUEST, JsonText, METHOD_NOT_FOUND, Malformed, PARSE_ERROR,
};
use crate::protocol::mcp::headers::HeaderMismatch;
use crate::protocol::mcp::params::ParamsError;
use crate::protocol::mcp::{
    Era, HEADER_MISMATCH, MISSING_CLIENT_CAPABILITY, UNSUPPORTED_PROTOCOL_VERSION,
};
use crate::tenants::limits::{Admission, RateStatus};
use crate::toolsets::error::ToolsetError;

/// A JSON-RPC error for a client of either era.
#[derive(Debug, Default)]
pub(crate) struct RpcError {
    pub(super) code: i64,
    message: JsonText,
    data: Option<Box<RawValue>>,
    /// Set when the HTTP request itself is at fault: applies in both eras.
    status: Option<StatusCode>,
    /// Applies to modern clients only, where the code does not decide the status.
    modern_status: Option<StatusCode>,
    /// The call that failed, if it has an id.
    pub(super) call: Option<CallId>,
    /// The stable code of the error of a call, as in the REST API.
    pub(super) call_code: Option<&'static str>,
    /// True if a limit or a budget was reached, so that no server is at fault.
    pub(super) is_of_limit: bool,
    /// Sent as headers.
    rate_status: RateStatus,
    /// Counts the bytes of a server's error.
    held: Option<Held>,
}

/// Marks a response that is a JSON-RPC error.
#[derive(Clone, Copy)]
pub(super) struct RpcFailure(pub(super) i64);

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<JsonText>) -> Self {
        Self { code, message: message.into(), ..Self::default() }
    }

    pub(super) fn invalid_request(status: StatusCode, message: &str) -> Self {
        Self { status: Some(status), ..Self::new(INVALID_REQUEST, message) }
    }

    pub(super) fn invalid_params(message: impl Into<JsonText>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }

    pub(super) fn method_not_found(method: &str) -> Self {
        let method: String = method.chars().take(64).collect();
        Self::new(METHOD_NOT_FOUND, format!("there is no method {method:?} here"))
    }

    pub(super) fn with_data(self, data: &Value) -> Self {
        let data = serde_json::value::to_raw_value(data).expect("plain data");
        Self { data: Some(data), ..self }
    }

    pub(super) fn with_modern_status(self, status: StatusCode) -> Self {
        Self { modern_status: Some(status), ..self }
    }

    pub(super) fn has_rate_status(&self) -> bool {
        !self.rate_status.is_empty()
    }

    /// Returns the room that its bytes hold.
    pub(super) fn held(&self) -> Option<Held> {
        self.held.clone()
    }

    pub(super) fn with_rate_status(self, rate_status: RateStatus) -> Self {
        Self { rate_status, ..self }
    }

    /// Adds the rates that were charged for the request, unless the error has rates of its own.
    pub(super) fn charged(self, admission: Option<&mut Admission>) -> Self {
        match admission {
            Some(admission) if self.rate_status.is_empty() => {
                self.with_rate_status(admission.take_rate_status())
            }
            _ => self,
        }
    }

    /// Returns the message as JSON. Without a readable id, JSON-RPC requires `null`.
    pub(super) fn body(&self, id: Option<&RawValue>) -> Bytes {
        let data = self.data.as_deref();
        without_line_end(Frame::error(id, self.code, &self.message, data))
    }

    /// Returns the HTTP status. Modern clients read some kinds of errors from it. Legacy clients
    /// get 200 for every answered request: their SDKs would lose the error otherwise.
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

    pub(super) fn respond(&self, era: Era, id: Option<&RawValue>) -> Response<Body> {
        self.respond_with(self.status(era), id)
    }

    fn respond_with(&self, status: StatusCode, id: Option<&RawValue>) -> Response<Body> {
        let mut response = respond(status, self.body(id));
        hold(&mut response, self.held.clone());
        response.extensions_mut().insert(RpcFailure(self.code));
        let headers = response.headers_mut();
        add_rate_status(headers, &self.rate_status);
        headers.extend(self.call.map(|call| (CALL_ID.clone(), text_value(call.to_string()))));
        response
    }
}

/// Responds to a message that is no JSON-RPC request, so the HTTP status must tell the error.
impl IntoResponse for RpcError {
    fn into_response(self) -> Response<Body> {
        let of_code = u16::try_from(self.code).ok();
        let of_code = of_code.and_then(|code| StatusCode::from_u16(code).ok());
        self.respond_with(self.status.or(of_code).unwrap_or(StatusCode::BAD_REQUEST), None)
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
        let (code, message) = match malformed {
            Malformed::NotJson => (PARSE_ERROR, "the body is not valid JSON"),
            Malformed::Batch => (INVALID_REQUEST, "Batch requests not supported"),
            Malformed::Invalid { why, .. } => (INVALID_REQUEST, *why),
        };
        Self { status: Some(StatusCode::BAD_REQUEST), ..Self::new(code, message) }
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        Self::of_call(error, None)
    }
}

/// Describes an error of a call by the names that an MCP client uses, without advice about REST.
fn in_words(error: &CallError) -> String {
    match error {
        CallError::ToolNotFound { tool, .. }
        | CallError::Toolset(ToolsetError::NoTool { tool, .. }) => {
            format!("there is no tool `{tool}` here; tools/list lists those that you may call")
        }
        CallError::ServerNotFound { server } => format!("there is no server `{server}` here"),
        CallError::SecretMissing { server, names } => format!(
            "server `{server}` needs secrets of yours that are not set: `{}`; ask the operator to \
             set them (`trunkline secret set`)",
            names.join("`, `")
        ),
        other => other.to_string(),
    }
}

impl RpcError {
    /// Returns the error of a call, with a link to its explanation if there is one.
    pub(super) fn of_call(error: CallError, call: Option<CallId>) -> Self {
        let explain = call.and_then(|call| explain_link(status_of(&error), call));
        // These are of all attempts; the message is of the last.
        let (attempts, executed) = (error.attempts(), error.executed());
        let is_retryable = error.is_retryable();
        let rate_status = error.rate_status().cloned().unwrap_or_default();
        let error = match error.into_last() {
            // The server's own error reaches the client unchanged.
            CallError::Backend { error, held } => {
                return Self {
                    data: error.data,
                    rate_status,
                    held,
                    ..Self::new(error.code, error.message)
                };
            }
            error => error,
        };
        let is_of_limit = matches!(
            error,
            CallError::TenantBusy { .. }
                | CallError::RateLimited { .. }
                | CallError::NoRoom(_)
                | CallError::AnswerDropped(_)
        );
        let code = match &error {
            CallError::HeaderMismatch(_) => HEADER_MISMATCH,
            CallError::InvalidRequest(_) => INVALID_REQUEST,
            CallError::InvalidArguments(_)
            | CallError::Misfit(_)
            | CallError::ServerNotFound { .. }
            | CallError::ToolNotFound { .. }
            | CallError::Toolset(_) => INVALID_PARAMS,
            // The gateway's own codes are the statuses of the REST API: they lie outside the range
            // that JSON-RPC and MCP reserve.
            other => i64::from(status_of(other).as_u16()),
        };
        let mut data = json!({
            "code": error.code(),
            "retryable": is_retryable,
            "executed": executed.as_str(),
        });
        if let Some(link) = explain {
            data["explain"] = json!(link);
        }
        if attempts > 1 {
            data["attempts"] = json!(attempts);
        }
        if let Some(retry_after) = error.retry_after() {
            data["retryAfterMs"] = json!(millis_up(retry_after));
        }
        if let Some(url) = error.connect_url() {
            data["connectUrl"] = json!(url);
        }
        if let Some(pointer) = error.pointer() {
            data["pointer"] = json!(pointer);
        }
        if let Some(limit) = error.limit() {
            data["limit"] = json!(limit);
        }
        let call_code = Some(error.code());
        let error = Self::new(code, in_words(&error)).with_data(&data);
        Self { is_of_limit, call, call_code, ..error.with_rate_status(rate_status) }
    }
}

/// Writes the start of a successful response. The result and `}` must follow.
pub(super) fn result_start(id: &RawValue) -> Bytes {
    [r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","result":"#].concat().into()
}

/// Writes a successful response; `result` is JSON.
pub(super) fn result(id: &RawValue, result: &str) -> Bytes {
    // A string of exactly the right length becomes `Bytes` without a copy.
    [r#"{"jsonrpc":"2.0","id":"#, id.get(), r#","result":"#, result, "}"].concat().into()
}

/// Writes a notification; `params` is JSON.
pub(super) fn notification(method: &str, params: &str) -> Bytes {
    without_line_end(Frame::notification(method, params))
}

fn without_line_end(frame: Frame) -> Bytes {
    let mut frame = frame.into_bytes();
    frame.pop();
    frame.into()
}

pub(super) fn respond_result(id: &RawValue, json: &str) -> Response<Body> {
    respond(StatusCode::OK, result(id, json))
}

pub(super) fn respond(status: StatusCode, body: Bytes) -> Response<Body> {
    let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, content_type, Body::from(body)).into_response()
}
