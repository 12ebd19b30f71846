//! Notifications of a server about one call: its progress, and log messages that can be about no
//! other tenant's call. Also the messages of one stream of a session.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::changes::recipients::ServerRequest;
use crate::common::byte_budget::{BytePermit, TenantBytes};
use crate::protocol::mcp::LogLevel;

/// The bytes of one call's notifications that may wait to be read. Further ones are dropped, except
/// that the newest progress takes the place of older progress.
pub const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// The memory that a waiting notification takes beside its bytes.
pub const NOTIFICATION_COST: usize = 256;

/// One notification. Its `params` are as the server wrote them, the gateway's token included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallNotification {
    /// `notifications/progress`
    Progress(Bytes),
    /// `notifications/message`
    Log(Bytes),
    /// `notifications/subscriptions/acknowledged`
    Acknowledged(Bytes),
    /// A whole message, to be passed on as it is.
    Message(Bytes),
    /// A request of the server, to be answered by whoever reads it.
    Question(Box<ServerRequest>),
}

/// The fate of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    On,
    /// So many had no room: the notification itself, or older progress that it displaced.
    Dropped(u64),
    /// No caller asked for it.
    Unwanted,
}

/// A notification that waits, and its share of the unsent bytes of its tenant.
#[derive(Debug)]
struct Waiting {
    notification: CallNotification,
    _permit: Option<BytePermit>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Set when the receiver is gone.
    is_unread: bool,
    /// Set when the last sender is gone.
    is_complete: bool,
}

#[derive(Debug, Default)]
struct Channel {
    queue: Mutex<Queue>,
    arrived: Notify,
}

/// The sending side, with which the reader of a connection passes notifications on.
#[derive(Clone, Debug)]
pub struct NotificationSender {
    channel: Arc<CompleteOnDrop>,
    /// Counts what waits; nothing counts notifications to the gateway itself.
    unsent: Option<Arc<TenantBytes>>,
    /// The lowest level of log messages that the caller wants; none if `None`.
    log_level: Option<LogLevel>,
    /// Whether the reader answers questions.
    takes_questions: bool,
}

/// All senders of a channel share one.
#[derive(Debug)]
struct CompleteOnDrop(Arc<Channel>);

impl Drop for CompleteOnDrop {
    fn drop(&mut self) {
        self.0.queue.lock().is_complete = true;
        self.0.arrived.notify_one();
    }
}

/// The receiving side, in the order in which the server wrote the notifications. When the answer
/// arrives, all notifications from before it have arrived.
#[derive(Debug)]
pub struct CallNotifications {
    channel: Arc<Channel>,
}

impl NotificationSender {
    pub fn new(
        log_level: Option<LogLevel>,
        unsent: Option<Arc<TenantBytes>>,
    ) -> (Self, CallNotifications) {
        let channel = Arc::<Channel>::default();
        let notifications = CallNotifications { channel: channel.clone() };
        let channel = Arc::new(CompleteOnDrop(channel));
        (Self { channel, unsent, log_level, takes_questions: false }, notifications)
    }

    /// Sends without waiting, because the reader of a connection must not depend on any one caller.
    pub fn send(&self, notification: CallNotification) -> Passed {
        let CompleteOnDrop(channel) = &*self.channel;
        let passed = channel.queue.lock().add(notification, self.unsent.as_ref());
        channel.arrived.notify_one();
        passed
    }

    /// Returns whether somebody may still read.
    pub fn is_read(&self) -> bool {
        !self.channel.0.queue.lock().is_unread
    }

    /// Returns the same sender to a reader that answers questions.
    pub fn with_questions(self) -> Self {
        Self { takes_questions: true, ..self }
    }

    pub(super) fn takes_questions(&self) -> bool {
        self.takes_questions
    }

    pub(super) fn wants(&self, level: LogLevel) -> bool {
        self.log_level.is_some_and(|lowest| level >= lowest)
    }
}

impl Queue {
    fn add(&mut self, notification: CallNotification, unsent: Option<&Arc<TenantBytes>>) -> Passed {
        if self.is_unread {
            return Passed::Dropped(1);
        }
        let cost = notification.cost();
        let is_progress = notification.is_progress();
        let (mut dropped, mut freed) = (0, 0);
        while is_progress && !self.has_room(cost) {
            let Some(removed) = self.remove_oldest_progress() else { break };
            (dropped, freed) = (dropped + 1, freed + removed);
        }
        // The newest progress may exceed the bound: nothing but progress makes room for it.
        if !is_progress && !self.has_room(cost) {
            return Passed::Dropped(1);
        }
        let permit = loop {
            let Some(unsent) = unsent else { break None };
            match unsent.take(cost) {
                Ok(permit) => break Some(permit),
                Err(_) if freed >= cost => break Some(unsent.take_beyond(cost)),
                Err(_) => match is_progress.then(|| self.remove_oldest_progress()).flatten() {
                    Some(removed) => (dropped, freed) = (dropped + 1, freed + removed),
                    None => return Passed::Dropped(dropped + 1),
                },
            }
        };
        self.bytes += cost;
        self.waiting.push_back(Waiting { notification, _permit: permit });
        if dropped == 0 { Passed::On } else { Passed::Dropped(dropped) }
    }

    /// Returns whether there is room. A single notification may be of any size, as answers may.
    fn has_room(&self, cost: usize) -> bool {
        self.waiting.is_empty() || self.bytes + cost <= WAITING_BYTES_MAX
    }

    /// Returns the bytes that this frees.
    fn remove_oldest_progress(&mut self) -> Option<usize> {
        let at = self.waiting.iter().position(|it| it.notification.is_progress())?;
        let removed = self.waiting.remove(at)?.notification.cost();
        self.bytes -= removed;
        Some(removed)
    }

    fn take(&mut self) -> Option<CallNotification> {
        let Waiting { notification, .. } = self.waiting.pop_front()?;
        self.bytes -= notification.cost();
        Some(notification)
    }
}

impl CallNotifications {
    /// Waits for the next notification; `None` when no sender is left. Cancel safe.
    pub async fn recv(&mut self) -> Option<CallNotification> {
        loop {
            let arrived = self.channel.arrived.notified();
            {
                let mut queue = self.channel.queue.lock();
                let next = queue.take();
                if next.is_some() || queue.is_complete {
                    return next;
                }
            }
            arrived.await;
        }
    }

    /// Returns the next notification that has arrived.
    pub fn try_recv(&mut self) -> Option<CallNotification> {
        self.channel.queue.lock().take()
    }
}

impl Drop for CallNotifications {
    fn drop(&mut self) {
        let mut queue = self.channel.queue.lock();
        *queue = Queue { is_unread: true, ..Queue::default() };
    }
}

impl CallNotification {
    fn is_progress(&self) -> bool {
        matches!(self, Self::Progress(_))
    }

    fn cost(&self) -> usize {
        let len = match self {
            Self::Progress(bytes)
            | Self::Log(bytes)
            | Self::Acknowledged(bytes)
            | Self::Message(bytes) => bytes.len(),
            Self::Question(request) => request.params.as_ref().map_or(0, Bytes::len),
        };
        len + NOTIFICATION_COST
    }
}

#[cfg(test)]
#[path = "tests/call_notifications.rs"]
mod tests;
