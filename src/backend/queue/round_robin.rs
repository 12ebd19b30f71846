//! Whose turn it is. Plain data: no clock, no channel, no lock.
//!
//! Tenants that wait are served by deficit round robin. In each round a tenant may use a quantum for each unit of its
//! weight, in time of a slot: a call is charged with what calls like it take, and when it has ended with what it
//! really took. So a tenant with slow calls gets as much of the server as one with quick calls, not as many calls.
//! A tenant that has used more than its rounds so far gave it is next in the round that makes up for it; rounds in
//! which nobody would be served are not gone through one by one. Hence an account is what a tenant has used for each
//! unit of its weight, its round is that divided by the quantum, and the tenant in the earliest round is next.

use std::collections::{BTreeMap, HashMap, VecDeque, hash_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fair_shares::Share;

/// What a tenant of weight 1 may use in one round. Small against most calls, so that rounds are fair.
const QUANTUM: Duration = Duration::from_micros(100);
/// The most that a tenant can be behind others for what it has used.
const DEBT_MAX: Duration = Duration::from_secs(3600);

/// Those who wait for one server.
pub(super) struct Line<W> {
    pub(super) tenants: HashMap<u32, Waiting<W>>,
    /// Tenants whose calls want a slot, by turns: those that hold none, and the others.
    empty_handed: BTreeMap<Turn, u32>,
    others: BTreeMap<Turn, u32>,
    /// The account of the tenant that was last served in its turn. Newcomers begin there.
    level: u64,
    /// Calls and turns are numbered as they come.
    next: u64,
    /// All calls here, those that do not want a slot yet included, and their bytes.
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// What one tenant has here.
pub(super) struct Waiting<W> {
    share: Arc<Share>,
    weight: u32,
    turn: Option<Turn>,
    /// Which of the two it is in.
    is_empty_handed: bool,
    /// It was passed over, holding as much as it may.
    was_passed_over: bool,
    /// The calls that want a slot, and those that wait for something else first, in the order they came.
    pub(super) calls: VecDeque<Waiter<W>>,
    pub(super) early: VecDeque<Waiter<W>>,
    pub(super) bytes: usize,
}

pub(super) struct Waiter<W> {
    pub(super) key: u64,
    pub(super) bytes: usize,
    estimate: Duration,
    waker: W,
}

/// A place in the order of service: the round, and the order within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    round: u64,
    number: u64,
}

/// What a call brings with it.
pub(super) struct Entry<'a, W> {
    pub(super) share: &'a Arc<Share>,
    pub(super) weight: u32,
    pub(super) bytes: usize,
    /// What calls like it take; `None` if it does not want a slot yet.
    pub(super) estimate: Option<Duration>,
    pub(super) waker: W,
}

/// A call whose turn it is.
pub(super) struct Next<W> {
    pub(super) weight: u32,
    /// What its tenant was charged with.
    pub(super) charged: Duration,
    pub(super) waker: W,
}

/// Who may be served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    /// Whoever holds less than this.
    Below(u32),
    /// Tenants that hold nothing.
    EmptyHanded,
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self {
            tenants: HashMap::new(),
            empty_handed: BTreeMap::new(),
            others: BTreeMap::new(),
            level: 0,
            next: 0,
            calls: 0,
            bytes: 0,
        }
    }
}

impl<W> Line<W> {
    /// Puts a call at the end of its tenant's own line. Gives the key to leave with, or nothing if the share is
    /// retired.
    pub(super) fn push(&mut self, entry: Entry<'_, W>) -> Option<u64> {
        let number = entry.share.number;
        let waiting = match self.tenants.entry(number) {
            hash_map::Entry::Occupied(waiting) => waiting.into_mut(),
            hash_map::Entry::Vacant(_) if !entry.share.pin() => return None,
            hash_map::Entry::Vacant(empty) => empty.insert(Waiting::new(entry.share.clone())),
        };
        let key = self.next;
        self.next += 1;
        self.calls += 1;
        self.bytes += entry.bytes;
        waiting.bytes += entry.bytes;
        waiting.weight = entry.weight.max(1);
        let estimate = entry.estimate.unwrap_or_default();
        let waiter = Waiter { key, bytes: entry.bytes, estimate, waker: entry.waker };
        if entry.estimate.is_some() {
            waiting.calls.push_back(waiter);
            if waiting.turn.is_none() {
                // What it did not use while it was away is lost.
                waiting.share.account.fetch_max(self.level, Ordering::Relaxed);
            }
            self.arrange(number);
        } else {
            waiting.early.push_back(waiter);
        }
        Some(key)
    }

    /// Takes a call out that no longer wants to wait. Tells, if it still did, whether it wanted a slot.
    pub(super) fn leave(&mut self, number: u32, key: u64) -> Option<bool> {
        let waiting = self.tenants.get_mut(&number)?;
        let at = |calls: &VecDeque<Waiter<W>>| calls.binary_search_by_key(&key, |it| it.key).ok();
        let (waiter, wanted_slot) = match (at(&waiting.calls), at(&waiting.early)) {
            (Some(at), _) => (waiting.calls.remove(at)?, true),
            (None, Some(at)) => (waiting.early.remove(at)?, false),
            (None, None) => return None,
        };
        self.gone(number, waiter.bytes);
        Some(wanted_slot)
    }

    /// Whether there is one to be served.
    pub(super) fn has_next(&mut self, among: Among) -> bool {
        self.next_among(among).is_some()
    }

    /// The next call to be served, charged with no less than `least`. Its tenant holds one more from here on.
    pub(super) fn pop(&mut self, among: Among, least: Duration) -> Option<Next<W>> {
        let number = self.next_among(among)?;
        let waiting = self.tenants.get_mut(&number)?;
        let waiter = waiting.calls.pop_front()?;
        let account = &waiting.share.account;
        if std::mem::take(&mut waiting.was_passed_over) {
            // It held enough meanwhile: that it was not served does not entitle it to anything.
            account.fetch_max(self.level, Ordering::Relaxed);
        }
        if among != Among::EmptyHanded {
            self.level = self.level.max(account.load(Ordering::Relaxed));
        }
        // Never nothing: turns must end.
        let charged = waiter.estimate.max(QUANTUM).max(least);
        account.fetch_add(per_weight(charged, waiting.weight), Ordering::Relaxed);
        waiting.share.hold();
        let weight = waiting.weight;
        self.gone(number, waiter.bytes);
        Some(Next { weight, charged, waker: waiter.waker })
    }

    fn next_among(&mut self, among: Among) -> Option<u32> {
        let empty_handed = self.empty_handed.first_key_value();
        let Among::Below(limit) = among else { return empty_handed.map(|(_, &number)| number) };
        let mut other = None;
        // Hardly ever more than one is passed over: two can hold as much as they may only where that is one slot.
        for (turn, &number) in &self.others {
            let waiting = self.tenants.get_mut(&number)?;
            if waiting.share.held() < limit {
                other = Some((turn, number));
                break;
            }
            waiting.was_passed_over = true;
        }
        match (empty_handed, other) {
            (Some((turn, _)), Some((other, number))) if other < turn => Some(number),
            (Some((_, &number)), _) | (None, Some((_, number))) => Some(number),
            (None, None) => None,
        }
    }

    /// Charges a tenant with the difference when a call has ended, whether or not others of its calls wait.
    pub(super) fn correct(
        &mut self,
        share: &Share,
        weight: u32,
        charged: Duration,
        took: Duration,
    ) {
        let before = share.account.load(Ordering::Relaxed);
        let after = (before + per_weight(took, weight))
            .saturating_sub(per_weight(charged, weight))
            .min(before.max(self.level + DEBT_MAX.as_nanos() as u64));
        share.account.store(after, Ordering::Relaxed);
        self.arrange(share.number);
    }

    /// Forgets what a tenant has used, unless it waits.
    pub(super) fn forgive(&mut self, share: &Share) {
        if !self.tenants.contains_key(&share.number) {
            share.account.store(0, Ordering::Relaxed);
        }
    }

    /// Puts a tenant where it belongs, after what it holds, has used or waits for has changed.
    pub(super) fn arrange(&mut self, number: u32) {
        let Some(waiting) = self.tenants.get_mut(&number) else { return };
        let before = waiting.turn.take();
        if let Some(turn) = before {
            let turns =
                if waiting.is_empty_handed { &mut self.empty_handed } else { &mut self.others };
            turns.remove(&turn);
        }
        if waiting.calls.is_empty() {
            return;
        }
        let round = waiting.share.account.load(Ordering::Relaxed) / QUANTUM.as_nanos() as u64;
        let turn = match before {
            Some(turn) if turn.round == round => turn,
            _ => {
                self.next += 1;
                Turn { round, number: self.next }
            }
        };
        waiting.turn = Some(turn);
        waiting.is_empty_handed = waiting.share.held() == 0;
        let turns = if waiting.is_empty_handed { &mut self.empty_handed } else { &mut self.others };
        turns.insert(turn, number);
    }

    /// After one of a tenant's calls has been taken out.
    pub(super) fn gone(&mut self, number: u32, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
        self.arrange(number);
        let Some(waiting) = self.tenants.get_mut(&number) else { return };
        waiting.bytes -= bytes;
        if waiting.len() == 0 {
            waiting.share.unpin();
            self.tenants.remove(&number);
        }
    }

    /// The tenant whose calls want a slot, if there is but one.
    pub(super) fn only_waiting(&self) -> Option<&Share> {
        let mut numbers = self.empty_handed.values().chain(self.others.values());
        let (number, None) = (numbers.next()?, numbers.next()) else { return None };
        Some(&self.tenants.get(number)?.share)
    }

    /// Tenants whose calls want a slot.
    pub(super) fn tenants_waiting(&self) -> usize {
        self.empty_handed.len() + self.others.len()
    }
}

impl<W> Waiting<W> {
    fn new(share: Arc<Share>) -> Self {
        Self {
            share,
            weight: 1,
            turn: None,
            is_empty_handed: false,
            was_passed_over: false,
            calls: VecDeque::new(),
            early: VecDeque::new(),
            bytes: 0,
        }
    }

    /// How many calls there are.
    pub(super) fn len(&self) -> usize {
        self.calls.len() + self.early.len()
    }
}

fn per_weight(time: Duration, weight: u32) -> u64 {
    time.as_nanos() as u64 / u64::from(weight)
}
