//! Unsent bytes: those of responses that their callers have not taken yet.
//!
//! ```text
//!   handler ──▶ response ──▶ count: takes room from the tenant's budget   this file
//!                  │         (an answer has its room since it arrived)
//!                  ▼
//!               body ──▶ pieces, which hyper and h2 hold until written    body
//!                  │
//!                  ▼
//!               a response or connection without progress is ended        progress, stuck
//! ```
//!
//! hyper takes one piece of a body before it asks h2 for capacity, and gives the whole piece to h2
//! as soon as there is capacity for one byte. h2's `max_send_buffer_size` does not bound that: it
//! only decides when the next piece is asked for. Over HTTP/1, hyper queues pieces until
//! `max_buf_size` is reached, and writes them without copying. So neither buffer needs a bound of
//! its own: a piece counts until it is dropped, which is when its last byte was written to the
//! socket, or when its stream is gone.

mod body;
mod progress;
mod stuck;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{Request, Response, Version, header};
use axum::response::IntoResponse;
use prometheus::IntCounter;

use self::body::UnsentBody;
pub(super) use self::progress::ConnectionProgress;
use self::progress::ResponseProgress;
pub(super) use self::stuck::StreamExecutor;
use super::error::HttpError;
use crate::common::byte_budget::{SMALL, TenantBytes};
use crate::gateway::{Held, RESPONSE_COST, no_room};
use crate::tenants::Tenant;
use crate::tenants::limits::RateStatus;

/// The room for responses of one listener.
#[derive(Clone)]
pub struct ListenerUnsent {
    /// Counts responses to callers without a valid key.
    pub(super) nobody: Arc<TenantBytes>,
    /// Counts responses to operators, and pages that load balancers and monitoring ask for.
    pub(super) operators: Arc<TenantBytes>,
    /// Counts responses that were ended because their callers do not take them.
    pub(super) ended: IntCounter,
}

/// Says whose unsent bytes the response to a request counts among, as soon as that is known.
#[derive(Clone, Default)]
pub(super) struct Account(Arc<OnceLock<Owner>>);

enum Owner {
    Tenant(Arc<TenantBytes>),
    Operator,
}

impl Account {
    /// Notes that the caller of a request belongs to a tenant.
    pub(super) fn set_tenant(parts: &Parts, tenant: &Tenant) {
        Self::set(parts, || Owner::Tenant(tenant.held.unsent.clone()));
    }

    /// Notes that a request is an operator's.
    pub(super) fn set_operator(parts: &Parts) {
        Self::set(parts, || Owner::Operator);
    }

    fn set(parts: &Parts, owner: impl FnOnce() -> Owner) {
        if let Some(Self(account)) = parts.extensions.get() {
            account.get_or_init(owner);
        }
    }
}

/// The response to one request, to be counted when it is made.
pub(super) struct ExpectedResponse {
    listener: ListenerUnsent,
    account: Account,
    connection: Arc<ConnectionProgress>,
    is_http2: bool,
}

/// Room that a response holds already.
#[derive(Clone)]
struct HeldRoom(Held);

/// Hands the room that an answer holds on to the response that carries it.
pub(super) fn hold(response: &mut Response<Body>, held: Option<Held>) {
    if let Some(held) = held {
        response.extensions_mut().insert(HeldRoom(held));
    }
}

/// Takes the room back that a response holds.
pub(super) fn take_held(response: &mut Response<Body>) -> Option<Held> {
    response.extensions_mut().remove::<HeldRoom>().map(|HeldRoom(held)| held)
}

impl ExpectedResponse {
    pub(super) fn to<B>(
        request: &mut Request<B>,
        listener: &ListenerUnsent,
        connection: &Arc<ConnectionProgress>,
    ) -> Self {
        let account = Account::default();
        request.extensions_mut().insert(account.clone());
        let (listener, connection) = (listener.clone(), connection.clone());
        Self { listener, account, connection, is_http2: request.version() == Version::HTTP_2 }
    }

    /// Counts a response until its last byte is written. Without room, a refusal takes its place.
    pub(super) fn count(self, mut response: Response<Body>) -> Response<UnsentBody> {
        let Self { listener, account, connection, is_http2 } = self;
        let (account, is_operator) = match account.0.get() {
            Some(Owner::Tenant(unsent)) => (unsent, false),
            Some(Owner::Operator) => (&listener.operators, true),
            None => (&listener.nobody, false),
        };
        let held = match take_held(&mut response) {
            Some(held) => Some(held),
            None => hold_body(account, is_operator, &mut response),
        };
        let progress = ResponseProgress::new(connection, held);
        if is_http2 {
            stuck::watch(&progress);
        }
        response.map(|body| UnsentBody::new(body, progress, account.clone(), is_http2))
    }
}

/// Takes room for a body of known length; the events of a stream are counted one by one. What has
/// no room is replaced by a refusal. A refusal without room loses its body, and so does the answer
/// to a health check: a response without a body holds nothing, whatever its caller does.
fn hold_body(
    account: &Arc<TenantBytes>,
    is_operator: bool,
    response: &mut Response<Body>,
) -> Option<Held> {
    let take = |response: &Response<Body>| {
        let len = response.body().size_hint().exact().unwrap_or(0);
        let size = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(RESPONSE_COST);
        let is_empty = len == 0;
        (!is_empty).then(|| account.take(size).map(Arc::new).map_err(|full| (full, size)))
    };
    let (full, size) = match take(response)? {
        Ok(held) => return Some(held),
        Err(refused) => refused,
    };
    if response.status().is_success() && !(is_operator && size <= SMALL) {
        *response = HttpError::from(no_room(full, account, RateStatus::default())).into_response();
        if let Some(Ok(held)) = take(response) {
            return Some(held);
        }
    }
    *response.body_mut() = Body::empty();
    for of_body in [header::CONTENT_LENGTH, header::CONTENT_TYPE] {
        response.headers_mut().remove(of_body);
    }
    None
}
