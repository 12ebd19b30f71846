//! Subscriptions to the resources of a modern server.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use futures_util::future::poll_immediate;
use serde_json::json;

use super::leader::Leader;
use super::listen_request::{ListenError, ListenRequest};
use super::listening::{Listening, Part};
use super::retry::{Backoff, FailedResources};
use super::{error, no_answer, wait_for_change};
use crate::backend::Ready;
use crate::backend::changes::update::Update;
use crate::backend::changes::{Changes, WatchChanges};
use crate::backend::queue::SlotPermit;
use crate::common::ids::TenantId;
use crate::protocol::jsonrpc::INTERNAL_ERROR;

/// So many resources cost a tenant as much as one call.
const RESOURCES_PER_CALL: usize = 10;

/// Resources by the tenant that waits for them.
type Waiting = BTreeMap<TenantId, BTreeSet<String>>;

/// Listens to the watched resources. Added ones share a request, if the queue admits them together.
/// If the server refuses it, one of them is the reason: they are then requested one by one, tenants
/// taking turns.
pub(super) async fn listen_modern(leader: &Leader<'_>) {
    let changes = leader.changes;
    let mut watched_changed = changes.watched_changed();
    let mut modern = Modern {
        leader,
        listening: Listening::default(),
        waiting: Waiting::new(),
        last: None,
        one_by_one: false,
        failures: FailedResources::default(),
        backoff: Backoff::default(),
    };
    loop {
        watched_changed.borrow_and_update();
        modern.follow(changes.take_watch_changes());
        while let Some(ended) = poll_immediate(modern.listening.ended()).await {
            modern.note_ended(ended);
        }
        if !modern.waiting.is_empty() {
            modern.request_some().await;
            continue;
        }
        modern.one_by_one = false;
        while modern.replace_some().await {}
        tokio::select! {
            () = wait_for_change(&mut watched_changed) => {}
            failed = modern.failures.due() => modern.retry(failed),
            ended = modern.listening.ended() => modern.note_ended(ended),
        }
    }
}

struct Modern<'a> {
    leader: &'a Leader<'a>,
    listening: Listening,
    /// Not requested yet.
    waiting: Waiting,
    /// The tenant that had the last turn.
    last: Option<TenantId>,
    one_by_one: bool,
    failures: FailedResources,
    backoff: Backoff,
}

impl Modern<'_> {
    fn changes(&self) -> &Changes {
        self.leader.changes
    }

    fn follow(&mut self, changed: WatchChanges) {
        let changes = self.leader.changes;
        match changed.unwatched {
            Some(unwatched) => {
                for uri in &unwatched {
                    self.listening.unwatch(uri);
                    self.waiting.values_mut().for_each(|uris| _ = uris.remove(uri));
                }
            }
            None => {
                self.listening.retain(|uri| changes.is_watched(uri));
                self.waiting.clear();
            }
        }
        for (tenant, uris) in changed.unanswered {
            self.waiting.entry(tenant).or_default().extend(uris);
        }
        self.waiting.retain(|_, uris| !uris.is_empty());
    }

    /// Requests waiting resources: as many as the queue admits together.
    async fn request_some(&mut self) {
        let (slot, tenant, mut batch) = self.take_batch().await;
        // They may have waited for long.
        batch.values_mut().for_each(|uris| uris.retain(|uri| self.changes().is_watched(uri)));
        let uris: BTreeSet<String> = batch.values().flatten().cloned().collect();
        if uris.is_empty() {
            return;
        }
        for tenant in batch.keys() {
            self.leader.ready.connection.in_flight.note_tenant(tenant);
        }
        match open(self.leader.ready, &uris).await {
            Ok((request, agreed)) => {
                self.failures.end_row();
                for uri in &uris {
                    let not_agreed = || error(INTERNAL_ERROR, "the server does not watch this");
                    let answer = if agreed.contains(uri) { Ok(()) } else { Err(not_agreed()) };
                    self.changes().record_answer(uri, answer);
                }
                self.listening.add(Part::new(request, tenant, agreed));
            }
            Err(failed) => self.note_failure(batch, uris, failed),
        }
        drop(slot);
    }

    /// Takes resources that are to be requested together. Every ten of a tenant pass the queue like
    /// a call of it. The first ten wait for that, others join them if they need not wait.
    async fn take_batch(&mut self) -> (Option<SlotPermit>, TenantId, Waiting) {
        let most = if self.one_by_one { 1 } else { RESOURCES_PER_CALL };
        let (mut slot, mut batch) = (None, Waiting::new());
        let mut requester = TenantId::gateway();
        while let Some(tenant) = self.next_tenant() {
            if slot.is_none() {
                slot = Some(self.leader.slot(&tenant).await);
            } else if let Some(next) = poll_immediate(self.leader.slot(&tenant)).await {
                slot = Some(next);
            } else {
                break;
            }
            let uris = self.take_some(&tenant, most);
            batch.entry(tenant.clone()).or_default().extend(uris);
            self.last = Some(tenant.clone());
            requester = tenant;
            if self.one_by_one {
                break;
            }
        }
        (slot, requester, batch)
    }

    /// Returns the tenant after the last one, among those that wait.
    fn next_tenant(&self) -> Option<TenantId> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((after, Bound::Unbounded)).next();
        next.or_else(|| self.waiting.first_key_value()).map(|(tenant, _)| tenant.clone())
    }

    /// Takes some of a tenant's resources. Those that another tenant has requested are answered.
    fn take_some(&mut self, tenant: &TenantId, most: usize) -> BTreeSet<String> {
        let mut taken = BTreeSet::new();
        let Some(uris) = self.waiting.get_mut(tenant) else { return taken };
        while taken.len() < most
            && let Some(uri) = uris.pop_first()
        {
            if self.listening.has(&uri) {
                self.leader.changes.record_answer(&uri, Ok(()));
            } else {
                taken.insert(uri);
            }
        }
        if uris.is_empty() {
            self.waiting.remove(tenant);
        }
        taken
    }

    fn note_failure(&mut self, batch: Waiting, uris: BTreeSet<String>, failed: ListenError) {
        let changes = self.leader.changes;
        match failed {
            _ if uris.len() > 1 => {
                self.failures.end_row();
                self.one_by_one = true;
                for (tenant, uris) in batch {
                    self.waiting.entry(tenant).or_default().extend(uris);
                }
            }
            ListenError::Refused(refused) => {
                self.failures.end_row();
                uris.iter().for_each(|uri| changes.record_answer(uri, Err(refused.clone())));
            }
            ListenError::Failed => {
                let mut failed = uris;
                if self.failures.count(&mut self.backoff) {
                    failed.extend(std::mem::take(&mut self.waiting).into_values().flatten());
                }
                for uri in &failed {
                    changes.record_answer(uri, Err(no_answer()));
                    self.failures.add(uri);
                }
            }
        }
    }

    /// Replaces several small requests, or one with little use, by a new one. An old request ends
    /// when the new one is acknowledged, so nothing is missed. Returns whether there were any.
    async fn replace_some(&mut self) -> bool {
        let parts = self.listening.take_replaceable();
        let Some(last) = parts.iter().max_by_key(|part| part.since) else { return false };
        let tenant = last.tenant.clone();
        let uris: BTreeSet<String> = parts.iter().flat_map(|part| &part.uris).cloned().collect();
        let slot = self.leader.slot(&tenant).await;
        match open(self.leader.ready, &uris).await {
            Ok((request, agreed)) if agreed == uris => {
                self.listening.add(Part::new(request, tenant, agreed));
            }
            _ => self.listening.put_back(parts),
        }
        drop(slot);
        true
    }

    /// Has the resources of a request that the server has ended requested again, after a pause.
    fn note_ended(&mut self, ended: Part) {
        self.failures.retry_after(self.backoff.after(ended.since.elapsed()));
        ended.uris.iter().for_each(|uri| self.failures.add(uri));
    }

    /// Requests resources again for those who still watch them. They may have missed updates.
    fn retry(&mut self, mut failed: BTreeSet<String>) {
        failed.retain(|uri| !self.listening.has(uri));
        for uri in self.changes().reset_answers_of(&failed) {
            self.changes().resource_updated(&Update::plain(uri));
        }
    }
}

/// Opens a request. Returns the resources that the server agreed to as well.
async fn open(
    ready: &Ready,
    uris: &BTreeSet<String>,
) -> Result<(ListenRequest, BTreeSet<String>), ListenError> {
    let filter = json!({"resourceSubscriptions": uris});
    let (request, acknowledged) = ListenRequest::open(ready, &filter).await?;
    let agreed = acknowledged.map_or_else(|| uris.clone(), |it| &it & uris);
    Ok((request, agreed))
}
