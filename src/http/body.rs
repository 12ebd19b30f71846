//! Request bodies, read within limit and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::{Instant, timeout_at};

use crate::gateway::{CallError, Caller, Executed};

/// How long a body may take to arrive, whatever the deadline.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The whole body of a tenant's request, of which only so many are read at once.
pub(super) async fn read_of(
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, CallError> {
    let busy = "too many requests are being sent at once: wait until some are complete";
    let _reading = caller.tenant.read_permit().ok_or_else(|| CallError::TenantBusy {
        detail: busy.into(),
        rate_status: caller.tenant.limits.rate_status(),
    })?;
    read(headers, body, limit, deadline).await
}

/// The whole body, of at most `limit` bytes, by `deadline`.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, CallError> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    // Refused before a byte of it is read.
    if declared.is_some_and(|declared| declared > limit) {
        return Err(CallError::PayloadTooLarge { limit });
    }
    match timeout_at(deadline, Limited::new(body, limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(CallError::PayloadTooLarge { limit })
        }
        Ok(Err(_)) => Err(CallError::InvalidRequest("the body was cut off".to_owned())),
        Err(_) => Err(CallError::DeadlineExceeded { executed: Executed::No }),
    }
}
