//! The fair queue before a backend: which call gets a slot, and when.
//!
//! ```text
//!                            a slot is free and nobody waits
//!   enqueue ──▶ QueueEntry ──────────────────────────────────▶ SlotPermit ──drop──▶ slot is free
//!                   │                                              ▲                     │
//!                   │ otherwise                                    │ Grant               │
//!                   ▼                                              │                     │
//!            the tenant's own queue ──round robin of tenants──▶ dispatch ◀───────────────┘
//! ```
//!
//! - `slots`: the slots of the backend, counted in one atomic. Their number follows the instances.
//! - `round_robin`: the waiting calls, which tenant is next, and whom to evict if too many wait.
//! - `lanes`: turns among the calls of one tenant, by fairness key.
//! - `line`: the waiting calls in the order in which they will be served
//! - `dispatch`: gives free slots to waiting calls.
//! - `fair_shares`: the slots and the time that each tenant uses.
//! - `waiting`: the waiting calls of each tenant, as operators see them.
//! - `rate_gate`: limits how many calls begin in a period. Early calls wait in the same queues, and
//!   so do calls during a pause of their tenant, or of all tenants.
//!
//! No tenant may hold all slots of a backend that others may use, however long its calls take, and
//! also while it is alone. A quarter of the slots is a reserve. Tenants that hold few slots divide
//! it, and its last slot is left for a tenant that holds none. With two or three slots, the reserve
//! is lent to a tenant that is alone, for calls that end soon.
//!
//! The time that a tenant uses is charged only while somebody waits: what nobody else wants is
//! free.

mod dispatch;
mod fair_shares;
mod lanes;
mod line;
mod rate_gate;
mod round_robin;
mod slots;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::dispatch::Backlog;
pub use self::dispatch::TenantPause;
pub use self::fair_shares::part_of_reserve;
use self::fair_shares::{FairShares, Share};
pub use self::lanes::{FairnessKey, Lanes};
pub use self::line::QueueView;
pub use self::rate_gate::RateGate;
pub use self::round_robin::{WAITING_BYTES_MAX, WAITING_MAX};
pub use self::slots::reserved_of;
use self::slots::{Claim, SlotKind, Slots};
pub use self::waiting::{DescribeCall, WaitingCall, WaitingCalls, WaitingInfo};
use crate::common::ids::TenantId;
use crate::events::Ahead;

pub struct Queue {
    slots: Slots,
    /// Several queues may share one gate.
    gate: Option<Arc<RateGate>>,
    shares: FairShares,
    backlog: Mutex<Backlog>,
    /// The total time during which somebody waited, in nanoseconds. Updated when the last call
    /// stops waiting.
    contended: AtomicU64,
    /// The runtime of the waiting calls. A permit may be dropped outside of it.
    runtime: OnceLock<Handle>,
    /// The longest time for which the last of two or three slots is lent.
    lend_max: Duration,
}

pub struct QueueOptions {
    /// Limits how many calls begin in a period.
    pub gate: Option<Arc<RateGate>>,
    /// Whether several tenants may use the backend, so that slots are kept for others.
    pub is_shared: bool,
    /// The longest time for which the last of two or three slots is lent.
    pub lend_max: Duration,
}

/// A queue of many tenants without a gate.
impl Default for QueueOptions {
    fn default() -> Self {
        Self { gate: None, is_shared: true, lend_max: Duration::from_secs(30) }
    }
}

/// One slot of the backend, until dropped.
pub struct SlotPermit {
    queue: Arc<Queue>,
    share: Arc<Share>,
    grant: Grant,
}

/// A slot that was given to a call, and what is needed to charge for it when it comes back.
#[derive(Clone, Copy)]
struct Grant {
    slot: SlotKind,
    weight: u32,
    /// The time that the tenant was charged in advance.
    charged: Duration,
    /// The least time that the tenant is charged in the end.
    min_charge: Duration,
    /// [`Queue::contended`] when the slot was given.
    contended: u64,
}

/// The end of a wait in the backlog.
type Granted = Result<Grant, QueueError>;

/// Why a call got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueError {
    /// Too many calls wait.
    Full,
    /// The deadline passed first.
    Expired,
    /// An operator has cancelled the call.
    Cancelled,
}

impl Queue {
    pub fn new(slots: usize, options: QueueOptions) -> Arc<Self> {
        let QueueOptions { gate, is_shared, lend_max } = options;
        Arc::new(Self {
            slots: Slots::new(slots, is_shared),
            gate,
            shares: FairShares::default(),
            backlog: Mutex::default(),
            contended: AtomicU64::new(0),
            runtime: OnceLock::new(),
            lend_max,
        })
    }

    /// Changes the number of slots. Waiting calls get new slots at once; slots that are taken and
    /// too many disappear when they come back. `left_free` of the slots are not given out for now.
    /// Tenants that hold none may still use the whole reserve: they need not wait for others'
    /// calls.
    pub fn set_slots(self: &Arc<Self>, slots: usize, left_free: usize) {
        self.update(|_| self.slots.resize(slots, left_free));
    }

    /// Returns whether calls wait and all slots are taken, or all but the reserve.
    pub fn is_starved(&self) -> bool {
        self.slots.is_starved()
    }

    /// Makes the entry of a call with so many bytes. When slots are scarce, tenants get them in
    /// proportion to their weights.
    pub fn enqueue(
        self: &Arc<Self>,
        tenant: &TenantId,
        weight: u32,
        bytes: usize,
    ) -> QueueEntry<'_> {
        let (share, weight) = (self.shares.of(tenant), weight.max(1));
        QueueEntry {
            queue: self,
            share,
            weight,
            bytes,
            fairness_key: FairnessKey::default(),
            call: None,
        }
    }
}

/// The wish of a waiting call for a slot.
#[derive(Clone, Copy)]
struct SlotRequest {
    /// The usual duration of such a call.
    estimate: Duration,
    /// Whether the call's deadline allows to lend it the last slot.
    ends_soon: bool,
}

/// A call that has no slot yet.
pub struct QueueEntry<'a> {
    queue: &'a Arc<Queue>,
    share: Arc<Share>,
    weight: u32,
    bytes: usize,
    fairness_key: FairnessKey,
    call: Option<&'a dyn DescribeCall>,
}

impl<'a> QueueEntry<'a> {
    /// Has the call take turns with its tenant's other calls by this key.
    pub fn keyed(self, fairness_key: FairnessKey) -> Self {
        Self { fairness_key, ..self }
    }

    /// Names the call to operators, should it have to wait.
    pub fn of(self, call: &'a dyn DescribeCall) -> Self {
        Self { call: Some(call), ..self }
    }

    /// Waits for something else first, such as the server's start. Meanwhile the call counts as
    /// waiting, and may be evicted like any other.
    pub async fn wait_for<T>(&mut self, future: impl Future<Output = T>) -> Result<T, QueueError> {
        let mut future = std::pin::pin!(future);
        if let Some(output) = poll_immediate(&mut future).await {
            return Ok(output);
        }
        let mut waiting = self.wait(None, false)?;
        tokio::select! {
            biased;
            output = future => Ok(output),
            ended = &mut waiting.grant => {
                Err(ended.ok().and_then(Result::err).unwrap_or(QueueError::Full))
            }
        }
    }

    /// Waits for a slot. `estimate` is the usual duration of such a call.
    pub async fn acquire(
        self,
        estimate: Duration,
        deadline: Instant,
    ) -> Result<SlotPermit, QueueError> {
        self.acquire_or_wait(estimate, deadline, |_| {}).await
    }

    /// Waits like [`Self::acquire`]. Tells `must_wait` first if there is no slot at once.
    pub async fn acquire_or_wait(
        mut self,
        estimate: Duration,
        deadline: Instant,
        must_wait: impl FnOnce(Ahead),
    ) -> Result<SlotPermit, QueueError> {
        let was_idle = self.queue.shares.note_request(&self.share);
        let ends_soon = deadline <= Instant::now() + self.queue.lend_max;
        if let Some(permit) = self.try_acquire(ends_soon) {
            return Ok(permit);
        }
        must_wait(self.ahead());
        let request = SlotRequest { estimate, ends_soon };
        let mut waiting = self.wait(Some(request), was_idle)?;
        loop {
            // The reserve is lent when only one tenant is left, which is no event of its own.
            let recheck = self.queue.shares.recheck_at();
            match timeout_at(deadline.min(recheck), &mut waiting.grant).await {
                Ok(Ok(granted)) => return granted.map(|grant| waiting.permit(grant)),
                Ok(Err(_)) => return Err(QueueError::Full),
                Err(_) if deadline <= Instant::now() => return Err(QueueError::Expired),
                Err(_) => self.queue.update(|_| {}),
            }
        }
    }

    /// Takes a slot without a lock, if nobody waits and the tenant may have one.
    fn try_acquire(&mut self, ends_soon: bool) -> Option<SlotPermit> {
        let queue = self.queue;
        if queue.slots.has_waiting() {
            return None;
        }
        // Counted first: of two calls of a tenant that holds none, only one may use the reserve.
        let held = loop {
            match self.share.add_slot() {
                Some(held) => break held,
                None => self.share = queue.shares.add(&self.share.tenant),
            }
        };
        let claim = Claim {
            held,
            part: &|| queue.shares.part_of_reserve(queue.slots.reserved()),
            may_borrow: &|| ends_soon && !queue.shares.others_active(&self.share),
        };
        let Some(slot) = queue.slots.try_take(&claim) else {
            self.share.remove_slot();
            return None;
        };
        if queue.gate.as_ref().is_some_and(|gate| gate.try_pass().is_err()) {
            // The call waits now. That also serves calls that came meanwhile and found no slot.
            self.share.remove_slot();
            queue.slots.release(slot);
            return None;
        }
        let contended = queue.contended.load(Ordering::Relaxed);
        let (weight, charged, min_charge) = (self.weight, Duration::ZERO, Duration::ZERO);
        let grant = Grant { slot, weight, charged, min_charge, contended };
        Some(SlotPermit { queue: queue.clone(), share: self.share.clone(), grant })
    }

    /// Returns the calls that wait already, and the slots.
    fn ahead(&self) -> Ahead {
        let (slots, held) = (&self.queue.slots, self.share.slots());
        let (own, all) = self.queue.backlog.lock().round_robin.waiting(self.share.number);
        Ahead { own, others: all - own, held, taken: slots.taken(), slots: slots.size() }
    }

    /// Adds the call to the backlog. Without a request it does not want a slot yet.
    fn wait(
        &mut self,
        request: Option<SlotRequest>,
        was_idle: bool,
    ) -> Result<WaitGuard<'a>, QueueError> {
        let queue = self.queue;
        queue.runtime.get_or_init(Handle::current);
        loop {
            let (sender, grant) = oneshot::channel();
            let share = &self.share;
            let number = queue.update(|round_robin| {
                if was_idle {
                    round_robin.reset_account(share);
                }
                let Some(evicted) = round_robin.ensure_capacity(share.number, self.bytes) else {
                    // Its attempt at the fast path may have been seen as a slot that it held.
                    round_robin.reposition(share.number);
                    return Err(QueueError::Full);
                };
                queue.slots.remove_waiting(evicted);
                if request.is_some() {
                    // Before the tenant's slots are counted: a slot released after that finds the
                    // call waiting.
                    queue.slots.add_waiting();
                }
                let number = round_robin.push(self, request, Instant::now(), sender);
                if number.is_none() && request.is_some() {
                    queue.slots.remove_waiting(1);
                }
                Ok(number)
            })?;
            match number {
                Some(number) => {
                    let (share, fairness_key) = (share.clone(), self.fairness_key);
                    return Ok(WaitGuard { queue, share, fairness_key, number, grant });
                }
                None => self.share = queue.shares.add(&self.share.tenant),
            }
        }
    }
}

/// A call in the backlog. Dropping it takes the call out.
struct WaitGuard<'a> {
    queue: &'a Arc<Queue>,
    share: Arc<Share>,
    fairness_key: FairnessKey,
    number: u64,
    grant: oneshot::Receiver<Granted>,
}

impl WaitGuard<'_> {
    fn permit(&self, grant: Grant) -> SlotPermit {
        SlotPermit { queue: self.queue.clone(), share: self.share.clone(), grant }
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.grant.is_terminated() {
            // It has got its slot, or was evicted.
            return;
        }
        let was_waiting = self.queue.update(|round_robin| {
            let wanted_slot = round_robin.remove(self.share.number, self.fairness_key, self.number);
            if wanted_slot == Some(true) {
                self.queue.slots.remove_waiting(1);
            }
            wanted_slot.is_some()
        });
        if !was_waiting && let Ok(Ok(grant)) = self.grant.try_recv() {
            // It was given a slot in the very moment it stopped waiting.
            drop(self.permit(grant));
        }
    }
}

impl SlotPermit {
    /// Returns the way to pause the tenant's calls, if the server refuses this one.
    pub fn tenant_pause(&self) -> TenantPause {
        TenantPause { queue: self.queue.clone(), share: self.share.clone() }
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        let Grant { slot, charged, contended, .. } = self.grant;
        self.share.remove_slot();
        let has_waiting = self.queue.slots.release(slot);
        let owes_nothing =
            charged.is_zero() && contended == self.queue.contended.load(Ordering::Relaxed);
        if has_waiting || !owes_nothing {
            self.queue.charge(&self.share, self.grant);
        }
    }
}
