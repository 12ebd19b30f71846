//! The reasons why a kept call has no answer to give back.

use super::callback::send::InvalidTarget;
use super::outcome::Ran;
use crate::common::ids::CallId;
use crate::common::limit_use::LimitUse;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "the call with this `Idempotency-Key` still runs; retry later, or ask GET /v1/calls/{0}"
    )]
    InProgress(CallId),
    /// The request's deadline has ended the waiting, not the call.
    #[error(
        "the call was not answered by the deadline, and still runs; retry with the same \
         `Idempotency-Key`, or ask GET /v1/calls/{0}"
    )]
    StillRunning(CallId),
    /// The deadline came before the store had said whether the call is new.
    #[error(
        "the deadline passed while the call was recorded; it may run; retry with the same \
         `Idempotency-Key` and a longer deadline"
    )]
    Undecided,
    #[error(
        "this `Idempotency-Key` was used with other arguments; a call with other arguments needs a \
         key of its own"
    )]
    Mismatch,
    #[error(
        "the call has ended and its answer is kept, but there is no room to send it: {detail}; \
         then retry with the same `Idempotency-Key`, or ask by the id"
    )]
    NoRoomForAnswer { executed: Ran, detail: String },
    #[error("the call ran, but its answer is no longer kept (`[calls] max_bytes`)")]
    ResultGone,
    #[error(
        "nobody knows how the call ended: the gateway that ran it is gone; to run it again on \
         purpose, use a new key"
    )]
    OutcomeUnknown,
    #[error("the call was cancelled")]
    Cancelled { executed: Ran },
    #[error("the store cannot be reached now, and calls that are kept need it")]
    StoreUnavailable { executed: Ran },
    #[error("the gateway has too many calls that are kept under way")]
    Overloaded,
    #[error("too many requests wait for this call, or for your others; retry when they are fewer")]
    TooManyWaiters(LimitUse),
    #[error(
        "{} calls of yours are kept (`[calls] max_records`); no call is forgotten early, so wait \
         until the oldest have expired", .0.used
    )]
    TooManyRecords(LimitUse),
    #[error("too many of your asynchronous calls or batches wait; retry when some are over")]
    TooManyAccepted(LimitUse),
    #[error("`Trunkline-Callback` {0}")]
    CallbackUrl(InvalidTarget),
    #[error(
        "callbacks may not go to `{host}`: an operator allows that with `callback_hosts` of your \
         tenant"
    )]
    CallbackHost { host: String },
    #[error(
        "there is no secret to sign callbacks with: an operator makes one with \
         `trunkline callback-secret create`"
    )]
    NoCallbackSecret,
    #[error(
        "server `{server}` is called in the name of its caller, and a call that is answered later \
         has no token of its caller: call it without `Prefer: respond-async`"
    )]
    NoTokenLater { server: String },
    #[error("there is no call with this id")]
    NoSuchCall,
}

impl Refusal {
    /// Returns the stable code that callers match on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InProgress(_) => "in_progress",
            Self::StillRunning(_) | Self::Undecided => "deadline_exceeded",
            Self::Mismatch => "idempotency_mismatch",
            Self::NoRoomForAnswer { .. } => "answer_dropped",
            Self::ResultGone => "result_gone",
            Self::OutcomeUnknown => super::OUTCOME_UNKNOWN,
            Self::Cancelled { .. } => super::CANCELLED,
            Self::StoreUnavailable { .. } => "store_unavailable",
            Self::Overloaded => "overloaded",
            Self::TooManyWaiters(_) | Self::TooManyRecords(_) | Self::TooManyAccepted(_) => {
                "tenant_busy"
            }
            Self::CallbackUrl(_) => "invalid_request",
            Self::CallbackHost { .. } => "forbidden",
            Self::NoCallbackSecret => "secret_missing",
            Self::NoTokenLater { .. } => "token_required",
            Self::NoSuchCall => "not_found",
        }
    }

    pub fn executed(&self) -> Ran {
        match self {
            Self::ResultGone => Ran::Yes,
            Self::StillRunning(_) | Self::Undecided | Self::OutcomeUnknown => Ran::Unknown,
            Self::Cancelled { executed }
            | Self::StoreUnavailable { executed }
            | Self::NoRoomForAnswer { executed, .. } => *executed,
            _ => Ran::No,
        }
    }

    /// Returns true if the same request may succeed later. With the same key nothing runs twice.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Self::InProgress(_)
                | Self::StillRunning(_)
                | Self::Undecided
                | Self::StoreUnavailable { .. }
                | Self::NoRoomForAnswer { .. }
                | Self::Overloaded
                | Self::TooManyWaiters(_)
                | Self::TooManyRecords(_)
                | Self::TooManyAccepted(_)
        )
    }

    /// Returns the tenant's own limit that is reached.
    pub fn limit(&self) -> Option<&LimitUse> {
        match self {
            Self::TooManyWaiters(limit)
            | Self::TooManyRecords(limit)
            | Self::TooManyAccepted(limit) => Some(limit),
            _ => None,
        }
    }
}
