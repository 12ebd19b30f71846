//! The waiting calls in the order in which they will be served, for operators to look at.
//!
//! The order is that of the next open slots, played on a copy of the turns. A call that ends in
//! more or less time than is usual changes it, and so does whoever comes next. A slot of the
//! reserve is given out of turn: to the first tenant in line that holds few slots or none.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Queue;
use super::round_robin::{QUANTUM, QueuedCall, RoundRobin, TenantQueue, Turn, per_weight};
use super::waiting::WaitingCall;
use crate::common::ids::TenantId;

/// A queue at one moment.
#[derive(Clone, Debug)]
pub struct QueueView {
    pub slots: u32,
    /// How many of them are kept for tenants that hold few or none.
    pub reserved: u32,
    pub taken: u32,
    /// How many of the reserved ones are free.
    pub reserved_free: u32,
    /// All waiting calls, and since when the first of them has waited.
    pub waiting: usize,
    pub oldest: Option<Instant>,
    /// The first of them, in the order of service.
    pub line: Vec<WaitingCall>,
}

impl Queue {
    /// Looks at the queue. The line has at most `max` calls.
    pub fn view(&self, max: usize) -> QueueView {
        let (slots, reserved, taken) =
            (self.slots.size(), self.slots.reserved(), self.slots.taken());
        let reserved_free = self.slots.reserved_free();
        let backlog = self.backlog.lock();
        let round_robin = &backlog.round_robin;
        let line = round_robin.line(self.slots.limit(), taken, self.min_charge(), max);
        let oldest = round_robin.by_tenant().map(|waiting| waiting.since).min();
        let waiting = round_robin.calls;
        QueueView { slots, reserved, taken, reserved_free, waiting, oldest, line }
    }

    /// Returns the waiting calls of one tenant.
    pub fn waiting_of(&self, tenant: &TenantId) -> Vec<WaitingCall> {
        let backlog = self.backlog.lock();
        let of_tenant =
            backlog.round_robin.tenants.values().filter(|queue| queue.share.tenant == *tenant);
        let calls = of_tenant.flat_map(|queue| {
            let all = queue.calls.in_order().chain(&queue.early);
            all.map(|call| waiting(queue, call))
        });
        calls.collect()
    }
}

/// A tenant whose turn is played.
struct Playing<'a> {
    queue: &'a TenantQueue,
    calls: Box<dyn Iterator<Item = &'a QueuedCall> + 'a>,
    account: u64,
    was_skipped: bool,
}

impl RoundRobin {
    /// Returns the first waiting calls in the order of service: those of tenants that hold fewer
    /// slots than `limit`; then those of others, which get none for now; then those that do not
    /// want a slot yet. A tenant that holds all of the `taken` slots gives back the next one
    /// itself, so it is below its limit by then.
    fn line(&self, limit: u32, taken: u32, min_charge: Duration, max: usize) -> Vec<WaitingCall> {
        let waits = |queue: &&TenantQueue| queue.turn.is_some();
        let is_below = |queue: &&TenantQueue| {
            let held = queue.share.slots();
            held < limit || held >= taken
        };
        let queues = || self.tenants.values();
        let mut line = vec![];
        self.play(queues().filter(waits).filter(is_below), min_charge, max, &mut line);
        self.play(queues().filter(waits).filter(|it| !is_below(it)), min_charge, max, &mut line);
        // A tenant that is held back has no turn.
        for queue in queues().filter(|queue| queue.turn.is_none()) {
            line.extend(queue.calls.in_order().map(|call| waiting(queue, call)));
        }
        for queue in queues() {
            line.extend(queue.early.iter().map(|call| waiting(queue, call)));
            if line.len() > max {
                break;
            }
        }
        line.truncate(max);
        line
    }

    /// Serves tenants until nobody waits, as [`Self::pop`] does.
    fn play<'a>(
        &self,
        tenants: impl Iterator<Item = &'a TenantQueue>,
        min_charge: Duration,
        max: usize,
        line: &mut Vec<WaitingCall>,
    ) {
        let (mut level, mut next_number) = (self.level, self.next_number);
        let mut turns: BTreeMap<Turn, Playing<'_>> = tenants
            .filter_map(|queue| {
                let account = queue.share.account.load(Ordering::Relaxed);
                let (calls, was_skipped) = (Box::new(queue.calls.in_order()), queue.was_skipped);
                Some((queue.turn?, Playing { queue, calls, account, was_skipped }))
            })
            .collect();
        while line.len() < max
            && let Some((turn, mut playing)) = turns.pop_first()
        {
            let Some(call) = playing.calls.next() else { continue };
            line.push(waiting(playing.queue, call));
            if std::mem::take(&mut playing.was_skipped) {
                playing.account = playing.account.max(level);
            }
            level = level.max(playing.account);
            let estimate = call.request.map_or(Duration::ZERO, |request| request.estimate);
            let charged = estimate.max(QUANTUM).max(min_charge);
            playing.account += per_weight(charged, playing.queue.weight);
            let round = playing.account / QUANTUM.as_nanos() as u64;
            let turn = if turn.round == round {
                turn
            } else {
                next_number += 1;
                Turn { round, number: next_number }
            };
            turns.insert(turn, playing);
        }
    }
}

fn waiting(queue: &TenantQueue, call: &QueuedCall) -> WaitingCall {
    WaitingCall {
        tenant: queue.share.tenant.clone(),
        since: call.since,
        is_early: call.request.is_none(),
        info: call.info.as_deref().cloned(),
    }
}
