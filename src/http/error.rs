//! Errors of requests, and the one place where an error of the REST and admin APIs becomes an HTTP
//! status. Statuses of MCP are in `mcp/rpc.rs`.

use std::fmt::Display;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::response::IntoResponse;
use bytes::Bytes;

use super::connections::ShareUsed;
use super::headers::{ATTEMPTS, CALL_ID, OUTCOME, REPLAYED, add_rate_status, text_value};
use super::problem::{BackendProblem, Problem, RETRY_SOON_MS};
use super::unsent::hold;
use crate::calls::batch::ItemError;
use crate::calls::batch::outcome::Problem as BatchProblem;
use crate::calls::{Ran, Refusal};
use crate::common::ids::{CallId, TenantName};
use crate::common::limit_use::{LimitUse, millis_up};
use crate::gateway::CallError;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::store::StoreError;
use crate::toolsets::error::ToolsetError;

/// The reason why a request fails: an error of HTTP itself, of the call, or of the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("{detail}")]
    Unauthenticated {
        detail: &'static str,
        /// The value of `WWW-Authenticate`.
        challenge: String,
    },
    #[error("this key or token cannot be looked up now: the store does not answer")]
    AuthUnavailable,
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("{0}")]
    InvalidRequest(String),
    #[error("the body is larger than the limit of {limit} bytes")]
    PayloadTooLarge { limit: usize },
    #[error(
        "the body is compressed (`Content-Encoding`), and only plain bodies are taken: send it \
         without compression"
    )]
    ContentEncoding,
    #[error("there is no {0}")]
    NotFound(String),
    /// The API cannot change the file.
    #[error("tenant `{0}` is defined in the configuration file; change it there")]
    InConfigurationFile(TenantName),
    /// A call of a batch was not made, because of another call.
    #[error("{0}")]
    DependencyFailed(String),
    #[error(
        "the tool has run, and its result is not in the answer: the results of the batch are over \
         `[batch] max_results`, or your unsent bytes over `limits.unsent_per_tenant`"
    )]
    ResultTooLarge,
    /// A kept call has no answer to give back.
    #[error(transparent)]
    Kept(#[from] Refusal),
    #[error("{}", store_detail(.0))]
    Store(#[from] StoreError),
}

pub(crate) type HttpResult = Result<Response<Body>, HttpError>;

pub(super) fn status_of(error: &CallError) -> StatusCode {
    match error.last() {
        CallError::InvalidRequest(_)
        | CallError::InvalidArguments(_)
        | CallError::Misfit(_)
        | CallError::Toolset(ToolsetError::Arguments(_))
        | CallError::HeaderMismatch(_) => StatusCode::BAD_REQUEST,
        CallError::ServerNotFound { .. }
        | CallError::ToolNotFound { .. }
        | CallError::Toolset(_) => StatusCode::NOT_FOUND,
        CallError::ToolHeld { .. }
        | CallError::SecretMissing { .. }
        | CallError::ConnectRequired { .. }
        | CallError::Cancelled { .. }
        | CallError::Withdrawn => StatusCode::CONFLICT,
        CallError::TokenRequired { .. } => StatusCode::FORBIDDEN,
        CallError::InputRequired { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        CallError::Backend { .. }
        | CallError::BackendExited { .. }
        | CallError::BackendProtocol { .. }
        | CallError::BackendHttp { .. }
        | CallError::BackendTooLarge
        | CallError::AnswerDropped(_) => StatusCode::BAD_GATEWAY,
        CallError::TenantBusy { .. }
        | CallError::RateLimited { .. }
        | CallError::TenantQuarantined { .. } => StatusCode::TOO_MANY_REQUESTS,
        CallError::Overloaded
        | CallError::NoRoom(_)
        | CallError::TooManyProcesses
        | CallError::ServerUnavailable { .. }
        | CallError::BackendStopped
        | CallError::NotRecorded(_)
        | CallError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        CallError::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
        CallError::Attempted { .. } => unreachable!("the last error is not a history"),
    }
}

pub(super) fn status_of_refusal(refusal: &Refusal) -> StatusCode {
    match refusal {
        Refusal::InProgress(_) | Refusal::Cancelled { .. } | Refusal::NoCallbackSecret => {
            StatusCode::CONFLICT
        }
        Refusal::StillRunning(_) | Refusal::Undecided => StatusCode::GATEWAY_TIMEOUT,
        Refusal::Mismatch => StatusCode::UNPROCESSABLE_ENTITY,
        Refusal::ResultGone => StatusCode::GONE,
        Refusal::OutcomeUnknown | Refusal::NoRoomForAnswer { .. } => StatusCode::BAD_GATEWAY,
        Refusal::StoreUnavailable { .. } | Refusal::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::TooManyWaiters(_) | Refusal::TooManyRecords(_) | Refusal::TooManyAccepted(_) => {
            StatusCode::TOO_MANY_REQUESTS
        }
        Refusal::CallbackUrl(_) => StatusCode::BAD_REQUEST,
        Refusal::CallbackHost { .. } | Refusal::NoTokenLater { .. } => StatusCode::FORBIDDEN,
        Refusal::NoSuchCall => StatusCode::NOT_FOUND,
    }
}

impl HttpError {
    pub(super) fn invalid(error: impl Display) -> Self {
        Self::InvalidRequest(error.to_string())
    }

    /// Returns the error of the call, if it is one.
    pub(super) fn of_call(&self) -> Option<&CallError> {
        match self {
            Self::Call(error) => Some(error),
            _ => None,
        }
    }

    /// Returns the HTTP status, and the stable code that callers match on.
    pub(super) fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Call(error) => (status_of(error), error.code()),
            Self::Unauthenticated { .. } => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Self::AuthUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "auth_unavailable"),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Self::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            Self::PayloadTooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Self::ContentEncoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
            Self::DependencyFailed(_) => (StatusCode::FAILED_DEPENDENCY, "dependency_failed"),
            Self::ResultTooLarge => (StatusCode::BAD_GATEWAY, "result_too_large"),
            Self::InConfigurationFile(_) => (StatusCode::CONFLICT, "in_configuration_file"),
            Self::Kept(refusal) => (status_of_refusal(refusal), refusal.code()),
            Self::Store(error) => match error {
                StoreError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found"),
                StoreError::AlreadyExists(_) => (StatusCode::CONFLICT, "already_exists"),
                StoreError::TooManyKeys(_) => (StatusCode::CONFLICT, "too_many_keys"),
                StoreError::NotHeld { .. } => (StatusCode::CONFLICT, "definition_changed"),
                StoreError::TooManyRows(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
                StoreError::Unavailable(_) => {
                    (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
                }
                StoreError::InvalidUrl(_)
                | StoreError::NoStore(_)
                | StoreError::InvalidValue(_)
                | StoreError::Corrupt(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
            },
        }
    }
}

impl HttpError {
    /// Returns the problem of an error that is not a call's.
    fn problem(&self) -> Problem<'_> {
        let (status, code) = self.status_and_code();
        let executed = match self {
            Self::Store(_) if status.is_server_error() => "unknown",
            Self::ResultTooLarge => "yes",
            Self::Kept(refusal) => refusal.executed().as_str(),
            _ => "no",
        };
        let mut problem = Problem::new(status, code, self.to_string(), executed);
        if let Self::Kept(refusal) = self {
            problem.retryable = refusal.is_retryable();
            problem.retry_after_ms = problem.retryable.then_some(RETRY_SOON_MS);
            problem.limit = refusal.limit().cloned();
        }
        problem
    }
}

/// Describes an error of the store. A database's own words are for the log only.
fn store_detail(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable(_) => {
            "the store cannot be reached now; a change may or may not have been made".to_owned()
        }
        StoreError::InvalidUrl(_)
        | StoreError::NoStore(_)
        | StoreError::InvalidValue(_)
        | StoreError::Corrupt(_) => "the store failed; the gateway's log has the reason".to_owned(),
        error => error.to_string(),
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response<Body> {
        self.respond(None)
    }
}

impl HttpError {
    /// Responds, with a link to the explanation of a call if there is one.
    fn respond(self, call: Option<CallId>) -> Response<Body> {
        match &self {
            Self::Call(error) => return call_response(error, call),
            Self::Store(error @ StoreError::Unavailable(_)) => {
                tracing::warn!(%error, "the store could not be asked");
            }
            Self::Store(
                error @ (StoreError::InvalidUrl(_)
                | StoreError::InvalidValue(_)
                | StoreError::Corrupt(_)),
            ) => {
                tracing::error!(%error, "the store failed");
            }
            _ => {}
        }
        let mut response = self.problem().explained_by(call).into_response();
        if let Self::Kept(Refusal::OutcomeUnknown | Refusal::ResultGone) = &self {
            // The record says so, to every retry.
            response.headers_mut().insert(REPLAYED.clone(), HeaderValue::from_static("true"));
        }
        if let Self::Unauthenticated { challenge, .. } = self {
            let challenge = HeaderValue::from_str(&challenge).ok();
            let challenge = challenge.map(|challenge| (header::WWW_AUTHENTICATE, challenge));
            response.headers_mut().extend(challenge);
        }
        response
    }
}

impl From<ShareUsed> for HttpError {
    fn from(ShareUsed { held, max }: ShareUsed) -> Self {
        let detail = format!(
            "tenants may hold {max} connections like yours together, and your tenant holds the \
             most, {held}, with a request on each: wait until one has ended, or send more requests \
             on fewer connections (HTTP/2)"
        );
        CallError::busy(LimitUse::new("connections", max, held), detail).into()
    }
}

impl From<PathRejection> for HttpError {
    fn from(rejection: PathRejection) -> Self {
        Self::InvalidRequest(rejection.body_text())
    }
}

impl From<QueryRejection> for HttpError {
    fn from(rejection: QueryRejection) -> Self {
        let text = rejection.body_text();
        let detail = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
        Self::InvalidRequest(match detail.split_once(": ") {
            Some((parameter, mistake)) => format!("`{parameter}`: {mistake}"),
            None => detail.to_owned(),
        })
    }
}

/// Writes the error of a call of a batch.
pub(super) fn render_item_error(error: ItemError, call: Option<CallId>) -> BatchProblem {
    let error = match error {
        ItemError::NoRights(problem) => return problem,
        ItemError::Call(error) => error.into(),
        ItemError::Kept(refusal) => refusal.into(),
        ItemError::DependencyFailed(detail) => HttpError::DependencyFailed(detail),
        ItemError::ArgumentsTooLarge { limit } => HttpError::PayloadTooLarge { limit },
        ItemError::ResultTooLarge => HttpError::ResultTooLarge,
    };
    item_problem(&error, call)
}

/// Writes an error inside of a larger answer.
pub(super) fn item_problem(error: &HttpError, call: Option<CallId>) -> BatchProblem {
    let problem = match error {
        HttpError::Call(error) => call_problem(error),
        error => error.problem(),
    };
    let problem = problem.explained_by(call);
    let executed = match problem.executed {
        "yes" => Ran::Yes,
        "no" => Ran::No,
        _ => Ran::Unknown,
    };
    let body = serde_json::to_vec(&problem).expect("a problem is plain data").into();
    BatchProblem { status: problem.status, executed, body }
}

fn call_problem(error: &CallError) -> Problem<'_> {
    let executed = error.executed().as_str();
    let mut problem = Problem::new(status_of(error), error.code(), error.to_string(), executed);
    problem.retryable = error.is_retryable();
    problem.retry_after_ms = error.retry_after().map(millis_up);
    problem.limit = error.limit();
    problem.pointer = error.pointer();
    problem.connect_url = error.connect_url();
    if let CallError::Backend { error: ErrorObject { code, message, data }, .. } = error.last() {
        problem.backend = Some(BackendProblem { code: *code, message, data: data.as_deref() });
    }
    problem
}

/// Writes the error of a kept call: its status and body.
pub(super) fn render_error(error: &CallError, call: CallId) -> (u16, Bytes) {
    let problem = call_problem(error).explained_by(Some(call));
    let body = serde_json::to_vec(&problem).expect("a problem is plain data");
    (problem.status, body.into())
}

fn call_response(error: &CallError, call: Option<CallId>) -> Response<Body> {
    let mut response = call_problem(error).explained_by(call).into_response();
    hold(&mut response, error.held());
    let headers = response.headers_mut();
    headers.insert(ATTEMPTS.clone(), error.attempts().into());
    if let Some(rate_status) = error.rate_status() {
        add_rate_status(headers, rate_status);
    }
    response
}

/// Responds to a failed tool call, with the call's id.
pub(super) fn call_failed(error: HttpError, call: CallId) -> Response<Body> {
    let mut response = error.respond(Some(call));
    let headers = response.headers_mut();
    headers.insert(CALL_ID.clone(), text_value(call.to_string()));
    headers.entry(ATTEMPTS.clone()).or_insert(0.into());
    headers.insert(OUTCOME.clone(), HeaderValue::from_static("error"));
    response
}

pub(super) async fn no_such_path(uri: Uri) -> Response<Body> {
    nothing_at(
        &uri,
        "tools are called by POST /v1/servers/SERVER/tools/TOOL, MCP is spoken at /mcp",
    )
}

/// Says where the pages of operators are, if they have an address of their own.
pub(super) async fn served_to_operators(uri: Uri) -> Response<Body> {
    nothing_at(
        &uri,
        "this address serves callers; that path is served at the address that `ops_listen` names",
    )
}

/// Says what there is at the operators' own address.
pub(super) async fn no_such_path_for_operators(uri: Uri) -> Response<Body> {
    nothing_at(
        &uri,
        "this address serves operators: /dashboard, /admin/v1, /metrics and /readyz; callers have \
         that of `listen`",
    )
}

/// Says that there is nothing at an address for other replicas.
pub(super) async fn no_such_path_for_replicas(uri: Uri) -> Response<Body> {
    nothing_at(&uri, "this address serves other replicas only")
}

fn nothing_at(uri: &Uri, advice: &str) -> Response<Body> {
    let detail = format!("there is nothing at `{}`; {advice}", uri.path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail, "no").into_response()
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Response<Body> {
    method_not_allowed(format!("`{}` does not accept {method}", uri.path()))
}

/// Says how a tool is called to someone who asks for it by another method.
pub(super) async fn tool_needs_post(method: Method, uri: Uri) -> Response<Body> {
    method_not_allowed(format!(
        "`{}` does not accept {method}: tools are called by POST, with the arguments as the body",
        uri.path()
    ))
}

fn method_not_allowed(detail: String) -> Response<Body> {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Problem::new(status, "method_not_allowed", detail, "no").into_response()
}
