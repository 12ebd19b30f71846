//! Which tenants have a process.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::backend::changes::Changes;
use crate::config;
use crate::ids::{ServerId, TenantId};
use crate::registry::lease::Usage;
use crate::secrets::SealedSet;

/// The processes of one server. Those that leave are in it until they are gone, or others have come in their stead.
#[derive(Default)]
pub(super) struct Table {
    pub(super) processes: HashMap<TenantId, Process>,
    /// Those who listen stay when the process leaves.
    changes: HashMap<TenantId, Weak<Changes>>,
}

/// A tenant's process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) backend: Arc<Backend>,
    /// The secrets it was started with, or others of the same values.
    pub(super) sealed: Option<Arc<SealedSet>>,
    pub(super) usage: Arc<Usage>,
    pub(super) place: Arc<Place>,
    /// Cancelled, under the lock of the table, when it takes no more calls.
    pub(super) leave: CancellationToken,
    /// Cancelled when its server is configured otherwise or gone: it takes no more calls then either, and its backend
    /// sees to those that it has.
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
        sealed: Option<Arc<SealedSet>>,
        retired: CancellationToken,
        before: Option<&Self>,
    ) -> Self {
        let with_place = before.filter(|before| !before.retired.is_cancelled());
        Self {
            backend,
            sealed,
            usage: Usage::new(),
            place: with_place.map(|before| before.place.clone()).unwrap_or_default(),
            leave: CancellationToken::new(),
            retired,
            gone: CancellationToken::new(),
            before: before.map(|before| before.gone.clone()),
        }
    }

    /// Whether it takes calls of a tenant that has stored this.
    pub(super) fn serves(&self, sealed: Option<&Arc<SealedSet>>, names: &[String]) -> bool {
        self.stays() && SealedSet::is_same(self.sealed.as_ref(), sealed, names)
    }

    /// Whether it takes calls.
    fn stays(&self) -> bool {
        !self.leave.is_cancelled() && !self.retired.is_cancelled()
    }

    /// Another comes in its stead. One that is retired leaves already, and may have longer for it.
    pub(super) fn give_way(&self) {
        if !self.retired.is_cancelled() {
            self.leave.cancel();
        }
    }

    /// What must be gone before another starts in its stead. There are two side by side at most, or one: whoever changes
    /// its secrets all the time does not have ever more of them.
    pub(super) fn waited_for_by(self, next: &config::Server) -> Option<CancellationToken> {
        if next.exclusive || self.backend.config().exclusive {
            return Some(self.gone);
        }
        // The operator may have more.
        if self.retired.is_cancelled() { None } else { self.before }
    }
}

impl Table {
    /// Whether there may be another. If there are `max` already, the one that has not been used for longest leaves.
    pub(super) fn make_room(&self, max: usize) -> bool {
        let staying = || self.processes.values().filter(|it| it.stays());
        if staying().count() < max {
            return true;
        }
        let idle = staying().filter_map(|it| Some((it.usage.idle_since()?, it)));
        let Some((_, process)) = idle.min_by_key(|(since, _)| *since) else { return false };
        process.leave.cancel();
        true
    }

    /// Lets the calls of those that are retired end, and stops them. Those who listen are told that what comes next may
    /// be different.
    pub(super) fn retire(&self, within: Duration) {
        for process in self.processes.values().filter(|it| it.retired.is_cancelled()) {
            process.backend.retire(within);
        }
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
        let is_it = |it: &Process| Arc::ptr_eq(&it.backend, &process.backend);
        if self.processes.get(tenant).is_some_and(is_it) {
            self.processes.remove(tenant);
        }
    }
}
