//! Reads request bodies within their limits of size and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::HeaderMap;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::error::HttpError;
use crate::common::byte_budget::{BytePermit, NoRoom};
use crate::gateway::{CallError, Caller, Executed};
use crate::tenants::budgets::ARRIVING_BYTES;

/// The longest time that a body may take to arrive, whatever the deadline.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The memory that a request takes beside its head and body while the body arrives.
const REQUEST_COST: usize = 4 * 1024;
/// The first room for a body that comes in parts.
const CAPACITY_MIN: usize = 4 * 1024;

/// Reads the body of a tenant's request. Bodies that arrive count among the tenant's bytes, with
/// the heads of their requests.
pub(super) async fn read_for(
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<Bytes, HttpError> {
    read_held(caller, headers, body, limit, deadline).await.map(|(body, _)| body)
}

/// Reads like [`read_for`]. The body goes on counting as long as the permit is held.
pub(super) async fn read_held(
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<(Bytes, BytePermit), HttpError> {
    let head: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let held = caller.tenant.held.arriving.take(REQUEST_COST + head);
    let mut held = held.map_err(|full| no_room(full, caller))?;
    let with_room = |bytes| held.grow(bytes).map_err(|full| no_room(full, caller));
    let body = read_with(body, limit, deadline, with_room).await?;
    Ok((body, held))
}

/// Reads the body of a request that comes from no tenant: at most `limit` bytes, by `deadline`.
pub(super) async fn read(body: Body, limit: usize, deadline: Instant) -> Result<Bytes, HttpError> {
    read_with(body, limit, deadline, |_| Ok(())).await
}

/// Reads the body; `take_room` is asked before more of it is kept.
async fn read_with(
    body: Body,
    limit: usize,
    deadline: Instant,
    take_room: impl FnMut(usize) -> Result<(), HttpError>,
) -> Result<Bytes, HttpError> {
    // A body whose declared length is too large is refused before a byte of it is read.
    if body.size_hint().lower() > limit as u64 {
        return Err(HttpError::PayloadTooLarge { limit });
    }
    let read = timeout_at(deadline, read_parts(body, limit, take_room)).await;
    read.unwrap_or_else(|_| Err(CallError::DeadlineExceeded { executed: Executed::No }.into()))
}

/// Copies the parts of a body together as they come. A part may be one byte and keep a whole read
/// buffer of the connection alive, so none is kept.
async fn read_parts(
    mut body: Body,
    limit: usize,
    mut take_room: impl FnMut(usize) -> Result<(), HttpError>,
) -> Result<Bytes, HttpError> {
    let mut whole: Vec<u8> = vec![];
    while let Some(frame) = body.frame().await {
        let cut_off = |_| HttpError::InvalidRequest("the body was cut off".to_owned());
        let Ok(part) = frame.map_err(cut_off)?.into_data() else { continue };
        let len = whole.len() + part.len();
        if len > limit {
            return Err(HttpError::PayloadTooLarge { limit });
        }
        if whole.is_empty() && body.is_end_stream() {
            // The usual case: the body came in one part.
            return Ok(part);
        }
        if len > whole.capacity() {
            let capacity = len.next_power_of_two().max(CAPACITY_MIN);
            take_room(capacity - whole.capacity())?;
            whole.reserve_exact(capacity - whole.len());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}

fn no_room(full: NoRoom, caller: &Caller) -> HttpError {
    let error = match full {
        NoRoom::Tenant { max } => CallError::TenantBusy {
            detail: format!(
                "your request bodies that are still arriving reach the limit of {max} bytes: wait \
                 until some are complete"
            )
            .into(),
            limit: caller.tenant.held.arriving.limit_use(ARRIVING_BYTES).into(),
            rate_status: caller.tenant.limits.rate_status(),
        },
        NoRoom::All { max } => CallError::NoRoom(format!(
            "the request bodies that are still arriving here reach the limit of {max} bytes"
        )),
    };
    error.into()
}
