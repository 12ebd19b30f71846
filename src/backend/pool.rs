//! The copies of one server: where each of them stands, which of them are ready, and how busy they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::adaptive::Adaptive;
use super::{Ready, State};

/// All copies.
pub struct Pool {
    members: Mutex<Vec<Member>>,
    /// Those that take calls, for everyone who has one.
    ready: ArcSwap<Vec<Arc<Copy>>>,
    freed: Arc<Freed>,
}

/// One copy, whether it runs or not.
#[derive(Clone)]
struct Member {
    state: State,
    since: Timestamp,
    starts: u64,
    copy: Option<Arc<Copy>>,
    trouble: Option<Trouble>,
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

/// How busy one run of a copy is.
pub struct Load {
    in_flight: AtomicU32,
    limit: AtomicU32,
    begun: AtomicU64,
    idle: Notify,
    /// Finds out the limit, where that is asked for.
    adaptive: Option<Adaptive>,
}

/// What went wrong last.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// When.
    pub at: Timestamp,
    /// In words that callers may see.
    pub reason: Arc<str>,
    /// The whole story, for the operator.
    pub detail: Arc<str>,
    /// What the copy last wrote to standard error; for the operator too.
    pub stderr: Arc<[String]>,
}

/// One copy, as the operator sees it.
pub struct View {
    /// Where it stands.
    pub state: State,
    /// Since when.
    pub since: Timestamp,
    /// How often it was started.
    pub starts: u64,
    /// Calls on it now, and how many there may be.
    pub in_flight: Option<(u32, u32)>,
    /// What went wrong last.
    pub trouble: Option<Trouble>,
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

impl Load {
    /// Nothing to do yet, and so much at once; or what turns out to be of use up to that.
    pub fn new(limit: u32, is_adaptive: bool) -> Arc<Self> {
        Arc::new(Self {
            in_flight: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            begun: AtomicU64::new(0),
            idle: Notify::new(),
            adaptive: is_adaptive.then(|| Adaptive::new(limit)),
        })
    }

    pub(super) fn adaptive(&self) -> Option<&Adaptive> {
        self.adaptive.as_ref()
    }

    /// Calls on it now.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Calls it may have at once.
    pub fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes how many it may have.
    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Calls it ever had.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Done when it has no call.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }

    fn take(&self) -> bool {
        let below = |taken| (taken < self.limit()).then_some(taken + 1);
        let taken = self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, below);
        if taken.is_ok() {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

impl Lease {
    /// Where the place is.
    pub fn copy(&self) -> &Copy {
        &self.copy
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let load = &self.copy.load;
        if load.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            load.idle.notify_waiters();
        }
        // In one order with what those do who begin to wait: they either see the place or are seen.
        if self.freed.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.places.notify_waiters();
        }
    }
}

impl Pool {
    /// So many copies, none of which runs.
    pub fn new(copies: usize, initial: &State) -> Self {
        let state = initial.clone();
        let starts = u64::from(matches!(state, State::Starting));
        let member = Member { state, since: Timestamp::now(), starts, copy: None, trouble: None };
        Self {
            members: Mutex::new(vec![member; copies]),
            ready: ArcSwap::default(),
            freed: Arc::default(),
        }
    }

    /// A place on the copy that has the fewest calls, other than `avoid` if there is a choice.
    pub fn take(&self, avoid: Option<usize>) -> Option<Lease> {
        let ready = self.ready.load();
        loop {
            let has_place = |copy: &&Arc<Copy>| {
                copy.load.in_flight() < copy.load.limit() && !copy.ready.connection.is_closed()
            };
            let least = |copy: &&Arc<Copy>| {
                (Some(copy.number) == avoid, copy.load.in_flight(), copy.load.begun())
            };
            let copy = ready.iter().filter(has_place).min_by_key(least)?;
            // Somebody else may have had the last one.
            if copy.load.take() {
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

    /// Notes where a copy stands now; `copy` if it takes calls. Gives where the server as a whole does.
    pub(super) fn enter(&self, number: usize, state: State, copy: Option<Arc<Copy>>) -> State {
        let mut members = self.members.lock();
        let member = &mut members[number];
        if !member.state.is_like(&state) {
            member.since = Timestamp::now();
            member.starts += u64::from(matches!(state, State::Starting));
        }
        member.state = state;
        member.copy = copy;
        let ready = members.iter().filter_map(|member| member.copy.clone()).collect();
        self.ready.store(Arc::new(ready));
        let whole = together(members.iter().map(|member| &member.state));
        drop(members);
        self.wake();
        whole
    }

    /// Has those look again who wait for a place.
    pub(super) fn wake(&self) {
        self.freed.places.notify_waiters();
    }

    /// Notes what went wrong with a copy.
    pub(super) fn note_trouble(&self, number: usize, trouble: Trouble) {
        self.members.lock()[number].trouble = Some(trouble);
    }

    /// All copies, as the operator sees them.
    pub fn views(&self) -> Vec<View> {
        let view = |member: &Member| View {
            state: member.state.clone(),
            since: member.since,
            starts: member.starts,
            in_flight: member.copy.as_ref().map(|it| (it.load.in_flight(), it.load.limit())),
            trouble: member.trouble.clone(),
        };
        self.members.lock().iter().map(view).collect()
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
