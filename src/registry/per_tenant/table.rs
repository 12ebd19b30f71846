//! Which tenants have a process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::changes::Changes;
use crate::backend::{Backend, State};
use crate::common::ids::{ServerId, TenantId};
use crate::config;
use crate::registry::backend_ref::Usage;
use crate::tenants::secrets::SealedSet;

/// The processes of one server. Those that leave are in it until they are gone, or others have come in their stead.
#[derive(Default)]
pub(super) struct Table {
    pub(super) processes: HashMap<TenantId, Process>,
    /// Those of an earlier configuration that serve until the tenant's process of the present one is ready.
    pub(super) older: HashMap<TenantId, Process>,
    /// All that have not gone yet.
    there: HashMap<TenantId, Vec<Process>>,
    /// Those who listen stay when the process leaves.
    changes: HashMap<TenantId, Weak<Changes>>,
}

/// A tenant's process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) backend: Arc<Backend>,
    /// How often its server had been configured anew.
    pub(super) generation: u64,
    /// The secrets it was started with, or others of the same values.
    pub(super) sealed: Option<Arc<SealedSet>>,
    /// Those of them that it needs.
    pub(super) names: Arc<[String]>,
    pub(super) usage: Arc<Usage>,
    pub(super) place: Arc<Place>,
    /// Cancelled, under the lock of the table, when it takes no more calls.
    pub(super) leave: CancellationToken,
    /// Cancelled when its server is gone, or must be before another starts: it takes no more calls then either, and its
    /// backend sees to those that it has.
    pub(super) retired: CancellationToken,
    /// Cancelled when nothing is left of it.
    pub(super) gone: CancellationToken,
    /// The same of the one that it came in the stead of.
    pub(super) before: Option<CancellationToken>,
}

/// One of `max_tenants`, from when it is free until nobody has it.
#[derive(Default)]
pub(super) struct Place(OnceCell<OwnedSemaphorePermit>);

impl Place {
    /// Waits until there is a free one, unless this is one already.
    pub(super) async fn take(&self, places: &Arc<Semaphore>) {
        let free = async || places.clone().acquire_owned().await;
        self.0.get_or_try_init(free).await.expect("it is never closed");
    }
}

impl Process {
    /// One that is about to be started, in the stead of another if there was one.
    pub(super) fn new(
        backend: Arc<Backend>,
        generation: u64,
        sealed: Option<Arc<SealedSet>>,
        names: Arc<[String]>,
        before: Option<&Self>,
    ) -> Self {
        let with_place = before.filter(|before| before.generation == generation);
        Self {
            backend,
            generation,
            sealed,
            names,
            usage: Usage::new(),
            place: with_place.map(|before| before.place.clone()).unwrap_or_default(),
            leave: CancellationToken::new(),
            retired: CancellationToken::new(),
            gone: CancellationToken::new(),
            before: before.map(|before| before.gone.clone()),
        }
    }

    /// Whether it takes calls of a tenant that has stored this.
    pub(super) fn serves(&self, sealed: Option<&Arc<SealedSet>>) -> bool {
        self.stays() && SealedSet::is_same(self.sealed.as_ref(), sealed, &self.names)
    }

    /// Whether it takes calls.
    pub(super) fn stays(&self) -> bool {
        !self.leave.is_cancelled() && !self.retired.is_cancelled()
    }

    /// Whether it can go on until another of that configuration is ready.
    pub(super) fn can_stay_beside(&self, next: &config::Server) -> bool {
        let is_alone = self.backend.config().exclusive || next.exclusive;
        !is_alone && matches!(self.backend.state(), State::Ready(_))
    }

    /// Another comes in its stead. One that is retired leaves already, and may have longer for it.
    pub(super) fn give_way(&self) {
        if !self.retired.is_cancelled() {
            self.leave.cancel();
        }
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }
}

impl Table {
    /// The process that takes a tenant's calls, or did last.
    pub(super) fn current(&self, tenant: &TenantId) -> Option<&Process> {
        let older = self.older.get(tenant).filter(|it| it.stays());
        older.or_else(|| self.processes.get(tenant))
    }

    /// The process that takes a tenant's calls as soon as it is ready, if an older one does until then.
    pub(super) fn next(&self, tenant: &TenantId) -> Option<&Process> {
        let is_beside = self.older.get(tenant).is_some_and(Process::stays);
        self.processes.get(tenant).filter(|_| is_beside)
    }

    /// Whether the tenant may have one. If others have `max` already, those that have not been used for longest leave.
    pub(super) fn make_room(&self, tenant: &TenantId, max: usize) -> bool {
        let others = self.processes.keys().filter(|other| *other != tenant);
        let staying = others.filter_map(|other| Some((other, self.current(other)?)));
        let staying: Vec<_> = staying.filter(|(_, it)| it.stays()).collect();
        let too_many = (staying.len() + 1).saturating_sub(max);
        let idle = staying.iter().filter_map(|(other, it)| Some((it.usage.idle_since()?, other)));
        let mut idle: Vec<_> = idle.collect();
        if idle.len() < too_many {
            return false;
        }
        idle.sort_by_key(|(since, _)| *since);
        for (_, other) in idle.into_iter().take(too_many) {
            let both = self.processes.get(*other).into_iter().chain(self.older.get(*other));
            both.for_each(|process| process.leave.cancel());
        }
        true
    }

    /// What must be gone before a tenant's next process starts. `before` is the one that it comes in the stead of, `older`
    /// goes on until it is ready. Without an older one there are two side by side at most: whoever changes its secrets all
    /// the time does not have ever more of them.
    pub(super) fn waited_for(
        &self,
        tenant: &TenantId,
        next: &config::Server,
        generation: u64,
        before: Option<&Process>,
        older: Option<&Process>,
    ) -> Vec<CancellationToken> {
        let there = self.there.get(tenant).into_iter().flatten();
        let alone = there.filter(|it| it.backend.config().exclusive || next.exclusive);
        let mut waited_for: Vec<_> = alone.map(|it| it.gone.clone()).collect();
        waited_for.extend(match (before, older) {
            // It has not served anybody, and is gone soon.
            (Some(before), Some(older)) => (!before.is(older)).then(|| before.gone.clone()),
            // The operator may have more.
            (Some(before), None) if before.generation != generation => None,
            (Some(before), None) => before.before.clone(),
            (None, _) => None,
        });
        waited_for
    }

    /// From now on this is the tenant's process; at first, an `older` one takes its calls.
    pub(super) fn insert(&mut self, tenant: &TenantId, process: &Process, older: Option<Process>) {
        let there = self.there.entry(tenant.clone()).or_default();
        there.retain(|it| !it.gone.is_cancelled());
        there.push(process.clone());
        self.processes.insert(tenant.clone(), process.clone());
        // What was here before is the same, or leaves.
        let before = self
            .older
            .remove(tenant)
            .filter(|it| !older.as_ref().is_some_and(|older| older.is(it)));
        before.iter().for_each(Process::give_way);
        self.older.extend(older.map(|older| (tenant.clone(), older)));
    }

    /// The tenant's process is ready: the older one takes no more calls.
    pub(super) fn take_over(&mut self, tenant: &TenantId, process: &Process) {
        if !self.processes.get(tenant).is_some_and(|it| it.is(process)) {
            return;
        }
        if let Some(older) = self.older.remove(tenant) {
            older.give_way();
        }
        process.backend.enter_service();
    }

    /// Lets the calls of those up to that generation end, and stops them.
    pub(super) fn retire(&self, generation: u64, within: Duration) {
        for process in self.there.values().flatten().filter(|it| it.generation <= generation) {
            process.retired.cancel();
            process.backend.retire(within);
        }
        self.tell_all();
    }

    /// Those who listen are told that what comes next may be different.
    pub(super) fn tell_all(&self) {
        self.changes.values().filter_map(Weak::upgrade).for_each(|it| it.all_may_have_changed());
    }

    /// What a tenant listens to.
    pub(super) fn changes_of(&mut self, server: &ServerId, tenant: &TenantId) -> Arc<Changes> {
        if let Some(changes) = self.changes.get(tenant).and_then(Weak::upgrade) {
            return changes;
        }
        self.changes.retain(|_, changes| changes.strong_count() > 0);
        let changes = Changes::new(server.clone());
        self.changes.insert(tenant.clone(), Arc::downgrade(&changes));
        changes
    }

    /// Takes out a process that is gone, unless there is another in its stead.
    pub(super) fn forget(&mut self, tenant: &TenantId, process: &Process) {
        if self.older.get(tenant).is_some_and(|it| it.is(process)) {
            self.older.remove(tenant);
        }
        if self.processes.get(tenant).is_some_and(|it| it.is(process)) {
            self.processes.remove(tenant);
            // One that was to go when this is ready does not have to any more.
            self.processes.extend(self.older.remove_entry(tenant));
        }
        if let Some(there) = self.there.get_mut(tenant) {
            there.retain(|it| !it.is(process));
            if there.is_empty() {
                self.there.remove(tenant);
            }
        }
    }
}
