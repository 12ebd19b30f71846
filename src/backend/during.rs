//! What a server says while it works on a call: progress, and log lines that are certainly this call's.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::mcp::LogLevel;

/// Messages of one call that may wait to be read. Beyond this, progress is dropped: whoever does not read
/// it in time has no use for it.
pub const WAITING_MAX: usize = 64;

/// One message. Its `params` are as the server wrote them, the gateway's token included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// `notifications/progress`
    Progress(Bytes),
    /// `notifications/message`
    Log(Bytes),
    /// A whole message, to be passed on as it is.
    Message(Bytes),
}

/// Who wants to hear, and what.
#[derive(Clone, Debug)]
pub struct Listener {
    events: mpsc::Sender<Event>,
    /// Log lines at least this grave; none without.
    log_level: Option<LogLevel>,
}

impl Listener {
    /// A listener, and where its messages arrive, in the order the server wrote them. All that came before
    /// the answer are there when the answer is.
    pub fn new(log_level: Option<LogLevel>) -> (Self, mpsc::Receiver<Event>) {
        let (events, arriving) = mpsc::channel(WAITING_MAX);
        (Self { events, log_level }, arriving)
    }

    /// Never waits: the reader of a connection must not depend on any one caller. Tells whether there was room.
    pub fn hear(&self, event: Event) -> bool {
        self.events.try_send(event).is_ok()
    }

    /// Whether it asked for log lines of this gravity.
    pub(super) fn wants(&self, level: LogLevel) -> bool {
        self.log_level.is_some_and(|lowest| level >= lowest)
    }
}
