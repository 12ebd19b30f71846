//! One instance of a backend, whether it runs or not: its state, since when, and what went wrong.

use std::mem::discriminant;
use std::sync::Arc;

use jiff::Timestamp;

use super::pool::ReadyInstance;
use crate::backend::RunState;
use crate::backend::connection::live_calls::LiveCall;
use crate::backend::stdio::line_tail::LineTail;
use crate::common::ids::CallId;

/// One instance, as the operator sees it.
#[derive(Clone)]
pub struct InstanceStatus {
    pub state: RunState,
    pub since: Timestamp,
    pub down: Option<Down>,
    pub starts: u64,
    pub(super) ready: Option<Arc<ReadyInstance>>,
    pub last_failure: Option<LastFailure>,
    /// Since when nothing has ended although calls wait for a slot, if it is so.
    pub stalled_since: Option<Timestamp>,
    /// Standard error of its process, or of the last one.
    pub stderr: LineTail,
}

/// An instance, or a whole backend, that takes no calls although it did, or was to.
#[derive(Clone, Debug)]
pub struct Down {
    /// Stays the same, however often it is restarted meanwhile.
    pub since: Timestamp,
    /// Why, in words that callers may see; `None` during a planned rollover.
    pub reason: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub struct LastFailure {
    pub at: Timestamp,
    /// For the operator only.
    pub detail: Arc<str>,
    /// The last lines of standard error; for the operator only.
    pub stderr: Arc<[String]>,
    /// The last lines of standard output that are no messages; for the operator only.
    pub stdout: Arc<[String]>,
}

impl InstanceStatus {
    pub(crate) fn new(state: RunState) -> Self {
        Self {
            state,
            since: Timestamp::now(),
            down: None,
            starts: 0,
            ready: None,
            last_failure: None,
            stalled_since: None,
            stderr: LineTail::default(),
        }
    }

    pub(crate) fn set_state(&mut self, state: RunState, ready: Option<Arc<ReadyInstance>>) {
        let now = Timestamp::now();
        if discriminant(&self.state) != discriminant(&state) {
            self.since = now;
            self.stalled_since = None;
        }
        match (&self.state, &state) {
            (_, RunState::Ready(_)) => self.down = None,
            (RunState::Ready(_), _) => {
                self.down.get_or_insert(Down { since: now, reason: None });
            }
            _ => {}
        }
        self.state = state;
        self.ready = ready;
    }

    /// Notes why it is down. If it was down already, `since` stays.
    pub(crate) fn set_down(&mut self, reason: Arc<str>) {
        let since = self.down.as_ref().map_or_else(Timestamp::now, |down| down.since);
        self.down = Some(Down { since, reason: Some(reason) });
    }

    /// Returns the calls in flight, and their limit.
    pub fn in_flight(&self) -> Option<(u32, u32)> {
        self.ready.as_ref().map(|it| (it.load.in_flight(), it.load.limit()))
    }

    /// Returns its calls now, by their tenants.
    pub fn live_calls(&self) -> Vec<LiveCall> {
        self.ready.as_ref().map_or_else(Vec::new, |it| it.ready.connection.in_flight.live())
    }

    /// Cancels a call for an operator. Returns whether the call is here.
    pub fn cancel(&self, call: CallId) -> bool {
        self.ready.as_ref().is_some_and(|it| it.ready.connection.cancel(call))
    }

    /// Asks for the next run. Returns whether there is one now that can be replaced.
    pub fn ask_to_replace(&self) -> bool {
        self.ready.as_ref().inspect(|it| it.load.ask_to_replace()).is_some()
    }

    /// Returns whether the instance looks serial.
    pub fn looks_serial(&self) -> bool {
        self.ready.as_ref().is_some_and(|it| it.load.looks_serial())
    }
}
