//! Who may use a server now, and who waits.
//!
//! A server takes `max_in_flight` calls at once. As long as nobody waits, a call takes a slot without a lock.
//! Otherwise it waits in its tenant's own line, and slots go round among the tenants ([`mod@line`]). How many may wait
//! is bounded ([`room`]). With one slot this makes a strictly serial server.
//!
//! Where tenants share a server, no tenant may hold all of its slots, however long its calls take: a quarter of them
//! is a reserve that only tenants have which hold none ([`slots`]).
//!
//! What tenants use counts only while somebody waits: what nobody else wanted is free.

mod line;
mod room;
mod shares;
mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::line::{Among, Entry, Line};
pub use self::room::{WAITING_BYTES_MAX, WAITING_MAX};
use self::shares::{Share, Shares};
use self::slots::{Slot, Slots};
use crate::ids::TenantId;

/// The slots of one server, and the lines before them.
pub struct Queue {
    inner: Arc<Inner>,
}

struct Inner {
    slots: Slots,
    shares: Shares,
    waiting: Mutex<Waiting>,
    /// How long somebody has waited until now, in nanoseconds. Stands still while nobody does; while somebody
    /// does, it is what it was before.
    contended: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    line: Line<oneshot::Sender<Grant>>,
    /// Since when somebody has waited, if somebody does.
    since: Option<Instant>,
}

/// The right to one slot, until dropped. It travels with the call.
pub struct Permit {
    inner: Arc<Inner>,
    share: Arc<Share>,
    grant: Grant,
    carried: Option<Box<dyn Send + Sync>>,
}

impl Permit {
    /// Keeps something as long as the slot.
    pub fn carry(&mut self, something: impl Send + Sync + 'static) {
        self.carried = Some(Box::new(something));
    }
}

/// Which slot was given, and what must be known when it comes back.
#[derive(Clone, Copy)]
struct Grant {
    slot: Slot,
    weight: u32,
    /// What the tenant was charged with beforehand.
    charged: Duration,
    /// What `Inner::contended` was.
    contended: u64,
}

/// Why no slot was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Too many wait already.
    Full,
    /// The deadline passed first.
    Expired,
}

impl Queue {
    /// A queue before `max_in_flight` slots.
    pub fn new(max_in_flight: usize) -> Self {
        let inner = Inner {
            slots: Slots::new(max_in_flight),
            shares: Shares::default(),
            waiting: Mutex::default(),
            contended: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A call with so many bytes wants to use the server. A tenant's `weight` is its part where there is not enough
    /// for all.
    pub fn line_up(&self, tenant: &TenantId, weight: u32, bytes: usize) -> Place<'_> {
        let inner = &self.inner;
        Place { inner, share: inner.shares.of(tenant), weight: weight.max(1), bytes }
    }

    /// Whether no call has a slot or waits for one.
    pub fn is_unused(&self) -> bool {
        self.inner.slots.is_unused()
    }
}

/// A call before it has its slot.
pub struct Place<'a> {
    inner: &'a Arc<Inner>,
    share: Arc<Share>,
    weight: u32,
    bytes: usize,
}

impl<'a> Place<'a> {
    /// Waits for something else first, such as the server's start. The call counts among those who wait, and like them
    /// may have to give way to others.
    pub async fn first<T>(&mut self, future: impl Future<Output = T>) -> Result<T, QueueError> {
        let mut future = std::pin::pin!(future);
        if let Some(output) = poll_immediate(&mut future).await {
            return Ok(output);
        }
        let mut seat = self.sit_down(None, false)?;
        tokio::select! {
            biased;
            output = future => Ok(output),
            _ = &mut seat.given => Err(QueueError::Full),
        }
    }

    /// Waits for a slot. `estimate` is what calls like this one take.
    pub async fn slot(
        mut self,
        estimate: Duration,
        deadline: Instant,
    ) -> Result<Permit, QueueError> {
        let was_idle = self.inner.shares.note_use(&self.share);
        if let Some(permit) = self.take_at_once() {
            return Ok(permit);
        }
        let mut seat = self.sit_down(Some(estimate), was_idle)?;
        loop {
            // The reserve is given up when there is only one tenant left, which is not told by anybody.
            let look_again = self.inner.shares.look_again_at();
            match timeout_at(deadline.min(look_again), &mut seat.given).await {
                Ok(Ok(grant)) => return Ok(seat.leave_with(grant)),
                Ok(Err(_)) => return Err(QueueError::Full),
                Err(_) if deadline <= Instant::now() => return Err(QueueError::Expired),
                Err(_) => self.inner.change(|_| {}),
            }
        }
    }

    /// The fast path: a slot that is free, if nobody waits and the tenant may have it.
    fn take_at_once(&mut self) -> Option<Permit> {
        let inner = self.inner;
        if inner.slots.has_waiting() {
            return None;
        }
        let is_shared = inner.shares.is_shared();
        // Counted first: of two calls of a tenant that holds none, only one may have the reserve.
        let held = loop {
            match self.share.hold() {
                Some(held) => break held,
                None => self.share = inner.shares.add(&self.share.tenant),
            }
        };
        let Some(slot) = inner.slots.take_at_once(held, is_shared) else {
            self.share.let_go();
            return None;
        };
        let contended = inner.contended.load(Ordering::Relaxed);
        let grant = Grant { slot, weight: self.weight, charged: Duration::ZERO, contended };
        Some(Permit { inner: inner.clone(), share: self.share.clone(), grant, carried: None })
    }

    /// Joins those who wait. Without an estimate the call does not want a slot yet.
    fn sit_down(
        &mut self,
        estimate: Option<Duration>,
        was_idle: bool,
    ) -> Result<Seat<'a>, QueueError> {
        let inner = self.inner;
        loop {
            let (waker, given) = oneshot::channel();
            let (share, weight, bytes) = (&self.share, self.weight, self.bytes);
            let key = inner.change(|line| {
                if was_idle {
                    line.forgive(share);
                }
                let Some(sent_away) = line.make_room(share.number, bytes) else {
                    // That it tried the fast path may have been seen as a slot that it held.
                    line.arrange(share.number);
                    return Err(QueueError::Full);
                };
                (0..sent_away).for_each(|_| inner.slots.give_up());
                if estimate.is_some() {
                    // Before it is looked up what the tenant holds: a slot that is given back after that finds it waiting.
                    inner.slots.wait();
                }
                let key = line.push(Entry { share, weight, bytes, estimate, waker });
                if key.is_none() && estimate.is_some() {
                    inner.slots.give_up();
                }
                Ok(key)
            })?;
            match key {
                Some(key) => return Ok(Seat { inner, share: self.share.clone(), key, given }),
                None => self.share = inner.shares.add(&self.share.tenant),
            }
        }
    }
}

/// A call that waits, until it stops, for whatever reason.
struct Seat<'a> {
    inner: &'a Arc<Inner>,
    share: Arc<Share>,
    key: u64,
    given: oneshot::Receiver<Grant>,
}

impl Seat<'_> {
    fn leave_with(&self, grant: Grant) -> Permit {
        Permit { inner: self.inner.clone(), share: self.share.clone(), grant, carried: None }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.given.is_terminated() {
            // It has got its slot, or was sent away.
            return;
        }
        let still_there = self.inner.change(|line| {
            let left = line.leave(self.share.number, self.key);
            if left == Some(true) {
                self.inner.slots.give_up();
            }
            left.is_some()
        });
        if !still_there && let Ok(grant) = self.given.try_recv() {
            // It was given a slot in the very moment it gave up.
            drop(self.leave_with(grant));
        }
    }
}

impl Inner {
    /// Changes who waits; then gives free slots to those who may have them.
    fn change<T>(&self, change: impl FnOnce(&mut Line<oneshot::Sender<Grant>>) -> T) -> T {
        let mut waiting = self.waiting.lock();
        let result = change(&mut waiting.line);
        self.serve(&mut waiting);
        self.note_contention(&mut waiting);
        result
    }

    fn serve(&self, waiting: &mut Waiting) {
        if waiting.line.tenants_waiting() == 0 {
            return;
        }
        let contended = self.contended_until_now(waiting);
        loop {
            let line = &mut waiting.line;
            // Whoever asked lately and does not wait is another than those who do, however long ago they asked.
            let another = self.shares.last_asker().is_some_and(|number| !line.is_waiting(number));
            let is_shared = another || line.tenants_waiting() > 1 || self.shares.is_shared();
            let free = self.slots.free();
            let (slot, among) = match (free.open, free.reserved) {
                (true, _) if is_shared => (Slot::Open, Among::Below(self.slots.limit())),
                (true, _) => (Slot::Open, Among::Below(u32::MAX)),
                (false, true) if is_shared => (Slot::Reserved, Among::EmptyHanded),
                (false, true) => (Slot::Reserved, Among::Below(u32::MAX)),
                (false, false) => return,
            };
            let Some(next) = line.pop(among) else { return };
            self.slots.give(slot);
            let grant = Grant { slot, weight: next.weight, charged: next.charged, contended };
            // It waits: a call leaves the line, under this lock, before it stops listening.
            let _ = next.waker.send(grant);
        }
    }

    fn note_contention(&self, waiting: &mut Waiting) {
        match (waiting.line.tenants_waiting(), waiting.since) {
            (0, Some(_)) => {
                let contended = self.contended_until_now(waiting);
                self.contended.store(contended, Ordering::Relaxed);
                waiting.since = None;
            }
            (1.., None) => waiting.since = Some(Instant::now()),
            _ => {}
        }
    }

    fn contended_until_now(&self, waiting: &Waiting) -> u64 {
        let now = waiting.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.contended.load(Ordering::Relaxed) + now.as_nanos() as u64
    }

    /// Charges a tenant with what a call used while somebody waited.
    fn settle(&self, share: &Share, grant: Grant) {
        self.shares.note_end(share);
        let mut waiting = self.waiting.lock();
        let took = self.contended_until_now(&waiting).saturating_sub(grant.contended);
        waiting.line.correct(share, grant.weight, grant.charged, Duration::from_nanos(took));
        self.serve(&mut waiting);
        self.note_contention(&mut waiting);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // First: a tenant whose call has ended is not refused because of it.
        self.carried = None;
        let Grant { slot, charged, contended, .. } = self.grant;
        self.share.let_go();
        let somebody_waits = self.inner.slots.take_back(slot);
        let is_settled =
            charged.is_zero() && contended == self.inner.contended.load(Ordering::Relaxed);
        if somebody_waits || !is_settled {
            self.inner.settle(&self.share, self.grant);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("tenant", &self.share.tenant).finish_non_exhaustive()
    }
}
