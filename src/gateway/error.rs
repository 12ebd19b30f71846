//! Everything that can go wrong with a call, as its caller needs to know it: whose fault it is, whether
//! to try again, and whether the tool may have run.

use std::borrow::Cow;
use std::time::Duration;

use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::jsonrpc::raw::RawError;
use crate::protocol::jsonrpc::{INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR};
use crate::protocol::mcp::headers::HeaderMismatch;
use crate::tenants::limits::RateStatus;

/// Asked to wait this long when it cannot be known better.
pub(super) const RETRY_SOON: Duration = Duration::from_secs(1);

/// Whether the tool has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// The server never saw the call, or refused it.
    No,
    /// It may have.
    Unknown,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Headers that repeat the arguments say something else.
    #[error("{0}")]
    HeaderMismatch(#[from] HeaderMismatch),
    /// The request around the arguments is wrong.
    #[error("{0}")]
    InvalidRequest(String),
    /// The arguments are wrong.
    #[error("{0}")]
    InvalidArguments(#[from] RawError),
    /// Nobody says who calls, or nobody that is known.
    #[error("{detail}")]
    Unauthenticated {
        /// What is missing or wrong.
        detail: &'static str,
        /// How to say who calls: the value of `WWW-Authenticate`.
        challenge: String,
    },
    /// Who calls cannot be found out now.
    #[error("this key or token is not known yet, and it cannot be looked up at the moment")]
    AuthUnavailable,
    /// Whoever calls must not.
    #[error("{0}")]
    Forbidden(&'static str),
    /// No such server.
    #[error("there is no server `{server}`; GET /v1/servers lists those you can use")]
    ServerNotFound {
        /// As asked for.
        server: String,
    },
    /// No such tool.
    #[error(
        "server `{server}` has no tool `{tool}`; GET /v1/servers/{server}/tools lists those it has"
    )]
    ToolNotFound {
        /// As asked for.
        server: String,
        /// As asked for.
        tool: String,
    },
    /// The tool is not what was approved.
    #[error(
        "the tool `{tool}` of server `{server}` is held back: its definition is not one that was approved; \
         it cannot be called until an administrator approves it"
    )]
    ToolHeld {
        /// Its server.
        server: String,
        /// Its name.
        tool: String,
    },
    /// The body is over the limit.
    #[error("the body is larger than the {limit} bytes that are accepted")]
    PayloadTooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The tenant has as much as it may have.
    #[error("{detail}")]
    TenantBusy {
        /// Of what.
        detail: Cow<'static, str>,
        /// Its rates, of which nothing was taken.
        rate_status: RateStatus,
    },
    /// The tenant has made as many calls as it may for now.
    #[error("the rate for `{scope}` is used up: try again in {} ms", .retry_after.as_millis() + 1)]
    RateLimited {
        /// What the rate is for: a pattern, or `tenant`.
        scope: String,
        /// When there is room for one again.
        retry_after: Duration,
        /// All its rates.
        rate_status: RateStatus,
    },
    /// Too many calls wait.
    #[error("too many calls are waiting for this server")]
    Overloaded,
    /// As many processes of a server run as may.
    #[error(
        "as many processes of this server are in use as it may have (`max_sessions`, `max_tenants`)"
    )]
    TooManyProcesses,
    /// The tenant has not stored what the server needs.
    #[error(
        "server `{server}` needs secrets of yours that are not set: `{}`; set each with PUT \
         /v1/servers/{server}/secrets/NAME, or ask the operator to (`trunkline secret set`)",
        .names.join("`, `")
    )]
    SecretMissing {
        /// The server.
        server: String,
        /// Their names.
        names: Vec<String>,
    },
    /// The server is down.
    #[error("the server is not running: {reason}")]
    ServerUnavailable {
        /// Why.
        reason: String,
        /// When it will be tried again.
        retry_after: Duration,
    },
    /// The gateway is going away.
    #[error("the gateway is shutting down")]
    ShuttingDown,
    /// The server answered with a JSON-RPC error.
    #[error("the server answered with an error: {}", .0.message)]
    Backend(ErrorObject),
    /// The server ended.
    #[error("the server ended before it answered: {reason}")]
    BackendExited {
        /// How.
        reason: String,
        /// Whether it may have run the tool.
        executed: Executed,
    },
    /// The server's answer makes no sense.
    #[error("the server broke the protocol: {reason}")]
    BackendProtocol {
        /// How.
        reason: String,
        /// Whether it may have run the tool.
        executed: Executed,
    },
    /// The server answered with an HTTP status.
    #[error("the server answered with the HTTP status {status}")]
    BackendHttp {
        /// Which.
        status: u16,
        /// Whether it may have run the tool.
        executed: Executed,
        /// When to come back, if it said.
        retry_after: Option<Duration>,
    },
    /// The answer is over the limit.
    #[error("the server's answer is larger than the gateway passes on (`max_response`)")]
    BackendTooLarge,
    /// The tool asks back, and this caller cannot answer.
    #[error("the tool asks for input that this caller cannot give")]
    InputRequired,
    /// It was taken from the tenant's rates, or tried.
    #[error("{last}{}", in_words(*attempts))]
    Attempted {
        /// How often it was tried.
        attempts: u32,
        /// Whether any of the attempts may have run the tool.
        executed: Executed,
        /// The tenant's rates.
        rate_status: RateStatus,
        /// Why it failed the last time.
        last: Box<CallError>,
    },
    /// Too late.
    #[error("the call was not answered by its deadline")]
    DeadlineExceeded {
        /// Whether the server may have run the tool.
        executed: Executed,
    },
}

impl CallError {
    /// The code that callers can rely on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) | Self::HeaderMismatch(_) => "invalid_request",
            Self::InvalidArguments(_) => "invalid_arguments",
            Self::Unauthenticated { .. } => "unauthenticated",
            Self::AuthUnavailable => "auth_unavailable",
            Self::Forbidden(_) => "forbidden",
            Self::ServerNotFound { .. } => "server_not_found",
            Self::ToolNotFound { .. } => "tool_not_found",
            Self::ToolHeld { .. } => "tool_held",
            Self::PayloadTooLarge { .. } => "payload_too_large",
            Self::TenantBusy { .. } => "tenant_busy",
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded | Self::TooManyProcesses => "overloaded",
            Self::SecretMissing { .. } => "secret_missing",
            Self::ServerUnavailable { .. } => "server_unavailable",
            Self::ShuttingDown => "shutting_down",
            Self::Backend(_) => "backend_error",
            Self::BackendExited { .. } => "backend_exited",
            Self::BackendProtocol { .. } => "backend_protocol",
            Self::BackendHttp { .. } => "backend_http",
            Self::BackendTooLarge => "backend_too_large",
            Self::InputRequired => "input_required",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::Attempted { last, .. } => last.code(),
        }
    }

    /// Whether the tool has run.
    pub fn executed(&self) -> Executed {
        match self {
            Self::BackendExited { executed, .. }
            | Self::BackendProtocol { executed, .. }
            | Self::BackendHttp { executed, .. }
            | Self::Attempted { executed, .. }
            | Self::DeadlineExceeded { executed } => *executed,
            // These codes say that the request itself was refused.
            Self::Backend(error) => match error.code {
                PARSE_ERROR | INVALID_REQUEST | METHOD_NOT_FOUND | INVALID_PARAMS => Executed::No,
                _ => Executed::Unknown,
            },
            Self::BackendTooLarge | Self::InputRequired => Executed::Unknown,
            _ => Executed::No,
        }
    }

    /// Whether the same call may succeed later, and cannot do harm twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::AuthUnavailable
            | Self::TenantBusy { .. }
            | Self::RateLimited { .. }
            | Self::Overloaded
            | Self::TooManyProcesses
            | Self::ServerUnavailable { .. }
            | Self::ShuttingDown => true,
            Self::BackendExited { executed, .. }
            | Self::BackendProtocol { executed, .. }
            | Self::DeadlineExceeded { executed } => *executed == Executed::No,
            Self::Attempted { executed, last, .. } => {
                *executed == Executed::No && last.is_retryable()
            }
            // Other refusals would be the same again.
            Self::BackendHttp { status: 429 | 503, executed, .. } => *executed == Executed::No,
            _ => false,
        }
    }

    /// When to try again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::ServerUnavailable { retry_after, .. } | Self::RateLimited { retry_after, .. } => {
                Some(*retry_after)
            }
            Self::BackendHttp { status: 429 | 503, retry_after, .. } => *retry_after,
            Self::AuthUnavailable
            | Self::TenantBusy { .. }
            | Self::Overloaded
            | Self::TooManyProcesses
            | Self::ShuttingDown => Some(RETRY_SOON),
            Self::Attempted { last, .. } => last.retry_after(),
            _ => None,
        }
    }

    /// The tenant has as much as it may have of something else than calls.
    pub fn busy(detail: &'static str) -> Self {
        Self::TenantBusy { detail: Cow::Borrowed(detail), rate_status: RateStatus::default() }
    }

    /// Where the tenant stands with its rates, if that is known.
    pub fn rate_status(&self) -> Option<&RateStatus> {
        match self {
            Self::TenantBusy { rate_status, .. }
            | Self::RateLimited { rate_status, .. }
            | Self::Attempted { rate_status, .. } => Some(rate_status),
            _ => None,
        }
    }

    /// Whether the tenant's own limits refused the call, which has cost nobody anything.
    pub fn is_own_limit(&self) -> bool {
        matches!(self.last(), Self::TenantBusy { .. } | Self::RateLimited { .. })
    }

    /// How many attempts there were; none at what was refused before.
    pub fn attempts(&self) -> u32 {
        match self {
            Self::Attempted { attempts, .. } => *attempts,
            _ => 0,
        }
    }

    /// Why it failed the last time, to be taken apart. It does not know of the attempts before.
    pub fn into_last(self) -> Self {
        match self {
            Self::Attempted { last, .. } => *last,
            _ => self,
        }
    }

    /// Why it failed the last time.
    pub fn last(&self) -> &Self {
        match self {
            Self::Attempted { last, .. } => last,
            _ => self,
        }
    }

    /// The server's answer makes no sense.
    pub fn protocol(reason: &str) -> Self {
        Self::BackendProtocol { reason: reason.to_owned(), executed: Executed::Unknown }
    }

    /// Reads the `error` member of an answer.
    pub(super) fn from_server_error(error: &[u8]) -> Self {
        match serde_json::from_slice(error) {
            Ok(error) => Self::Backend(error),
            Err(_) => Self::protocol("its error has no code or message"),
        }
    }
}

fn in_words(attempts: u32) -> String {
    if attempts <= 1 { String::new() } else { format!(" (after {attempts} attempts)") }
}

impl Executed {
    /// As shown to callers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }

    pub(super) fn if_written(written: bool) -> Self {
        if written { Self::Unknown } else { Self::No }
    }

    /// What an HTTP status says about it. A status of the 400s is a refusal, except those that a server or a
    /// proxy gives in the midst of the work, and a redirect sends the request elsewhere, except the one that says
    /// where the outcome is; "unavailable" is a refusal when it says until when. All others say nothing: proxies
    /// make them up when a server behind them does not answer.
    pub(super) fn by_status(status: u16, retry_after: Option<Duration>) -> Self {
        match status {
            303 | 408 | 409 | 499 => Self::Unknown,
            300..=499 => Self::No,
            503 if retry_after.is_some() => Self::No,
            _ => Self::Unknown,
        }
    }
}
