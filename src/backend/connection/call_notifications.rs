//! Notifications of a server about one call: its progress, and log messages that can be about no
//! other tenant's call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::common::byte_budget::{BytePermit, TenantBytes};
use crate::protocol::mcp::LogLevel;

/// Notifications of one call that may wait to be read, in number and in bytes. Further ones are
/// dropped: a caller that does not read progress in time has no use for it.
pub const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 1024 * 1024;

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
}

/// The fate of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    On,
    /// The caller had no room for it.
    Dropped,
    /// No caller asked for it.
    Unwanted,
}

/// A notification that waits, and its share of the unsent bytes of its tenant.
type Waiting = (CallNotification, Option<BytePermit>);

/// The sending side, with which the reader of a connection passes notifications on.
#[derive(Clone, Debug)]
pub struct NotificationSender {
    sender: mpsc::Sender<Waiting>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Counts what waits; nothing counts notifications to the gateway itself.
    unsent: Option<Arc<TenantBytes>>,
    /// The lowest level of log messages that the caller wants; none if `None`.
    log_level: Option<LogLevel>,
}

/// The receiving side, in the order in which the server wrote the notifications. When the answer
/// arrives, all notifications from before it have arrived.
#[derive(Debug)]
pub struct CallNotifications {
    receiver: mpsc::Receiver<Waiting>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl NotificationSender {
    pub fn new(
        log_level: Option<LogLevel>,
        unsent: Option<Arc<TenantBytes>>,
    ) -> (Self, CallNotifications) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let waiting_bytes = Arc::<AtomicUsize>::default();
        let notifications = CallNotifications { receiver, waiting_bytes: waiting_bytes.clone() };
        (Self { sender, waiting_bytes, unsent, log_level }, notifications)
    }

    /// Sends without waiting, because the reader of a connection must not depend on any one caller.
    /// Returns whether there was room.
    pub fn send(&self, notification: CallNotification) -> bool {
        let len = notification.len();
        let waiting = self.waiting_bytes.fetch_add(len, Ordering::AcqRel);
        // A single one may be of any size, as answers may.
        let has_room = waiting == 0 || waiting + len <= WAITING_BYTES_MAX;
        let permit = self.unsent.as_ref().map(|unsent| unsent.take(len)).transpose();
        let is_sent = has_room
            && permit.is_ok_and(|permit| self.sender.try_send((notification, permit)).is_ok());
        if !is_sent {
            self.waiting_bytes.fetch_sub(len, Ordering::AcqRel);
        }
        is_sent
    }

    pub(super) fn wants(&self, level: LogLevel) -> bool {
        self.log_level.is_some_and(|lowest| level >= lowest)
    }
}

impl CallNotifications {
    /// Waits for the next notification; `None` when no sender is left. Cancel safe.
    pub async fn recv(&mut self) -> Option<CallNotification> {
        let waiting = self.receiver.recv().await;
        self.release(waiting)
    }

    /// Returns the next notification that has arrived.
    pub fn try_recv(&mut self) -> Option<CallNotification> {
        let waiting = self.receiver.try_recv().ok();
        self.release(waiting)
    }

    fn release(&self, waiting: Option<Waiting>) -> Option<CallNotification> {
        let notification = waiting.map(|(notification, _)| notification);
        let len = notification.as_ref().map_or(0, CallNotification::len);
        self.waiting_bytes.fetch_sub(len, Ordering::AcqRel);
        notification
    }
}

impl CallNotification {
    fn len(&self) -> usize {
        let (Self::Progress(bytes)
        | Self::Log(bytes)
        | Self::Acknowledged(bytes)
        | Self::Message(bytes)) = self;
        bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::byte_budget::ByteBudget;

    #[test]
    fn waiting_notifications_are_bounded_in_number_and_in_bytes() {
        let (sender, mut notifications) = NotificationSender::new(None, None);
        let progress = CallNotification::Progress;
        let small = || progress(Bytes::from_static(b"{}"));
        assert_eq!((0..1000).filter(|_| sender.send(small())).count(), WAITING_MAX);
        while notifications.try_recv().is_some() {}
        let large = || progress(Bytes::from(vec![b' '; WAITING_BYTES_MAX / 4 * 3]));
        assert!(sender.send(large()));
        assert!(!sender.send(large()));
        assert!(notifications.try_recv().is_some());
        assert!(sender.send(large()));
    }

    #[test]
    fn waiting_notifications_count_among_the_unsent_bytes_of_their_tenant() {
        let unsent = ByteBudget::new(1 << 20, 4 << 20).tenant();
        let (sender, mut notifications) = NotificationSender::new(None, Some(unsent.clone()));
        let progress = |len| CallNotification::Progress(Bytes::from(vec![b' '; len]));
        assert!(sender.send(progress(1 << 20)));
        assert_eq!(unsent.held(), 1 << 20);
        let (other, waiting) = NotificationSender::new(None, Some(unsent.clone()));
        assert!(!other.send(progress(1 << 19)), "there is room for more than the budget");
        assert!(notifications.try_recv().is_some());
        assert!(other.send(progress(1 << 19)));
        drop(waiting);
        assert_eq!(unsent.held(), 0);
    }
}
