//! Reads request bodies within their limits of size and time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::error::HttpError;
use crate::common::byte_budget::NoRoom;
use crate::gateway::{CallError, Caller, Executed, Held};
use crate::tenants::budgets::REQUEST_BYTES;

/// The longest time that a body may take to arrive, whatever the deadline.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The memory that a request takes beside its head and body while the body arrives: its stream, and
/// the task that waits for the body and will make the call. Its connection counts some of it, too.
const REQUEST_COST: usize = 12 * 1024;
/// The part of it that lasts as long as the call.
const CALL_COST: usize = 8 * 1024;
/// The first room for a body that comes in parts.
const CAPACITY_MIN: usize = 4 * 1024;
/// Bodies up to this length are in [`CALL_COST`].
const SHORT: usize = 4 * 1024;

/// Reads the body of a tenant's request. A body that arrives counts among the tenant's bytes, with
/// the head of its request. The body and its call go on counting as long as the permit is held.
pub(super) async fn read_for(
    caller: &Caller,
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    deadline: Instant,
) -> Result<(Bytes, Held), HttpError> {
    check_encoding(headers)?;
    let head: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let no_room = |full| no_room(full, caller);
    let mut held = caller.tenant.held.requests.take(REQUEST_COST + head).map_err(no_room)?;
    let with_room = |bytes| held.grow(bytes).map_err(no_room);
    let body = read_with(body, limit, deadline, with_room).await?;
    let len = if body.len() <= SHORT { 0 } else { body.len() };
    held.resize(CALL_COST + len).map_err(no_room)?;
    Ok((body, held.into()))
}

/// Refuses a body that is compressed.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), HttpError> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    match headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        true => Ok(()),
        false => Err(HttpError::ContentEncoding),
    }
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
                "the bodies of your requests that arrive, wait or run reach the limit of {max} \
                 bytes: wait until some are answered"
            )
            .into(),
            limit: caller.tenant.held.requests.limit_use(REQUEST_BYTES).into(),
            rate_status: caller.tenant.limits.rate_status(),
        },
        NoRoom::All { max } => CallError::NoRoom(format!(
            "the bodies of requests that arrive, wait or run here reach the limit of {max} bytes"
        )),
    };
    error.into()
}
