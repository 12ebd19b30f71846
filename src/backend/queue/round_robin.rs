//! The waiting calls: which tenant is next, and whom to evict if too many wait. Plain data: no
//! clock, no lock.
//!
//! Tenants are served by deficit round robin, measured in time of a slot. In each round a tenant
//! may use one quantum per unit of its weight. A call is charged its estimate when it gets a slot,
//! and the difference to its real duration when it ends. So a tenant with slow calls gets as much
//! of the backend as a tenant with quick ones, not as many calls.
//!
//! Rounds in which nobody would be served are skipped. A tenant's account is the time it has used
//! per unit of its weight; its round is the account divided by the quantum. The tenant in the
//! earliest round is next, so one that has used more than its part waits until the others have
//! caught up.
//!
//! The bounds on waiting calls are for all tenants together. The tenant with most is evicted in
//! favour of tenants with less, so a quiet tenant is never refused because another one fills the
//! queue.

use std::collections::{BTreeMap, HashMap, VecDeque, hash_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fair_shares::Share;
use super::lanes::{FairnessKey, Lanes};
use super::slots::SlotKind;
use super::waiting::{WaitingCalls, WaitingInfo};
use super::{Granted, QueueEntry, SlotRequest};

/// Calls that may wait for one backend. With more, waiting would only make the answers later.
pub const WAITING_MAX: usize = 4096;
/// Bytes of arguments that may wait for one backend.
pub const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The time that a tenant of weight 1 may use in one round. Short compared with most calls, so that
/// rounds are fair.
pub(super) const QUANTUM: Duration = Duration::from_micros(100);
/// The most that a tenant can be behind others for the time it has used.
const DEBT_MAX: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct RoundRobin {
    /// By the number of their shares.
    pub(super) tenants: HashMap<u32, TenantQueue>,
    /// The tenants that wait for a slot, by turns: those that hold none, and the others.
    holding_none: BTreeMap<Turn, u32>,
    holding_some: BTreeMap<Turn, u32>,
    /// The tenant that has no turn for now, although it may wait.
    held_back: Option<u32>,
    /// The account of the tenant that was last served in its turn. New tenants start there.
    pub(super) level: u64,
    /// Numbers calls and turns as they come.
    pub(super) next_number: u64,
    /// All calls, those that do not want a slot yet included, and their bytes.
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// The waiting calls of one tenant.
pub(super) struct TenantQueue {
    pub(super) share: Arc<Share>,
    pub(super) weight: u32,
    pub(super) turn: Option<Turn>,
    /// Whether its turn is in `holding_none`.
    holds_none: bool,
    /// Whether it was skipped because it held as many slots as it may.
    pub(super) was_skipped: bool,
    /// The calls that want a slot.
    pub(super) calls: Lanes<QueuedCall>,
    /// The calls that wait for something else before they want a slot, oldest first.
    pub(super) early: VecDeque<QueuedCall>,
    bytes: usize,
}

pub(super) struct QueuedCall {
    /// The order in which calls came.
    pub(super) number: u64,
    pub(super) since: Instant,
    pub(super) bytes: usize,
    /// `None` for a call that does not want a slot yet.
    pub(super) request: Option<SlotRequest>,
    pub(super) sender: oneshot::Sender<Granted>,
    pub(super) info: Option<Box<WaitingInfo>>,
}

/// A position in the order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) round: u64,
    pub(super) number: u64,
}

/// The call that is served next.
pub(super) struct NextCall {
    pub(super) weight: u32,
    /// The time that its tenant was charged.
    pub(super) charged: Duration,
    pub(super) sender: oneshot::Sender<Granted>,
}

/// A free slot for tenants that hold fewer than `below`.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    pub(super) slot: SlotKind,
    pub(super) below: u32,
}

impl RoundRobin {
    /// Makes room for one more call of a tenant, with so many bytes, by evicting the newest calls
    /// of the tenants that have most. Returns how many of the evicted calls wanted a slot. Evicts
    /// none and returns `None` if that would not make enough room.
    pub(super) fn ensure_capacity(&mut self, number: u32, bytes: usize) -> Option<u64> {
        let (calls_then, bytes_then) = match self.tenants.get(&number) {
            Some(queue) => (queue.len() + 1, queue.bytes + bytes),
            None => (1, bytes),
        };
        let is_over = |this: &Self| this.bytes + bytes > WAITING_BYTES_MAX;
        if is_over(self) {
            let missing = self.bytes + bytes - WAITING_BYTES_MAX;
            let queues = self.tenants.values();
            let surplus: usize = queues.map(|queue| queue.bytes.saturating_sub(bytes_then)).sum();
            if surplus < missing {
                return None;
            }
        } else if self.calls >= WAITING_MAX {
            let most = self.tenants.values().map(TenantQueue::len).max().unwrap_or(0);
            if most <= calls_then {
                return None;
            }
        }
        let mut evicted = 0;
        while is_over(self) {
            evicted += u64::from(self.evict_one(|queue| queue.bytes));
        }
        if self.calls >= WAITING_MAX {
            evicted += u64::from(self.evict_one(TenantQueue::len));
        }
        Some(evicted)
    }

    /// Evicts the newest call of the tenant that has most; returns whether it wanted a slot.
    fn evict_one(&mut self, measure: impl Fn(&TenantQueue) -> usize) -> bool {
        let most = self.tenants.iter_mut().max_by_key(|(number, queue)| (measure(queue), **number));
        let Some((&number, queue)) = most else { return false };
        let wanted_slot = queue.calls.newest() > queue.early.back().map(|call| call.number);
        let call = if wanted_slot { queue.calls.evict_newest() } else { queue.early.pop_back() };
        if let Some(call) = call {
            self.note_removed(number, call.bytes);
        }
        wanted_slot
    }

    /// Returns the waiting calls of each tenant.
    pub(super) fn by_tenant(&self) -> impl Iterator<Item = WaitingCalls> {
        self.tenants.values().filter_map(|queue| {
            let oldest = queue.calls.oldest().chain(queue.early.front()).map(|call| call.since);
            let calls = queue.calls.len() + queue.early.len();
            Some(WaitingCalls { tenant: queue.share.tenant.clone(), calls, since: oldest.min()? })
        })
    }

    /// Returns how many calls of a tenant wait, and how many of all.
    pub(super) fn waiting(&self, number: u32) -> (u32, u32) {
        let own = self.tenants.get(&number).map_or(0, TenantQueue::len);
        (own as u32, self.calls as u32)
    }

    /// Adds a call to its tenant's queue; without a request it does not want a slot yet. Returns
    /// the number to remove the call with, or `None` if the share is retired.
    pub(super) fn push(
        &mut self,
        entry: &QueueEntry<'_>,
        request: Option<SlotRequest>,
        now: Instant,
        sender: oneshot::Sender<Granted>,
    ) -> Option<u64> {
        let (share, bytes) = (&entry.share, entry.bytes);
        let queue = match self.tenants.entry(share.number) {
            hash_map::Entry::Occupied(queue) => queue.into_mut(),
            hash_map::Entry::Vacant(_) if !share.hold() => return None,
            hash_map::Entry::Vacant(vacant) => vacant.insert(TenantQueue::new(share.clone())),
        };
        let number = self.next_number;
        self.next_number += 1;
        self.calls += 1;
        self.bytes += bytes;
        queue.bytes += bytes;
        queue.weight = entry.weight;
        let info = entry.call.map(|call| Box::new(call.describe()));
        let call = QueuedCall { number, since: now, bytes, request, sender, info };
        if request.is_none() {
            queue.early.push_back(call);
            return Some(number);
        }
        queue.calls.push(entry.fairness_key, call);
        if queue.turn.is_none() {
            // Time that the tenant did not use while it was away is lost.
            share.account.fetch_max(self.level, Ordering::Relaxed);
        }
        self.reposition(share.number);
        Some(number)
    }

    /// Removes a call that no longer waits. Returns whether it wanted a slot, or `None` if it was
    /// removed before.
    pub(super) fn remove(&mut self, share: u32, key: FairnessKey, number: u64) -> Option<bool> {
        self.take(share, key, number).map(|call| call.request.is_some())
    }

    /// Takes a waiting call out.
    pub(super) fn take(&mut self, share: u32, key: FairnessKey, number: u64) -> Option<QueuedCall> {
        let queue = self.tenants.get_mut(&share)?;
        let call = queue.calls.remove(key, number).or_else(|| {
            let place = queue.early.binary_search_by_key(&number, |call| call.number).ok()?;
            queue.early.remove(place)
        })?;
        self.note_removed(share, call.bytes);
        Some(call)
    }

    /// Removes the call that is served next, and charges its tenant no less than `min_charge`. The
    /// tenant holds one more slot from here on.
    pub(super) fn pop(&mut self, offer: Offer, min_charge: Duration) -> Option<NextCall> {
        let number = self.next_tenant(offer)?;
        let queue = self.tenants.get_mut(&number)?;
        let (_, call) = queue.calls.pop()?;
        let account = &queue.share.account;
        if std::mem::take(&mut queue.was_skipped) {
            // It held enough meanwhile: having been skipped entitles it to nothing.
            account.fetch_max(self.level, Ordering::Relaxed);
        }
        if offer.slot == SlotKind::Open {
            // A slot of the reserve is given out of turn.
            self.level = self.level.max(account.load(Ordering::Relaxed));
        }
        // Never zero: turns must end.
        let estimate = call.request.map_or(Duration::ZERO, |request| request.estimate);
        let charged = estimate.max(QUANTUM).max(min_charge);
        account.fetch_add(per_weight(charged, queue.weight), Ordering::Relaxed);
        queue.share.add_slot();
        let weight = queue.weight;
        self.note_removed(number, call.bytes);
        Some(NextCall { weight, charged, sender: call.sender })
    }

    /// Returns the tenant that is served next.
    pub(super) fn next_tenant(&mut self, offer: Offer) -> Option<u32> {
        let none = self.holding_none.first_key_value();
        if offer.slot == SlotKind::Reserved && offer.below == 1 {
            return none.map(|(_, &number)| number);
        }
        let mut some = None;
        // Rarely skips many: two tenants can be at the limit only if that is one slot, and the
        // parts of the reserve become one slot when many tenants hold some.
        for (turn, &number) in &self.holding_some {
            let queue = self.tenants.get_mut(&number)?;
            if queue.share.slots() < offer.below {
                some = Some((turn, number));
                break;
            }
            queue.was_skipped |= offer.slot == SlotKind::Open;
        }
        match (none, some) {
            (Some((turn, _)), Some((other, number))) if other < turn => Some(number),
            (Some((_, &number)), _) | (None, Some((_, number))) => Some(number),
            (None, None) => None,
        }
    }

    /// Replaces the charge of a call that has ended by the time it took.
    pub(super) fn charge(&mut self, share: &Share, weight: u32, charged: Duration, took: Duration) {
        let before = share.account.load(Ordering::Relaxed);
        let after = (before + per_weight(took, weight))
            .saturating_sub(per_weight(charged, weight))
            .min(before.max(self.level + DEBT_MAX.as_nanos() as u64));
        share.account.store(after, Ordering::Relaxed);
        self.reposition(share.number);
    }

    /// Forgets the time that a tenant has used, unless it waits.
    pub(super) fn reset_account(&mut self, share: &Share) {
        if !self.tenants.contains_key(&share.number) {
            share.account.store(0, Ordering::Relaxed);
        }
    }

    /// Serves this tenant no more, and the one before it again.
    pub(super) fn hold_back(&mut self, number: Option<u32>) {
        let before = std::mem::replace(&mut self.held_back, number);
        before.into_iter().chain(number).for_each(|number| self.reposition(number));
    }

    /// Returns whether calls wait that are not served for now.
    pub(super) fn holds_back_calls(&self) -> bool {
        let queue = self.held_back.and_then(|number| self.tenants.get(&number));
        queue.is_some_and(|queue| !queue.calls.is_empty())
    }

    /// Updates a tenant's turn after a change of its slots, its account or its calls.
    pub(super) fn reposition(&mut self, number: u32) {
        let Some(queue) = self.tenants.get_mut(&number) else { return };
        let before = queue.turn.take();
        if let Some(turn) = before {
            let turns =
                if queue.holds_none { &mut self.holding_none } else { &mut self.holding_some };
            turns.remove(&turn);
        }
        if queue.calls.is_empty() || self.held_back == Some(number) {
            return;
        }
        let round = queue.share.account.load(Ordering::Relaxed) / QUANTUM.as_nanos() as u64;
        let turn = before.filter(|turn| turn.round == round).unwrap_or_else(|| {
            self.next_number += 1;
            Turn { round, number: self.next_number }
        });
        queue.turn = Some(turn);
        queue.holds_none = queue.share.slots() == 0;
        let turns = if queue.holds_none { &mut self.holding_none } else { &mut self.holding_some };
        turns.insert(turn, number);
    }

    /// Updates the counts after one of a tenant's calls was removed.
    fn note_removed(&mut self, number: u32, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
        self.reposition(number);
        let Some(queue) = self.tenants.get_mut(&number) else { return };
        queue.bytes -= bytes;
        if queue.len() == 0 {
            queue.share.release();
            self.tenants.remove(&number);
        }
    }

    /// Returns the tenant that waits for a slot, if there is only one, and whether its next call
    /// ends soon.
    pub(super) fn only_tenant(&self) -> Option<(&Share, bool)> {
        let mut numbers = self.holding_none.values().chain(self.holding_some.values());
        let (number, None) = (numbers.next()?, numbers.next()) else { return None };
        let queue = self.tenants.get(number)?;
        let ends_soon = queue.calls.front()?.request.is_some_and(|request| request.ends_soon);
        Some((&queue.share, ends_soon))
    }

    /// Returns whether no tenant waits for a slot, except one that is held back.
    pub(super) fn is_empty(&self) -> bool {
        self.holding_none.is_empty() && self.holding_some.is_empty()
    }
}

impl TenantQueue {
    fn new(share: Arc<Share>) -> Self {
        Self {
            share,
            weight: 1,
            turn: None,
            holds_none: false,
            was_skipped: false,
            calls: Lanes::default(),
            early: VecDeque::new(),
            bytes: 0,
        }
    }

    fn len(&self) -> usize {
        self.calls.len() + self.early.len()
    }
}

pub(super) fn per_weight(time: Duration, weight: u32) -> u64 {
    time.as_nanos() as u64 / u64::from(weight)
}
