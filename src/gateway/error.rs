//! The errors of a call, as its caller needs to know them: whose fault, whether a retry may help,
//! and whether the tool may have run.

use std::borrow::Cow;
use std::time::Duration;

use super::caller_tokens::NoCallerToken;
pub use super::executed::Executed;
use super::unsent::Held;
use crate::backend::instance::arguments::Misfit;
use crate::common::limit_use::{LimitUse, millis_up};
use crate::events::explanation::LimitRule;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::framing::RawError;
use crate::protocol::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR};
use crate::protocol::mcp::headers::HeaderMismatch;
use crate::tenants::limits::{IN_FLIGHT, RateStatus, RefusedBy};
use crate::toolsets::error::ToolsetError;

/// The `Retry-After` where no better time is known.
pub(super) const RETRY_SOON: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A header that repeats an argument differs from it.
    #[error("{0}")]
    HeaderMismatch(#[from] HeaderMismatch),
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    InvalidArguments(#[from] RawError),
    /// The arguments do not fit the tool's schema.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    #[error("there is no server `{server}`; GET /v1/servers lists those you can use")]
    ServerNotFound { server: String },
    #[error(
        "server `{server}` has no tool `{tool}`; GET /v1/servers/{server}/tools lists those it has"
    )]
    ToolNotFound { server: String, tool: String },
    #[error(transparent)]
    Toolset(#[from] ToolsetError),
    #[error(
        "`{tool}` of server `{server}` is held back: its definition is not approved; it can be \
         used once an administrator approves it"
    )]
    ToolHeld { server: String, tool: String },
    /// The tenant is at its limit of something other than rates.
    #[error("{detail}")]
    TenantBusy {
        detail: Cow<'static, str>,
        limit: Box<LimitUse>,
        /// The tenant's rates; nothing was taken from them.
        rate_status: RateStatus,
    },
    #[error(
        "{} is used up: try again in {} ms",
        rate_status.in_words(scope), millis_up(*.retry_after)
    )]
    RateLimited {
        /// The pattern that the rate belongs to, or `tenant`.
        scope: String,
        retry_after: Duration,
        rate_status: RateStatus,
    },
    /// The tenant's calls kept ending a shared server.
    #[error(
        "your calls to this server are refused for now: they have ended its process again and \
         again; try again in {} s", .retry_after.as_secs() + 1
    )]
    TenantQuarantined { retry_after: Duration },
    /// The server's queue is full.
    #[error("too many calls are waiting for this server")]
    Overloaded,
    /// All tenants together have reached a budget of bytes.
    #[error("{0}")]
    NoRoom(String),
    /// `max_tenants` or `max_sessions` is reached.
    #[error("all processes that this server may have are in use (`max_tenants`, `max_sessions`)")]
    TooManyProcesses,
    #[error(
        "server `{server}` needs secrets of yours that are not set: `{}`; set each with PUT \
         /v1/servers/{server}/secrets/NAME, or ask the operator to (`trunkline secret set`)",
        .names.join("`, `")
    )]
    SecretMissing { server: String, names: Vec<String> },
    #[error(
        "server `{server}` wants the consent of a person of your tenant: open {url} in a browser, \
         and call again"
    )]
    ConnectRequired { server: String, url: String },
    #[error("server `{server}` was not called: {why}")]
    TokenRequired { server: String, why: NoCallerToken },
    #[error("the server is not running: {reason}")]
    ServerUnavailable {
        reason: String,
        /// The time until the next restart.
        retry_after: Duration,
        /// Whether it will not get better by itself, as when its program is missing.
        for_good: bool,
    },
    #[error("the gateway is shutting down")]
    ShuttingDown,
    /// The backend stopped before it received the call. No caller sees this error:
    /// `Gateway::dispatch` finds the backend that has replaced it, or knows of a shutdown.
    #[error("the backend was stopped")]
    BackendStopped,
    /// A JSON-RPC error of the server.
    #[error("the server answered with an error: {}", .error.message)]
    Backend {
        error: ErrorObject,
        /// Counts its bytes until the caller has taken them.
        held: Option<Held>,
    },
    #[error("the server ended before it answered: {reason}")]
    BackendExited { reason: String, executed: Executed },
    #[error("the server broke the protocol: {reason}")]
    BackendProtocol { reason: String, executed: Executed },
    #[error("the server answered with the HTTP status {status}")]
    BackendHttp {
        status: u16,
        executed: Executed,
        /// The pause that the server asked for, if any.
        retry_after: Option<Duration>,
    },
    #[error("the server's answer is larger than the gateway passes on (`max_response`)")]
    BackendTooLarge,
    /// No room for the answer, for this reason.
    #[error("the server answered, and the answer was dropped: {0}")]
    AnswerDropped(String),
    #[error("the tool asks for input that this caller cannot give: {reason}")]
    InputRequired { reason: Cow<'static, str> },
    /// Any of the others, after attempts or after the tenant's rates were charged.
    #[error("{last}{}", in_words(*attempts))]
    Attempted {
        attempts: u32,
        /// `Unknown` if any attempt may have run the tool.
        executed: Executed,
        rate_status: RateStatus,
        /// The error of the last attempt.
        last: Box<CallError>,
    },
    /// The call's record could not note that it begins, so it has not begun.
    #[error("the store cannot keep this call's record now: {0}")]
    NotRecorded(String),
    /// Another gateway has the call, or it was cancelled before it began.
    #[error("the call was cancelled before it began")]
    Withdrawn,
    #[error("an operator of the gateway cancelled the call")]
    Cancelled { executed: Executed },
    #[error("the call was not answered by its deadline")]
    DeadlineExceeded { executed: Executed },
}

impl CallError {
    /// Returns the stable code that callers match on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) | Self::HeaderMismatch(_) => "invalid_request",
            Self::InvalidArguments(_) | Self::Misfit(_) => "invalid_arguments",
            Self::ServerNotFound { .. } => "server_not_found",
            Self::ToolNotFound { .. } => "tool_not_found",
            Self::Toolset(error) => error.code(),
            Self::ToolHeld { .. } => "tool_held",
            Self::TenantBusy { .. } => "tenant_busy",
            Self::RateLimited { .. } => "rate_limited",
            Self::TenantQuarantined { .. } => "tenant_quarantined",
            Self::Overloaded | Self::NoRoom(_) | Self::TooManyProcesses => "overloaded",
            Self::SecretMissing { .. } => "secret_missing",
            Self::ConnectRequired { .. } => "connect_required",
            Self::TokenRequired { .. } => "token_required",
            Self::ServerUnavailable { .. } => "server_unavailable",
            Self::ShuttingDown | Self::BackendStopped => "shutting_down",
            Self::Backend { .. } => "backend_error",
            Self::BackendExited { .. } => "backend_exited",
            Self::BackendProtocol { .. } => "backend_protocol",
            Self::BackendHttp { .. } => "backend_http",
            Self::BackendTooLarge => "backend_too_large",
            Self::AnswerDropped(_) => "answer_dropped",
            Self::InputRequired { .. } => "input_required",
            Self::NotRecorded(_) => "store_unavailable",
            Self::Withdrawn | Self::Cancelled { .. } => "cancelled",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::Attempted { last, .. } => last.code(),
        }
    }

    pub fn executed(&self) -> Executed {
        match self {
            Self::BackendExited { executed, .. }
            | Self::BackendProtocol { executed, .. }
            | Self::BackendHttp { executed, .. }
            | Self::Attempted { executed, .. }
            | Self::Cancelled { executed }
            | Self::DeadlineExceeded { executed } => *executed,
            // With these codes the server refused the request itself.
            Self::Backend { error, .. } => match error.code {
                PARSE_ERROR | INVALID_REQUEST | METHOD_NOT_FOUND | INVALID_PARAMS => Executed::No,
                _ => Executed::Unknown,
            },
            Self::BackendTooLarge | Self::AnswerDropped(_) | Self::InputRequired { .. } => {
                Executed::Unknown
            }
            _ => Executed::No,
        }
    }

    /// Returns true if the same call may succeed later and has not run yet.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TenantBusy { .. }
            | Self::RateLimited { .. }
            | Self::TenantQuarantined { .. }
            | Self::Overloaded
            | Self::NoRoom(_)
            | Self::TooManyProcesses
            | Self::BackendStopped
            | Self::NotRecorded(_)
            | Self::ShuttingDown => true,
            Self::ServerUnavailable { for_good, .. } => !for_good,
            Self::BackendExited { executed, .. }
            | Self::BackendProtocol { executed, .. }
            | Self::DeadlineExceeded { executed } => *executed == Executed::No,
            Self::Attempted { executed, last, .. } => {
                *executed == Executed::No && last.is_retryable()
            }
            // Other statuses would be the same again.
            Self::BackendHttp { status: 429 | 503, executed, .. } => *executed == Executed::No,
            _ => false,
        }
    }

    /// Returns the pointer to the argument that does not fit.
    pub fn pointer(&self) -> Option<&str> {
        match self.last() {
            Self::Misfit(misfit) => Some(&misfit.pointer),
            _ => None,
        }
    }

    /// Returns the page at which a person of the tenant connects it to the server.
    pub fn connect_url(&self) -> Option<&str> {
        match self.last() {
            Self::ConnectRequired { url, .. } => Some(url),
            _ => None,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ServerUnavailable { for_good: true, .. } => None,
            Self::ServerUnavailable { retry_after, .. }
            | Self::RateLimited { retry_after, .. }
            | Self::TenantQuarantined { retry_after } => Some(*retry_after),
            Self::BackendHttp { status: 429 | 503, retry_after, .. } => *retry_after,
            Self::TenantBusy { .. }
            | Self::Overloaded
            | Self::NoRoom(_)
            | Self::TooManyProcesses
            | Self::BackendStopped
            | Self::NotRecorded(_)
            | Self::ShuttingDown => Some(RETRY_SOON),
            Self::Attempted { last, .. } => last.retry_after(),
            _ => None,
        }
    }

    /// Returns the error of a server that may be called again soon.
    pub fn unavailable(reason: String, retry_after: Duration) -> Self {
        Self::ServerUnavailable { reason, retry_after, for_good: false }
    }

    /// Returns the error of a tenant at a limit other than its calls.
    pub fn busy(limit: LimitUse, detail: impl Into<Cow<'static, str>>) -> Self {
        let (limit, rate_status) = (limit.into(), RateStatus::default());
        Self::TenantBusy { detail: detail.into(), limit, rate_status }
    }

    /// Returns the tenant's own limit that refused the call.
    pub fn limit(&self) -> Option<LimitUse> {
        match self.last() {
            Self::TenantBusy { limit, .. } => Some(LimitUse::clone(limit)),
            Self::RateLimited { scope, rate_status, .. } => rate_status.limit_use(scope),
            _ => None,
        }
    }

    /// Returns the room that a server's own error holds.
    pub fn held(&self) -> Option<Held> {
        match self.last() {
            Self::Backend { held, .. } => held.clone(),
            _ => None,
        }
    }

    pub fn rate_status(&self) -> Option<&RateStatus> {
        match self {
            Self::TenantBusy { rate_status, .. }
            | Self::RateLimited { rate_status, .. }
            | Self::Attempted { rate_status, .. } => Some(rate_status),
            _ => None,
        }
    }

    /// Adds the rates that were charged for the request, unless the error has rates of its own.
    pub fn with_rate_status(self, rate_status: RateStatus) -> Self {
        let has_own = self.rate_status().is_some_and(|own| !own.is_empty());
        if has_own || rate_status.is_empty() {
            return self;
        }
        let (attempts, executed) = (self.attempts(), self.executed());
        Self::Attempted { attempts, executed, rate_status, last: Box::new(self.into_last()) }
    }

    /// Returns true if the tenant's own limits refused the call.
    pub fn is_own_limit(&self) -> bool {
        matches!(
            self.last(),
            Self::TenantBusy { .. } | Self::RateLimited { .. } | Self::TenantQuarantined { .. }
        )
    }

    /// Returns the limit of the tenant that refused the call, if that is a rate or one of calls in
    /// flight.
    pub(super) fn refused_by(&self) -> Option<RefusedBy> {
        let (rule, scope) = match self.last() {
            Self::RateLimited { scope, .. } => (LimitRule::Rate, scope),
            Self::TenantBusy { limit, .. } if limit.name == IN_FLIGHT => {
                (LimitRule::MaxInFlight, limit.scope.as_ref()?)
            }
            _ => return None,
        };
        Some(RefusedBy { rule, scope: scope.clone() })
    }

    /// Returns the number of attempts; 0 if the call was refused before the first.
    pub fn attempts(&self) -> u32 {
        match self {
            Self::Attempted { attempts, .. } => *attempts,
            _ => 0,
        }
    }

    /// Returns the last attempt's error, without the history.
    pub fn into_last(self) -> Self {
        match self {
            Self::Attempted { last, .. } => *last,
            _ => self,
        }
    }

    /// Returns the last attempt's error.
    pub fn last(&self) -> &Self {
        match self {
            Self::Attempted { last, .. } => last,
            _ => self,
        }
    }

    pub fn protocol(reason: &str) -> Self {
        Self::BackendProtocol { reason: reason.to_owned(), executed: Executed::Unknown }
    }

    /// Returns the server's own error.
    pub fn backend(error: ErrorObject) -> Self {
        Self::Backend { error, held: None }
    }

    /// Reads the `error` member of an answer, for which room is held.
    pub(super) fn from_server_error(error: &[u8], held: Held) -> Self {
        match serde_json::from_slice(error) {
            Ok(error) => Self::Backend { error, held: Some(held) },
            Err(_) => Self::protocol("the JSON-RPC error has no code or no message"),
        }
    }
}

fn in_words(attempts: u32) -> String {
    if attempts <= 1 { String::new() } else { format!(" (after {attempts} attempts)") }
}

#[cfg(test)]
#[path = "tests/error.rs"]
mod tests;
