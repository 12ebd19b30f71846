//! Makes errors of calls of those of the parts that a call passes.

use super::error::{CallError, Executed, RETRY_SOON};
use super::extension::unknown_task;
use crate::backend::NotReady;
use crate::backend::connection::{CloseReason, RequestError};
use crate::backend::queue::QueueError;
use crate::common::limit_use::LimitUse;
use crate::registry::NoBackend;
use crate::tenants::limits::{IN_FLIGHT, LimitRefusal};

impl From<NotReady> for CallError {
    fn from(not_ready: NotReady) -> Self {
        match not_ready {
            NotReady::Down { retry_after, reason, for_good } => {
                Self::ServerUnavailable { reason: reason.to_string(), retry_after, for_good }
            }
            NotReady::NotConnected { server, url } => {
                Self::ConnectRequired { server: server.to_string(), url }
            }
            NotReady::StillStarting => Self::DeadlineExceeded { executed: Executed::No },
            NotReady::Gone => unknown_task(),
            NotReady::Stopped => Self::BackendStopped,
        }
    }
}

impl From<NoBackend> for CallError {
    fn from(no_backend: NoBackend) -> Self {
        match no_backend {
            NoBackend::NoSession => Self::InvalidRequest(
                "this server runs one process per MCP session; call it over /mcp, in a session \
                 that `initialize` opened, or ask its operator for `sessionless = true`"
                    .to_owned(),
            ),
            NoBackend::TenantFull(sessions) => Self::busy(
                sessions,
                "your tenant has as many sessions at this server as it may, and all are in use; \
                 end one of them (DELETE)",
            ),
            NoBackend::TooMany => Self::TooManyProcesses,
            NoBackend::SecretsMissing { server, names } => {
                Self::SecretMissing { server: server.to_string(), names }
            }
            NoBackend::NotConnected { server, url } => {
                Self::ConnectRequired { server: server.to_string(), url }
            }
            NoBackend::Stopped => Self::ShuttingDown,
        }
    }
}

impl From<LimitRefusal> for CallError {
    fn from(refusal: LimitRefusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            LimitRefusal::Busy { scope, limit, rate_status } => {
                let limit = LimitUse::reached(IN_FLIGHT, limit as usize).of(scope).into();
                Self::TenantBusy { detail: detail.into(), limit, rate_status }
            }
            LimitRefusal::RateLimited { scope, retry_after, rate_status } => {
                Self::RateLimited { scope, retry_after, rate_status }
            }
        }
    }
}

impl From<QueueError> for CallError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Full => Self::Overloaded,
            QueueError::Cancelled => Self::Cancelled { executed: Executed::No },
            QueueError::Expired => Self::DeadlineExceeded { executed: Executed::No },
        }
    }
}

impl From<RequestError> for CallError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Closed { reason: CloseReason::Stopped, written: false } => {
                Self::BackendStopped
            }
            RequestError::Closed { reason: CloseReason::Protocol(reason), written } => {
                Self::BackendProtocol { reason, executed: Executed::if_written(written) }
            }
            RequestError::Closed { reason, written } => Self::BackendExited {
                reason: reason.to_string(),
                executed: Executed::if_written(written),
            },
            RequestError::Expired { written } => {
                Self::DeadlineExceeded { executed: Executed::if_written(written) }
            }
            RequestError::Cancelled { written } => {
                Self::Cancelled { executed: Executed::if_written(written) }
            }
            RequestError::TooLarge => Self::BackendTooLarge,
            RequestError::Busy => {
                Self::unavailable("the server does not read its input".to_owned(), RETRY_SOON)
            }
            RequestError::IdentityMismatch => Self::protocol("the answer belonged to another call"),
            RequestError::Http { status, retry_after } => Self::BackendHttp {
                status,
                executed: Executed::by_status(status, retry_after),
                retry_after,
            },
            RequestError::NotConnected { server, url } => Self::ConnectRequired { server, url },
            RequestError::Unsendable(reason) => Self::InvalidRequest(reason),
            RequestError::Unreached { reason, .. } => {
                Self::unavailable(reason.into_owned(), RETRY_SOON)
            }
        }
    }
}
