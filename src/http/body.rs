//! Reads request bodies within their limits of size and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use super::error::HttpError;
use crate::gateway::{CallError, Caller, Executed};

/// The longest time that a body may take to arrive, whatever the deadline.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the body of a tenant's request. A tenant may send only so many bodies at once.
pub(super) async fn read_for(
    caller: &Caller,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, HttpError> {
    let _reading = caller.tenant.read_permit().ok_or_else(|| CallError::TenantBusy {
        detail: "too many request bodies arrive at once; wait until some are complete".into(),
        rate_status: caller.tenant.limits.rate_status(),
    })?;
    read(body, limit, deadline).await
}

/// Reads the body, at most `limit` bytes, by `deadline`.
pub(super) async fn read(body: Body, limit: usize, deadline: Instant) -> Result<Bytes, HttpError> {
    // A body whose declared length is too large is refused before a byte of it is read.
    if body.size_hint().lower() > limit as u64 {
        return Err(HttpError::PayloadTooLarge { limit });
    }
    match timeout_at(deadline, Limited::new(body, limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(HttpError::PayloadTooLarge { limit })
        }
        Ok(Err(_)) => Err(HttpError::InvalidRequest("the body was cut off".to_owned())),
        Err(_) => Err(CallError::DeadlineExceeded { executed: Executed::No }.into()),
    }
}
