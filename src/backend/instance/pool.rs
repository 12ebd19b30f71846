//! The instances of one backend: the state of each, which of them are ready, and how busy they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use super::load::Load;
use super::status::Instance;
pub use super::status::{Down, InstanceStatus, LastFailure};
use crate::backend::{Ready, RunState};

pub struct Pool {
    instances: Mutex<Vec<Instance>>,
    /// A snapshot, replaced as a whole.
    ready: ArcSwap<Vec<Arc<ReadyInstance>>>,
    /// Counts the choices among several instances.
    choices: AtomicU64,
    waiters: Arc<Waiters>,
}

/// An instance that takes calls.
pub struct ReadyInstance {
    /// Its index in the pool.
    pub number: usize,
    pub ready: Arc<Ready>,
    pub load: Arc<Load>,
}

/// The tasks that wait for an instance with room for a call.
#[derive(Default)]
struct Waiters {
    count: AtomicU32,
    wake: Notify,
}

/// A call's permit for one instance, given back when dropped.
pub struct InstancePermit {
    instance: Arc<ReadyInstance>,
    waiters: Arc<Waiters>,
}

impl InstancePermit {
    pub fn instance(&self) -> &ReadyInstance {
        &self.instance
    }
}

impl Drop for InstancePermit {
    fn drop(&mut self) {
        self.instance.load.end();
        // Sequentially consistent with whoever begins to wait: it sees the room, or is seen here.
        if self.waiters.count.load(Ordering::SeqCst) > 0 {
            self.waiters.wake.notify_waiters();
        }
    }
}

impl Pool {
    pub fn new(size: usize, initial: &RunState) -> Self {
        let instance = || Instance::new(initial.clone());
        Self {
            instances: Mutex::new((0..size).map(|_| instance()).collect()),
            ready: ArcSwap::default(),
            choices: AtomicU64::new(0),
            waiters: Arc::default(),
        }
    }

    /// Chooses the instance with the fewest calls, of several the one that was not chosen for
    /// longest: a new one does not have to catch up. `avoid`, and those above their present limit,
    /// are chosen last.
    pub fn try_acquire(&self, avoid: Option<usize>) -> Option<InstancePermit> {
        let ready = self.ready.load();
        loop {
            let has_room = |it: &&Arc<ReadyInstance>| {
                it.load.in_flight() < it.load.limit() && !it.ready.connection.is_closed()
            };
            let cost = |it: &&Arc<ReadyInstance>| {
                let (load, in_flight) = (&it.load, it.load.in_flight());
                let is_enough = in_flight >= load.limit_now();
                (Some(it.number) == avoid, is_enough, in_flight, load.last_chosen())
            };
            let instance = ready.iter().filter(has_room).min_by_key(cost)?;
            // Another call may have taken the last room.
            if instance.load.try_begin() {
                if ready.len() > 1 {
                    let choice = self.choices.fetch_add(1, Ordering::Relaxed) + 1;
                    instance.load.set_last_chosen(choice);
                }
                let (instance, waiters) = (instance.clone(), self.waiters.clone());
                return Some(InstancePermit { instance, waiters });
            }
        }
    }

    /// Waits for an instance with room. Does not end while there is none.
    pub async fn acquire(&self, avoid: Option<usize>) -> InstancePermit {
        if let Some(permit) = self.try_acquire(avoid) {
            return permit;
        }
        let _waiting = Waiting::on(&self.waiters);
        loop {
            let wake = self.waiters.wake.notified();
            if let Some(permit) = self.try_acquire(avoid) {
                return permit;
            }
            wake.await;
        }
    }

    /// Returns how many instances are configured.
    pub fn size(&self) -> usize {
        self.instances.lock().len()
    }

    pub fn ready_len(&self) -> usize {
        self.ready.load().len()
    }

    /// Returns the calls that all ready instances may have at once.
    pub fn slots(&self) -> usize {
        self.ready.load().iter().map(|it| it.load.limit() as usize).sum()
    }

    /// Returns how many slots are to be left free for now.
    pub fn slots_left_free(&self) -> usize {
        let left_free = |load: &Load| load.limit().saturating_sub(load.limit_now()) as usize;
        self.ready.load().iter().map(|it| left_free(&it.load)).sum()
    }

    /// Changes the state of an instance; `ready` if it takes calls. Returns the state of the
    /// backend.
    pub(crate) fn set_state(
        &self,
        number: usize,
        state: RunState,
        ready: Option<Arc<ReadyInstance>>,
    ) -> RunState {
        let mut instances = self.instances.lock();
        instances[number].set_state(state, ready);
        let ready = instances.iter().filter_map(|it| it.ready.clone()).collect();
        self.ready.store(Arc::new(ready));
        let whole = best(instances.iter().map(|it| &it.state));
        drop(instances);
        self.wake();
        whole
    }

    /// Wakes all tasks that wait for an instance.
    pub(crate) fn wake(&self) {
        self.waiters.wake.notify_waiters();
    }

    /// Changes what the operator sees of an instance.
    pub(crate) fn update(&self, number: usize, change: impl FnOnce(&mut Instance)) {
        change(&mut self.instances.lock()[number]);
    }

    /// Returns since when no instance takes calls, and why. `None` if one does, or none was to yet.
    pub fn down(&self) -> Option<Down> {
        let instances = self.instances.lock();
        if instances.iter().any(|it| matches!(it.state, RunState::Ready(_))) {
            return None;
        }
        // As long as one of them served, the backend did.
        instances.iter().filter_map(|it| it.down.as_ref()).max_by_key(|it| it.since).cloned()
    }

    pub fn views(&self) -> Vec<InstanceStatus> {
        self.instances.lock().iter().map(Instance::view).collect()
    }
}

/// Counts among the waiters, until dropped.
struct Waiting<'a>(&'a Waiters);

impl<'a> Waiting<'a> {
    fn on(waiters: &'a Waiters) -> Self {
        waiters.count.fetch_add(1, Ordering::SeqCst);
        Self(waiters)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns the state of a backend with instances in these states: the best of them; of those that
/// wait for a restart, the one that is restarted first.
fn best<'a>(states: impl Iterator<Item = &'a RunState>) -> RunState {
    let best = states.min_by_key(|state| {
        let wait = match state {
            RunState::Backoff { until, .. } | RunState::Quarantined { until, .. } => Some(*until),
            _ => None,
        };
        // A closed connection is about to become another state.
        (state.rank(), !state.is_open(), wait)
    });
    best.cloned().unwrap_or(RunState::Stopped)
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
