//! The instances of one backend: the state of each, which of them are ready, and how busy they are.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::adaptive::{Adaptive, ConcurrencyLimit, Started};
pub use super::status::{Down, InstanceStatus, LastFailure};
pub(crate) use super::uses::Uses;
use crate::backend::{Backend, Ready, RunState};
use crate::common::ids::TenantId;
use crate::events::explanation::InstanceChoice;

const ADAPT_EVERY: Duration = Duration::from_secs(1);

pub struct Pool {
    instances: Mutex<Vec<InstanceStatus>>,
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
    pub choice: InstanceChoice,
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
        self.instance.load.in_flight.end();
        // Sequentially consistent with whoever begins to wait: it sees the room, or is seen here.
        if self.waiters.count.load(Ordering::SeqCst) > 0 {
            self.waiters.wake.notify_waiters();
        }
    }
}

impl Pool {
    pub fn new(size: usize, initial: &RunState) -> Self {
        let instance = || InstanceStatus::new(initial.clone());
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
        self.try_acquire_if(avoid, |_| true)
    }

    fn try_acquire_if(
        &self,
        avoid: Option<usize>,
        may_serve: impl Fn(&ReadyInstance) -> bool,
    ) -> Option<InstancePermit> {
        let ready = self.ready.load();
        loop {
            let has_room = |it: &&Arc<ReadyInstance>| {
                let is_full = it.load.in_flight() >= it.load.limit();
                !is_full && !it.ready.connection.is_closed() && may_serve(it)
            };
            let cost = |it: &&Arc<ReadyInstance>| {
                let (load, in_flight) = (&it.load, it.load.in_flight());
                let is_enough = in_flight >= load.limit_now();
                let last_chosen = load.last_chosen.load(Ordering::Relaxed);
                (Some(it.number) == avoid, is_enough, in_flight, last_chosen)
            };
            let instance = ready.iter().filter(has_room).min_by_key(cost)?;
            // Another call may have taken the last room.
            if instance.load.try_begin() {
                if ready.len() > 1 {
                    let choice = self.choices.fetch_add(1, Ordering::Relaxed) + 1;
                    instance.load.last_chosen.store(choice, Ordering::Relaxed);
                }
                let in_flight = instance.load.in_flight().saturating_sub(1);
                let choice = InstanceChoice { ready: ready.len() as u32, in_flight };
                let (instance, waiters) = (instance.clone(), self.waiters.clone());
                return Some(InstancePermit { choice, instance, waiters });
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

    /// Waits for the instance whose process has this number; `None` if there is none.
    pub async fn acquire_run(&self, run: u64) -> Option<InstancePermit> {
        let is_it = |it: &ReadyInstance| it.ready.connection.run() == run;
        let _waiting = Waiting::on(&self.waiters);
        loop {
            let wake = self.waiters.wake.notified();
            if let Some(permit) = self.try_acquire_if(None, is_it) {
                return Some(permit);
            }
            if !self.ready.load().iter().any(|it| is_it(it)) {
                return None;
            }
            wake.await;
        }
    }

    pub fn size(&self) -> usize {
        self.instances.lock().len()
    }

    pub fn ready_len(&self) -> usize {
        self.ready.load().len()
    }

    pub fn stalled_len(&self) -> usize {
        self.instances.lock().iter().filter(|it| it.stalled_since.is_some()).count()
    }

    /// Returns the calls that all ready instances may have at once.
    pub fn slots(&self) -> usize {
        self.ready.load().iter().map(|it| it.load.limit() as usize).sum()
    }

    pub fn serial_len(&self) -> usize {
        self.ready.load().iter().filter(|it| it.load.looks_serial()).count()
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
        let whole = RunState::best(instances.iter().map(|it| &it.state));
        drop(instances);
        self.wake();
        whole
    }

    pub(crate) fn wake(&self) {
        self.waiters.wake.notify_waiters();
    }

    /// Changes what the operator sees of an instance.
    pub(crate) fn update(&self, number: usize, change: impl FnOnce(&mut InstanceStatus)) {
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

    pub fn count_calls(&self, by_tenant: &mut HashMap<TenantId, u32>) {
        for instance in &**self.ready.load() {
            instance.ready.connection.in_flight.count_by_tenant(by_tenant);
        }
    }

    pub fn instances(&self) -> Vec<InstanceStatus> {
        self.instances.lock().clone()
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

/// How busy one run of an instance is.
pub struct Load {
    in_flight: Uses,
    limit: AtomicU32,
    /// The limit for now, which is lower in a probe.
    limit_now: AtomicU32,
    begun: AtomicU64,
    /// The pool's count of choices when it was last chosen; 0 if never.
    last_chosen: AtomicU64,
    /// Finds out the limit (`adaptive = true`).
    adaptive: Option<Adaptive>,
    looks_serial: AtomicBool,
    /// Wakes the supervisor when an operator wants the next run.
    replace: Notify,
}

impl Load {
    /// With `is_adaptive`, `limit` is the upper bound of what is found out.
    pub fn new(limit: u32, is_adaptive: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: Uses::default(),
            limit: AtomicU32::new(limit),
            limit_now: AtomicU32::new(limit),
            begun: AtomicU64::new(0),
            last_chosen: AtomicU64::new(0),
            adaptive: is_adaptive.then(|| Adaptive::new(limit)),
            looks_serial: AtomicBool::new(false),
            replace: Notify::new(),
        })
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight.count()
    }

    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns whether the instance has answered nothing else lately while calls ran.
    pub fn looks_serial(&self) -> bool {
        self.looks_serial.load(Ordering::Relaxed)
    }

    pub fn ask_to_replace(&self) {
        self.replace.notify_one();
    }

    /// Waits until an operator wants the next run.
    pub(crate) async fn asked_to_replace(&self) {
        self.replace.notified().await;
    }

    fn limit_now(&self) -> u32 {
        self.limit_now.load(Ordering::Relaxed)
    }

    fn set_limit(&self, limit: ConcurrencyLimit) {
        self.limit.store(limit.usual, Ordering::Relaxed);
        self.limit_now.store(limit.now, Ordering::Relaxed);
    }

    /// Returns the calls that it ever had.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub(crate) async fn drained(&self) {
        self.in_flight.drained().await;
    }

    /// Begins a call, unless there are as many as there may be.
    fn try_begin(&self) -> bool {
        let has_begun = self.in_flight.try_begin(self.limit());
        if has_begun {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        has_begun
    }
}

/// A call that is measured until dropped, if its instance is adaptive.
pub struct Measured<'a> {
    backend: &'a Backend,
    begun: Option<(Arc<Load>, Started)>,
    is_answered: bool,
}

impl Measured<'_> {
    /// Ends the measurement with an answer.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        if let Some((load, started)) = self.begun.take()
            && let Some(adaptive) = &load.adaptive
            && let Some(limit) = adaptive.end(started, Instant::now(), self.is_answered)
        {
            self.backend.set_limit(&load, limit);
        }
    }
}

impl Backend {
    /// Measures a call from now on, if its instance is adaptive.
    pub fn measure<'a>(&'a self, permit: &InstancePermit, tool: &str) -> Measured<'a> {
        let load = &permit.instance.load;
        let begin = |it: &Adaptive| (load.clone(), it.begin(tool, Instant::now()));
        Measured { backend: self, begun: load.adaptive.as_ref().map(begin), is_answered: false }
    }

    /// Checks the limit now and then, for there are times when no call ends. Never ends.
    pub(crate) async fn adapt(&self, load: &Load) {
        let Some(adaptive) = &load.adaptive else { return pending().await };
        loop {
            sleep(ADAPT_EVERY).await;
            if let Some(limit) = adaptive.check(Instant::now()) {
                self.set_limit(load, limit);
            }
        }
    }

    /// Notes whether an instance looks serial.
    pub(crate) fn set_serial(&self, load: &Load, is_serial: bool) {
        let _changing = self.changing_state.lock();
        load.looks_serial.store(is_serial, Ordering::Relaxed);
        if self.is_active() {
            self.update_up_metrics();
        }
    }

    fn set_limit(&self, load: &Load, limit: ConcurrencyLimit) {
        let _changing = self.changing_state.lock();
        load.set_limit(limit);
        self.resize_queue();
        self.pool.wake();
        if self.is_active() {
            self.update_up_metrics();
        }
    }
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
