//! A bounded queue of records that wait to be sent.
//!
//! A tenant may have as many records in it as there are free places left. So a tenant's flood finds
//! no room at half of the queue, and others always find some.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::common::ids::TenantId;
use crate::events::call_log::{Entry, LeftOut};
use crate::events::{EndedCall, Event};

/// A span or a log record that waits.
pub(super) enum Record {
    Event(Event),
    Call(Arc<EndedCall>),
    LeftOut { told: Timestamp, lines: LeftOut },
}

impl Record {
    pub(super) fn of(entry: Entry<'_>) -> Self {
        match entry {
            Entry::Call(call) => Self::Call(call.clone()),
            Entry::LeftOut(lines) => Self::LeftOut { told: Timestamp::now(), lines: lines.clone() },
        }
    }
}

pub(super) struct RecordQueue<T = Record> {
    waiting: Mutex<Waiting<T>>,
    added: Notify,
    max: usize,
    dropped: IntCounter,
}

struct Waiting<T> {
    records: VecDeque<(TenantId, T)>,
    by_tenant: HashMap<TenantId, usize>,
}

impl<T> RecordQueue<T> {
    pub(super) fn new(max: usize, dropped: IntCounter) -> Self {
        let waiting = Waiting { records: VecDeque::new(), by_tenant: HashMap::new() };
        Self { waiting: Mutex::new(waiting), added: Notify::new(), max, dropped }
    }

    /// Adds a record, or drops it. Never waits.
    pub(super) fn push(&self, tenant: &TenantId, record: T) {
        let mut waiting = self.waiting.lock();
        let free = self.max - waiting.records.len();
        let own = waiting.by_tenant.entry(tenant.clone()).or_default();
        if *own >= free {
            drop(waiting);
            self.dropped.inc();
            return;
        }
        *own += 1;
        waiting.records.push_back((tenant.clone(), record));
        drop(waiting);
        self.added.notify_one();
    }

    /// Waits until there is a record and then for more: until there are `enough`, or `delay` is
    /// over.
    pub(super) async fn wait(&self, enough: usize, delay: Duration) {
        while self.len() == 0 {
            self.added.notified().await;
        }
        let until = Instant::now() + delay;
        while self.len() < enough && timeout_at(until, self.added.notified()).await.is_ok() {}
    }

    /// Takes the oldest records, at most so many.
    pub(super) fn take(&self, max: usize) -> Vec<T> {
        let mut waiting = self.waiting.lock();
        let Waiting { records, by_tenant } = &mut *waiting;
        let count = records.len().min(max);
        let taken = records.drain(..count).map(|(tenant, record)| {
            if let Some(own) = by_tenant.get_mut(&tenant) {
                *own -= 1;
            }
            record
        });
        let taken = taken.collect();
        by_tenant.retain(|_, own| *own > 0);
        taken
    }

    fn len(&self) -> usize {
        self.waiting.lock().records.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::testing(name)
    }

    fn queue(max: usize) -> RecordQueue<usize> {
        RecordQueue::new(max, IntCounter::new("dropped", "dropped").unwrap())
    }

    #[test]
    fn a_flood_of_one_tenant_leaves_room_for_others_and_what_is_dropped_is_counted() {
        let queue = queue(100);
        (0..1000).for_each(|number| queue.push(&tenant("flood"), number));
        assert_eq!((queue.len(), queue.dropped.get()), (50, 950));
        for name in ["a", "b", "c"] {
            queue.push(&tenant(name), 1);
        }
        assert_eq!((queue.len(), queue.dropped.get()), (53, 950));
        // However many tenants: the queue stays within its bound.
        (0..1000).for_each(|number| queue.push(&tenant(&format!("t{number}")), number));
        assert_eq!(queue.len(), 100);

        assert_eq!(queue.take(60).len(), 60);
        queue.push(&tenant("flood"), 7);
        assert_eq!((queue.take(1000).pop(), queue.len()), (Some(7), 0));
        assert!(queue.waiting.lock().by_tenant.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_waits_until_it_is_full_or_old() {
        let (queue, start) = (queue(100), Instant::now());
        let delay = Duration::from_secs(5);
        queue.push(&tenant("a"), 1);
        queue.wait(3, delay).await;
        assert_eq!(start.elapsed(), delay);
        (0..2).for_each(|number| queue.push(&tenant("a"), number));
        queue.wait(3, delay).await;
        assert_eq!(start.elapsed(), delay);
        // None at all: until there is one.
        queue.take(3);
        let add = async {
            sleep(delay).await;
            (0..3).for_each(|number| queue.push(&tenant("a"), number));
        };
        tokio::join!(queue.wait(3, delay), add);
        assert_eq!(start.elapsed(), delay * 2);
    }
}
