//! Reads request bodies within their limits of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
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
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, HttpError> {
    let busy = "too many request bodies arrive at once; wait until some are complete";
    let _reading = caller.tenant.read_permit().ok_or_else(|| CallError::TenantBusy {
        detail: busy.into(),
        rate_status: caller.tenant.limits.rate_status(),
    })?;
    read(headers, body, limit, deadline).await
}

/// Reads the body, at most `limit` bytes, by `deadline`.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, HttpError> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    // Refused before a byte of the body is read.
    if declared.is_some_and(|declared| declared > limit) {
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
