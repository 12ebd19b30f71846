//! A listener: a bounded queue of events, read by a task of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{Event, Events, Hub, Kinds, Sink};

/// Hears events until dropped.
pub struct Listener {
    events: Events,
    queue: Arc<dyn Sink>,
    lost: Arc<AtomicU64>,
    receiver: Receiver<Event>,
}

/// An event, and how many were lost since the one before because the queue was full.
#[derive(Clone, Debug)]
pub struct Heard {
    pub event: Event,
    pub lost: u64,
}

struct ListenerQueue {
    sender: Sender<Event>,
    events: Weak<Hub>,
    lost: Arc<AtomicU64>,
}

impl Events {
    /// Hears events of these kinds from now on. At most `capacity` of them wait to be read; further
    /// ones are lost, and counted.
    pub fn listen(&self, kinds: Kinds, capacity: usize) -> Listener {
        let (sender, receiver) = channel(capacity);
        let lost: Arc<AtomicU64> = Arc::default();
        let queue: Arc<dyn Sink> =
            Arc::new(ListenerQueue { sender, events: Arc::downgrade(&self.0), lost: lost.clone() });
        self.attach(kinds, queue.clone());
        Listener { events: self.clone(), queue, lost, receiver }
    }
}

impl Listener {
    /// Waits for the next event. Cancel-safe.
    pub async fn next(&mut self) -> Heard {
        let event = self.receiver.recv().await.expect("the sender is part of the listener");
        Heard { event, lost: self.lost.swap(0, Ordering::Relaxed) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.events.detach(&self.queue);
    }
}

impl Sink for ListenerQueue {
    fn hear(&self, event: &Event) {
        if let Err(TrySendError::Full(_)) = self.sender.try_send(event.clone()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            if let Some(events) = self.events.upgrade() {
                events.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
