//! Subscriptions at a legacy server: a request for each resource.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::leader::Leader;
use super::tenant_rotation::TenantRotation;
use super::{CHANGE_PAUSE, SUBSCRIBE_TIMEOUT, read};
use crate::common::ids::TenantId;
use crate::protocol::jsonrpc::envelope::ErrorObject;
use crate::protocol::mcp::method;

/// Requests that wait for a slot or an answer at once, and how many of them may be unsubscribes.
const REQUESTS_MAX: usize = 16;
pub(super) const UNSUBSCRIBES_MAX: usize = 4;

/// A resource at the server, and the tenant whose calls its requests are.
struct Known {
    tenant: TenantId,
    state: LegacyState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LegacyState {
    /// A request waits for a slot or an answer.
    Asked,
    Subscribed,
}

/// A request that has ended.
struct Asked {
    uri: String,
    tenant: TenantId,
    subscribes: bool,
    /// `None` if the request was not sent, because nobody watches the resource any more.
    answer: Option<Result<(), ErrorObject>>,
}

/// Subscribes to each resource with a request of its own, many at once. A resource without an
/// answer delays no other, and many resources of one tenant delay that tenant only.
pub(super) async fn subscribe_legacy(leader: &Leader<'_>) {
    let Leader { changes, ready, .. } = *leader;
    let ask = |uri: String, tenant: TenantId, subscribes: bool| async move {
        let _slot = tokio::select! {
            slot = leader.slot(&tenant) => slot,
            () = changes.unwatched(&uri), if subscribes => {
                return Asked { uri, tenant, subscribes, answer: None };
            }
        };
        let method = if subscribes {
            ready.connection.in_flight.note_tenant(&tenant);
            method::RESOURCES_SUBSCRIBE
        } else {
            method::RESOURCES_UNSUBSCRIBE
        };
        let request = |id| ready.dialect.about_resource(id, method, &uri);
        let answer = ready.connection.request(Instant::now() + SUBSCRIBE_TIMEOUT, request).await;
        Asked { uri, tenant, subscribes, answer: Some(read(answer)) }
    };
    let mut watched_changed = changes.watched_changed();
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    let mut asked = FuturesUnordered::new();
    let mut rotation = TenantRotation::default();
    let mut unsubscribing = 0;
    // Computed anew when the watched resources have changed, and not for each answer.
    let (mut left, mut waiting) = (vec![], BTreeMap::new());
    let mut compute_at = Some(Instant::now());
    loop {
        if compute_at.take_if(|at| *at <= Instant::now()).is_some() {
            let watched = changes.watched();
            let is_left = |(uri, known): &(&String, &Known)| {
                known.state == LegacyState::Subscribed && !watched.contains(*uri)
            };
            left = known.iter().filter(is_left).map(|(uri, _)| uri.clone()).collect();
            waiting = changes.unanswered();
            for uris in waiting.values_mut() {
                uris.retain(|uri| match known.get(uri).map(|known| known.state) {
                    Some(LegacyState::Subscribed) => {
                        changes.record_answer(uri, Ok(()));
                        false
                    }
                    Some(LegacyState::Asked) => false,
                    None => true,
                });
            }
        }
        while unsubscribing < UNSUBSCRIBES_MAX
            && let Some(uri) = left.pop()
        {
            if !changes.is_watched(&uri)
                && let Some(known) = known.get_mut(&uri)
            {
                known.state = LegacyState::Asked;
                asked.push(ask(uri, known.tenant.clone(), false));
                unsubscribing += 1;
            }
        }
        while asked.len() < REQUESTS_MAX
            && let Some((tenant, uri)) = rotation.next(&mut waiting)
        {
            let state = LegacyState::Asked;
            known.insert(uri.clone(), Known { tenant: tenant.clone(), state });
            asked.push(ask(uri, tenant, true));
        }
        tokio::select! {
            Some(Asked { uri, tenant, subscribes, answer }) = asked.next() => {
                if subscribes {
                    rotation.end(&tenant);
                } else {
                    unsubscribing -= 1;
                }
                let is_watched = changes.is_watched(&uri);
                if subscribes && answer.as_ref().is_some_and(Result::is_ok) {
                    let state = LegacyState::Subscribed;
                    known.insert(uri.clone(), Known { tenant, state });
                    if !is_watched {
                        left.push(uri.clone());
                    }
                } else {
                    known.remove(&uri);
                }
                match answer.filter(|_| subscribes) {
                    Some(answer) => changes.record_answer(&uri, answer),
                    // Somebody has begun to watch it again.
                    None if is_watched => compute_at = Some(Instant::now()),
                    None => {}
                }
            }
            // The sender lives as long as the backend.
            _ = watched_changed.changed() => {
                compute_at.get_or_insert_with(|| Instant::now() + CHANGE_PAUSE);
            }
            () = sleep_until(compute_at.unwrap_or_else(Instant::now)), if compute_at.is_some() => {}
        }
    }
}
