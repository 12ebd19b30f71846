//! The copies of one server: where each of them stands, which of them are ready, and how busy they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use super::load::Load;
use super::status::Member;
pub use super::status::{Down, LastFailure, View};
use crate::backend::stdio::stderr::StderrTail;
use crate::backend::{Ready, State};

/// All copies.
pub struct Pool {
    members: Mutex<Vec<Member>>,
    /// Those that take calls now; replaced as a whole.
    ready: ArcSwap<Vec<Arc<Copy>>>,
    /// Counts how often one of several was chosen.
    turns: AtomicU64,
    freed: Arc<Freed>,
}

/// A copy that takes calls.
pub struct Copy {
    /// Which of the copies it is.
    pub number: usize,
    /// What calls need of it.
    pub ready: Arc<Ready>,
    /// How busy it is.
    pub load: Arc<Load>,
}

/// Tells those who wait for a place on any copy.
#[derive(Default)]
struct Freed {
    waiting: AtomicU32,
    places: Notify,
}

/// A call's place on a copy, until dropped.
pub struct Lease {
    copy: Arc<Copy>,
    freed: Arc<Freed>,
}

impl Lease {
    /// Where the place is.
    pub fn copy(&self) -> &Copy {
        &self.copy
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.copy.load.end();
        // In one order with what those do who begin to wait: they either see the place or are seen.
        if self.freed.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.places.notify_waiters();
        }
    }
}

impl Pool {
    /// So many copies, none of which runs.
    pub fn new(copies: usize, initial: &State) -> Self {
        let member = || Member::new(initial.clone());
        Self {
            members: Mutex::new((0..copies).map(|_| member()).collect()),
            ready: ArcSwap::default(),
            turns: AtomicU64::new(0),
            freed: Arc::default(),
        }
    }

    /// A place on the copy that has the fewest calls, other than `avoid` if there is a choice, and than those that should
    /// have no more for now. Of several that have as few it is the turn of the one that was not chosen for longest: one
    /// that is new does not have to catch up.
    pub fn take(&self, avoid: Option<usize>) -> Option<Lease> {
        let ready = self.ready.load();
        loop {
            let has_place = |copy: &&Arc<Copy>| {
                copy.load.in_flight() < copy.load.limit() && !copy.ready.connection.is_closed()
            };
            let least = |copy: &&Arc<Copy>| {
                let (load, in_flight) = (&copy.load, copy.load.in_flight());
                let is_enough = in_flight >= load.limit_now();
                (Some(copy.number) == avoid, is_enough, in_flight, load.turn())
            };
            let copy = ready.iter().filter(has_place).min_by_key(least)?;
            // Somebody else may have had the last one.
            if copy.load.try_begin() {
                if ready.len() > 1 {
                    copy.load.set_turn(self.turns.fetch_add(1, Ordering::Relaxed) + 1);
                }
                return Some(Lease { copy: copy.clone(), freed: self.freed.clone() });
            }
        }
    }

    /// The same, and waits for one. Does not end while there is none.
    pub async fn place(&self, avoid: Option<usize>) -> Lease {
        if let Some(lease) = self.take(avoid) {
            return lease;
        }
        let _waiting = Waits::on(&self.freed);
        loop {
            let freed = self.freed.places.notified();
            if let Some(lease) = self.take(avoid) {
                return lease;
            }
            freed.await;
        }
    }

    /// How many copies there should be.
    pub fn size(&self) -> usize {
        self.members.lock().len()
    }

    /// How many copies take calls.
    pub fn ready_len(&self) -> usize {
        self.ready.load().len()
    }

    /// The calls that all copies may have at once.
    pub fn slots(&self) -> usize {
        self.ready.load().iter().map(|copy| copy.load.limit() as usize).sum()
    }

    /// How many of these are to be left free for now.
    pub fn slots_left_free(&self) -> usize {
        let left_free = |load: &Load| load.limit().saturating_sub(load.limit_now()) as usize;
        self.ready.load().iter().map(|copy| left_free(&copy.load)).sum()
    }

    /// Notes where a copy stands now; `copy` if it takes calls. Gives where the server as a whole does.
    pub(crate) fn enter(&self, number: usize, state: State, copy: Option<Arc<Copy>>) -> State {
        let mut members = self.members.lock();
        members[number].enter(state, copy);
        let ready = members.iter().filter_map(|member| member.copy.clone()).collect();
        self.ready.store(Arc::new(ready));
        let whole = together(members.iter().map(|member| &member.state));
        drop(members);
        self.wake();
        whole
    }

    /// Has those look again who wait for a place.
    pub(crate) fn wake(&self) {
        self.freed.places.notify_waiters();
    }

    /// A copy has failed, in words that callers may see. Followed by where it stands.
    pub(crate) fn note_down(&self, number: usize, reason: &str) {
        self.members.lock()[number].note_down(reason.into());
    }

    /// A copy is being started.
    pub(crate) fn note_start(&self, number: usize) {
        self.members.lock()[number].note_start();
    }

    /// Notes what went wrong with a copy.
    pub(crate) fn note_last_failure(&self, number: usize, last_failure: LastFailure) {
        self.members.lock()[number].note_last_failure(last_failure);
    }

    /// Operators see this of a copy from now on.
    pub(crate) fn show_stderr(&self, number: usize, stderr: StderrTail) {
        self.members.lock()[number].show_stderr(stderr);
    }

    /// Since when no copy takes calls, and what happened last. Nothing, if one does, or if none was to yet.
    pub fn down(&self) -> Option<Down> {
        let members = self.members.lock();
        if members.iter().any(|member| matches!(member.state, State::Ready(_))) {
            return None;
        }
        // As long as one of them served, the server did.
        members.iter().filter_map(Member::down).max_by_key(|down| down.since).cloned()
    }

    /// All copies, as the operator sees them.
    pub fn views(&self) -> Vec<View> {
        self.members.lock().iter().map(Member::view).collect()
    }
}

/// Counts among those who wait, until dropped.
struct Waits<'a>(&'a Freed);

impl<'a> Waits<'a> {
    fn on(freed: &'a Freed) -> Self {
        freed.waiting.fetch_add(1, Ordering::SeqCst);
        Self(freed)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where a server stands whose copies stand so: as well as the best of them; of those that wait, as the one that is
/// started first.
fn together<'a>(states: impl Iterator<Item = &'a State>) -> State {
    let best = states.min_by_key(|state| {
        let wait = match state {
            State::Backoff { until, .. } | State::Quarantined { until, .. } => Some(*until),
            _ => None,
        };
        // One whose connection has ended is about to be something else.
        (state.rank(), !state.is_open(), wait)
    });
    best.cloned().unwrap_or(State::Stopped)
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
