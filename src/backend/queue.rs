//! Who may use a server now, and who waits.
//!
//! A server takes `max_in_flight` calls at once; the others wait here in the order they came, bounded in
//! number and in bytes. With one slot this makes a strictly serial server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Calls that may wait for one server. Beyond this, waiting only makes the answers later.
pub const WAITING_MAX: usize = 4096;
/// Bytes of arguments that may wait for one server.
pub const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The slots of one server, and the line before them.
#[derive(Debug)]
pub struct Queue {
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_bytes: AtomicUsize,
}

/// The right to one slot, until dropped. It travels with the call.
#[derive(Debug)]
pub struct Permit {
    _slot: OwnedSemaphorePermit,
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
        Self {
            slots: Arc::new(Semaphore::new(max_in_flight)),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    /// Takes a place in the line for a call with so many bytes, for as long as it waits for anything.
    pub fn line_up(&self, bytes: usize) -> Result<Place<'_>, QueueError> {
        let place = Place { queue: self, bytes };
        let waiting = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting_bytes = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if waiting >= WAITING_MAX || waiting_bytes + bytes > WAITING_BYTES_MAX {
            return Err(QueueError::Full);
        }
        Ok(place)
    }
}

/// A place in the line; free again when the call gets its slot or gives up.
#[derive(Debug)]
pub struct Place<'a> {
    queue: &'a Queue,
    bytes: usize,
}

impl Place<'_> {
    /// Waits for a slot, in order of arrival. Freed slots go to those who wait before anyone else can have
    /// them: nobody is overtaken.
    pub async fn slot(self, deadline: Instant) -> Result<Permit, QueueError> {
        match timeout_at(deadline, self.queue.slots.clone().acquire_owned()).await {
            Ok(slot) => Ok(Permit { _slot: slot.expect("the semaphore is never closed") }),
            Err(_) => Err(QueueError::Expired),
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.queue.waiting.fetch_sub(1, Ordering::Relaxed);
        self.queue.waiting_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn enter(queue: &Queue, bytes: usize) -> Result<Permit, QueueError> {
        queue.line_up(bytes)?.slot(soon()).await
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_given_in_order_of_arrival() {
        let queue = Arc::new(Queue::new(1));
        let first = enter(&queue, 0).await.unwrap();
        let order = Arc::new(parking_lot::Mutex::new(vec![]));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..20 {
            let (queue, order) = (queue.clone(), order.clone());
            tasks.spawn(async move {
                let _permit = enter(&queue, 0).await.unwrap();
                order.lock().push(n);
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        tasks.join_all().await;
        assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_with_the_deadline_and_leaves_no_trace() {
        let queue = Queue::new(1);
        let permit = enter(&queue, 0).await.unwrap();
        assert_eq!(enter(&queue, 5).await.unwrap_err(), QueueError::Expired);
        assert_eq!(queue.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(queue.waiting_bytes.load(Ordering::Relaxed), 0);
        drop(permit);
        assert!(enter(&queue, 0).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_line_is_bounded_in_bytes_and_in_calls() {
        let queue = Arc::new(Queue::new(1));
        let _permit = enter(&queue, 0).await.unwrap();
        assert_eq!(enter(&queue, WAITING_BYTES_MAX + 1).await.unwrap_err(), QueueError::Full);
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..WAITING_MAX {
            let queue = queue.clone();
            waiting.spawn(async move { enter(&queue, 0).await.map(drop) });
        }
        while queue.waiting.load(Ordering::Relaxed) < WAITING_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(enter(&queue, 0).await.unwrap_err(), QueueError::Full);
    }
}
