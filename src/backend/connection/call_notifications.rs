//! What a server says while it works on a call: its progress, and log lines that can be no other tenant's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::protocol::mcp::LogLevel;

/// Messages of one call that may wait to be read, in number and in bytes. Beyond this they are dropped: whoever
/// does not read progress in time has no use for it.
pub const WAITING_MAX: usize = 64;
const WAITING_BYTES_MAX: usize = 1024 * 1024;

/// One message. Its `params` are as the server wrote them, the gateway's token included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `notifications/progress`
    Progress(Bytes),
    /// `notifications/message`
    Log(Bytes),
    /// `notifications/subscriptions/acknowledged`
    Acknowledged(Bytes),
    /// A whole message, to be passed on as it is.
    Message(Bytes),
}

/// Who wants to hear, and what.
#[derive(Clone, Debug)]
pub struct Listener {
    events: mpsc::Sender<Event>,
    waiting_bytes: Arc<AtomicUsize>,
    /// Log lines at least this grave; none without.
    log_level: Option<LogLevel>,
}

/// Where a listener's messages arrive, in the order the server wrote them. All that came before the answer are
/// there when the answer is.
#[derive(Debug)]
pub struct Events {
    events: mpsc::Receiver<Event>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl Listener {
    /// A listener, and its messages.
    pub fn new(log_level: Option<LogLevel>) -> (Self, Events) {
        let (sender, events) = mpsc::channel(WAITING_MAX);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let listener = Self { events: sender, waiting_bytes: waiting_bytes.clone(), log_level };
        (listener, Events { events, waiting_bytes })
    }

    /// Never waits: the reader of a connection must not depend on any one caller. Tells whether there was room.
    pub fn hear(&self, event: Event) -> bool {
        let len = event.len();
        let waiting = self.waiting_bytes.fetch_add(len, Ordering::AcqRel);
        // A single one may be as large as it likes: answers may, too.
        let heard = (waiting == 0 || waiting + len <= WAITING_BYTES_MAX)
            && self.events.try_send(event).is_ok();
        if !heard {
            self.waiting_bytes.fetch_sub(len, Ordering::AcqRel);
        }
        heard
    }

    /// Whether it asked for log lines of this gravity.
    pub(crate) fn wants(&self, level: LogLevel) -> bool {
        self.log_level.is_some_and(|lowest| level >= lowest)
    }
}

impl Events {
    /// The next message; `None` when nobody is left who could send one. Safe to give up.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.taken(event)
    }

    /// The next message, if it is there already.
    pub fn try_recv(&mut self) -> Option<Event> {
        let event = self.events.try_recv().ok();
        self.taken(event)
    }

    fn taken(&self, event: Option<Event>) -> Option<Event> {
        let len = event.as_ref().map_or(0, Event::len);
        self.waiting_bytes.fetch_sub(len, Ordering::AcqRel);
        event
    }
}

impl Event {
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

    #[test]
    fn what_waits_is_bounded_in_number_and_in_bytes() {
        let (listener, mut events) = Listener::new(None);
        let small = || Event::Progress(Bytes::from_static(b"{}"));
        assert_eq!((0..1000).filter(|_| listener.hear(small())).count(), WAITING_MAX);
        while events.try_recv().is_some() {}
        let large = || Event::Progress(Bytes::from(vec![b' '; WAITING_BYTES_MAX / 4 * 3]));
        assert!(listener.hear(large()));
        assert!(!listener.hear(large()));
        assert!(events.try_recv().is_some());
        assert!(listener.hear(large()));
    }
}
