//! The room that an answer needs until its caller has taken it.
//!
//! The reader of a server's output never waits for room: the task that waits for the answer takes
//! the permit, and without room that call alone fails. The permit goes with the answer, through
//! every translation, until the connection has written its last byte (`http/unsent`).

use std::sync::Arc;

use super::CallError;
use crate::backend::connection::Answer;
use crate::common::byte_budget::{BytePermit, NoRoom, TenantBytes};
use crate::tenants::Tenant;
use crate::tenants::budgets::UNSENT_BYTES;
use crate::tenants::limits::RateStatus;

/// The memory that a response takes beside its body until it is sent: its stream, its task and its
/// head. So short answers, too, are bounded in number.
pub const RESPONSE_COST: usize = 4 * 1024;

/// Room that is held until all copies are dropped.
pub type Held = Arc<BytePermit>;

/// Refuses new work of a tenant whose answers are not taken.
pub fn check_room(tenant: &Tenant) -> Result<(), CallError> {
    match tenant.held.unsent.full() {
        None => Ok(()),
        Some(full) => Err(no_room(full, &tenant.held.unsent, tenant.limits.rate_status())),
    }
}

/// Takes room for a response that the gateway made, with a body of `len` bytes. Nothing was done
/// for it that cannot be done again.
pub fn hold_response(tenant: &Tenant, len: usize) -> Result<Held, CallError> {
    let held = tenant.held.unsent.take(len + RESPONSE_COST);
    held.map(Arc::new)
        .map_err(|full| no_room(full, &tenant.held.unsent, tenant.limits.rate_status()))
}

/// Takes room for a server's answer. An answer that goes into the store has other room until it is
/// there: answers that are not read do not keep it out.
pub(super) fn hold_answer(
    tenant: &Tenant,
    answer: &Answer,
    is_kept: bool,
) -> Result<Held, CallError> {
    let (Answer::Result(text) | Answer::Error(text)) = answer;
    let len = text.len() + RESPONSE_COST;
    let held = tenant.held.unsent.take(len).or_else(|full| match is_kept {
        true => tenant.held.keeping.take(len).map_err(|_| full),
        false => Err(full),
    });
    held.map(Arc::new).map_err(|full| CallError::AnswerDropped(in_words(full)))
}

/// Takes room for the response with a kept answer, which may have it since it arrived. Returns the
/// full bound in words if there is no room: the answer can be asked for again.
pub fn hold_kept(tenant: &Tenant, held: Option<&Held>, len: usize) -> Result<Held, String> {
    let unsent = &tenant.held.unsent;
    match held.filter(|held| held.is_in(unsent)) {
        Some(held) => Ok(held.clone()),
        None => unsent.take(len + RESPONSE_COST).map(Arc::new).map_err(in_words),
    }
}

/// Returns the refusal of work, or of a response, that finds no room.
pub fn no_room(full: NoRoom, unsent: &TenantBytes, rate_status: RateStatus) -> CallError {
    let detail = in_words(full);
    match full {
        NoRoom::Tenant { .. } => {
            let limit = unsent.limit_use(UNSENT_BYTES).into();
            CallError::TenantBusy { detail: detail.into(), limit, rate_status }
        }
        NoRoom::All { .. } => CallError::NoRoom(detail),
    }
}

fn in_words(full: NoRoom) -> String {
    match full {
        NoRoom::Tenant { max } => format!(
            "your unsent bytes, the answers that your callers have not read, reach the limit of \
             {max} bytes (`limits.unsent_per_tenant`): read them, or close their connections"
        ),
        NoRoom::All { max } => format!(
            "the gateway's unsent bytes, the answers that callers have not read, reach the limit \
             of {max} bytes (`limits.unsent`); callers that read nothing are disconnected"
        ),
    }
}
