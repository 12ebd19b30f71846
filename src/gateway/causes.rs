//! What goes wrong below the gateway, as the caller of a tool needs to know it.

use super::error::RETRY_SOON;
use super::{CallError, Executed};
use crate::backend::NotReady;
use crate::backend::connection::in_flight::{End, Failure};
use crate::backend::queue::QueueError;
use crate::registry::NoBackend;
use crate::tenants::limits::Refusal;

impl From<NotReady> for CallError {
    fn from(not_ready: NotReady) -> Self {
        match not_ready {
            NotReady::Down { retry_after, reason } => {
                Self::ServerUnavailable { reason: reason.to_string(), retry_after }
            }
            NotReady::StillStarting => Self::DeadlineExceeded { executed: Executed::No },
            NotReady::Stopped => Self::ShuttingDown,
        }
    }
}

impl From<NoBackend> for CallError {
    fn from(no_process: NoBackend) -> Self {
        match no_process {
            NoBackend::NoSession => Self::InvalidRequest(
                "this server has a process for each MCP session: it can be used only in one that `initialize` opened"
                    .to_owned(),
            ),
            NoBackend::TooMany => Self::TooManyProcesses,
            NoBackend::SecretsMissing { server, names } => {
                Self::SecretMissing { server: server.to_string(), names }
            }
            NoBackend::Stopped => Self::ShuttingDown,
        }
    }
}

impl From<Refusal> for CallError {
    fn from(refusal: Refusal) -> Self {
        let detail = refusal.to_string();
        match refusal {
            Refusal::Busy { standing, .. } => Self::TenantBusy { detail: detail.into(), standing },
            Refusal::RateLimited { scope, retry_after, standing } => {
                Self::RateLimited { scope, retry_after, standing }
            }
        }
    }
}

impl From<QueueError> for CallError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Full => Self::Overloaded,
            QueueError::Expired => Self::DeadlineExceeded { executed: Executed::No },
        }
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ended { end: End::Stopped, written: false } => Self::ShuttingDown,
            Failure::Ended { end: End::Exited(reason), written } => {
                Self::BackendExited { reason, executed: Executed::if_written(written) }
            }
            Failure::Ended { end: End::Stopped, written } => Self::BackendExited {
                reason: "the gateway stopped it".to_owned(),
                executed: Executed::if_written(written),
            },
            Failure::Ended { end: End::Protocol(reason), written } => {
                Self::BackendProtocol { reason, executed: Executed::if_written(written) }
            }
            Failure::Expired { written } => {
                Self::DeadlineExceeded { executed: Executed::if_written(written) }
            }
            Failure::TooLarge => Self::BackendTooLarge,
            Failure::Busy => Self::ServerUnavailable {
                reason: "it does not read its input".to_owned(),
                retry_after: RETRY_SOON,
            },
            Failure::Mixup => Self::protocol("its answer could not be trusted"),
            Failure::Http { status, retry_after } => Self::BackendHttp {
                status,
                executed: Executed::by_status(status, retry_after),
                retry_after,
            },
            Failure::Unsendable(reason) => Self::InvalidRequest(reason),
            Failure::Unreached { reason, .. } => {
                Self::ServerUnavailable { reason: reason.into_owned(), retry_after: RETRY_SOON }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_not_read_is_not_executed_and_may_be_tried_on_another_copy() {
        let error = CallError::from(Failure::Busy);
        assert_eq!((error.code(), error.executed()), ("server_unavailable", Executed::No));
        assert!(error.is_retryable());
    }
}
