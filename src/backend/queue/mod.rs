//! Who may use a server now, and who waits.
//!
//! A server takes so many calls at once, which may change as its instances come and go ([`slots`]). As long as nobody
//! waits, a call takes a slot without a lock. Otherwise it waits in its tenant's own line, and slots go round among the
//! tenants ([`mod@line`]), as they become free ([`serving`]). How many may wait is bounded ([`room`]). With one slot this
//! makes a strictly serial server.
//!
//! A server may have a rate ([`gate`]) or be paused: what comes too early waits in the same lines.
//!
//! Where tenants share a server, no tenant may hold all of its slots, however long its calls take: a quarter of them
//! is a reserve that only tenants have which hold none ([`slots`]). They share it as long as two of them have asked for
//! slots lately, wait for some or hold some.
//!
//! What tenants use counts only while somebody waits: what nobody else wanted is free.

mod capacity;
mod dispatch;
mod fair_shares;
mod rate_gate;
mod round_robin;
mod slots;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

pub use self::capacity::{WAITING_BYTES_MAX, WAITING_MAX};
use self::dispatch::Waiting;
use self::fair_shares::{Share, Shares};
pub use self::rate_gate::Gate;
use self::round_robin::Entry;
pub use self::slots::reserved_of;
use self::slots::{Slot, Slots};
use crate::common::ids::TenantId;
use crate::common::policy::Rate;

/// The slots of one server, and the lines before them.
pub struct Queue {
    inner: Arc<Inner>,
}

struct Inner {
    slots: Slots,
    /// What lets only so many through in a time, if anything does. Other queues may have the same.
    gate: Option<Arc<Gate>>,
    shares: Shares,
    waiting: Mutex<Waiting>,
    /// For how long somebody has waited, in nanoseconds, all such times together. Brought up to date when the last one
    /// stops waiting.
    contended: AtomicU64,
    /// Where calls wait. A slot may come back elsewhere.
    runtime: OnceLock<Handle>,
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
    /// What it is to be charged with at least.
    least: Duration,
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
    /// A queue before so many slots.
    pub fn new(slots: usize) -> Self {
        Self::with_rate(slots, None)
    }

    /// The same, where only so many calls may begin in a time, over all tenants.
    pub fn with_rate(slots: usize, rate: Option<Rate>) -> Self {
        Self::with_gate(slots, rate.map(|rate| Arc::new(Gate::new(rate))))
    }

    /// The same, where others may have the same gate.
    pub fn with_gate(slots: usize, gate: Option<Arc<Gate>>) -> Self {
        let inner = Inner {
            slots: Slots::new(slots),
            gate,
            shares: Shares::default(),
            waiting: Mutex::default(),
            contended: AtomicU64::new(0),
            runtime: OnceLock::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// From now on there are so many slots; none, if there is nobody to be asked. Those who wait get new ones at once.
    /// Taken ones that are too many go when they come back.
    pub fn set_slots(&self, slots: usize) {
        self.set_slots_but(slots, 0);
    }

    /// The same, where some are to be left free for now. Tenants that hold none have the whole reserve all the same: they
    /// do not wait until others' calls have ended.
    pub fn set_slots_but(&self, slots: usize, left_free: usize) {
        self.inner.change(|_| self.inner.slots.resize(slots, left_free));
    }

    /// No call begins until then. A pause is never made shorter.
    pub fn pause_until(&self, until: Instant) {
        self.inner.pause_until(until);
    }

    /// A call with so many bytes wants to use the server. A tenant's `weight` is its part where there is not enough
    /// for all.
    pub fn line_up(&self, tenant: &TenantId, weight: u32, bytes: usize) -> InLine<'_> {
        let inner = &self.inner;
        InLine { inner, share: inner.shares.of(tenant), weight: weight.max(1), bytes }
    }
}

/// A call before it has its slot.
pub struct InLine<'a> {
    inner: &'a Arc<Inner>,
    share: Arc<Share>,
    weight: u32,
    bytes: usize,
}

impl<'a> InLine<'a> {
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
        // Counted first: of two calls of a tenant that holds none, only one may have the reserve.
        let held = loop {
            match self.share.hold() {
                Some(held) => break held,
                None => self.share = inner.shares.add(&self.share.tenant),
            }
        };
        let others_came = || inner.shares.others_came(&self.share);
        let Some(slot) = inner.slots.take_at_once(held, others_came) else {
            self.share.let_go();
            return None;
        };
        if inner.gate.as_ref().is_some_and(|gate| gate.pass().is_err()) {
            // It will wait now; whoever came meanwhile and found no slot is served then.
            self.share.let_go();
            inner.slots.take_back(slot);
            return None;
        }
        let contended = inner.contended.load(Ordering::Relaxed);
        let (weight, charged, least) = (self.weight, Duration::ZERO, Duration::ZERO);
        let grant = Grant { slot, weight, charged, least, contended };
        Some(Permit { inner: inner.clone(), share: self.share.clone(), grant, carried: None })
    }

    /// Joins those who wait. Without an estimate the call does not want a slot yet.
    fn sit_down(
        &mut self,
        estimate: Option<Duration>,
        was_idle: bool,
    ) -> Result<Seat<'a>, QueueError> {
        let inner = self.inner;
        inner.runtime.get_or_init(Handle::current);
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
