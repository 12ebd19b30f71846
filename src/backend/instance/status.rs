//! One instance of a backend, whether it runs or not: its state, since when, and what went wrong.

use std::sync::Arc;

use jiff::Timestamp;

use super::pool::ReadyInstance;
use crate::backend::RunState;
use crate::backend::stdio::stderr::StderrTail;

#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) state: RunState,
    since: Timestamp,
    pub(crate) down: Option<Down>,
    pub(crate) starts: u64,
    pub(crate) ready: Option<Arc<ReadyInstance>>,
    pub(crate) last_failure: Option<LastFailure>,
    pub(crate) stderr: StderrTail,
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
}

/// One instance, as the operator sees it.
pub struct InstanceStatus {
    pub state: RunState,
    pub since: Timestamp,
    pub down: Option<Down>,
    pub starts: u64,
    /// Calls in flight, and their limit.
    pub in_flight: Option<(u32, u32)>,
    pub last_failure: Option<LastFailure>,
    /// Standard error of its process, or of the last one.
    pub stderr: StderrTail,
}

impl Instance {
    pub(crate) fn new(state: RunState) -> Self {
        Self {
            state,
            since: Timestamp::now(),
            down: None,
            starts: 0,
            ready: None,
            last_failure: None,
            stderr: StderrTail::default(),
        }
    }

    pub(crate) fn set_state(&mut self, state: RunState, ready: Option<Arc<ReadyInstance>>) {
        let now = Timestamp::now();
        if !self.state.is_like(&state) {
            self.since = now;
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

    pub(crate) fn view(&self) -> InstanceStatus {
        let load = self.ready.as_ref().map(|it| &it.load);
        InstanceStatus {
            state: self.state.clone(),
            since: self.since,
            down: self.down.clone(),
            starts: self.starts,
            in_flight: load.map(|load| (load.in_flight(), load.limit())),
            last_failure: self.last_failure.clone(),
            stderr: self.stderr.clone(),
        }
    }
}
