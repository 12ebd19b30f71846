//! One copy of a server, whether it runs or not: where it stands, since when, and what went wrong.

use std::sync::Arc;

use jiff::Timestamp;

use super::pool::Copy;
use crate::backend::State;
use crate::backend::stdio::stderr::StderrTail;

/// What is remembered of a copy.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) state: State,
    since: Timestamp,
    down: Option<Down>,
    starts: u64,
    pub(crate) copy: Option<Arc<Copy>>,
    last_failure: Option<LastFailure>,
    stderr: StderrTail,
}

/// A copy, or a whole server, that takes no calls although it did, or was to.
#[derive(Clone, Debug)]
pub struct Down {
    /// Since when, however often it was started meanwhile.
    pub since: Timestamp,
    /// What happened last, in words that callers may see; nothing, if it is being replaced as planned.
    pub reason: Option<Arc<str>>,
}

/// What went wrong last.
#[derive(Clone, Debug)]
pub struct LastFailure {
    /// When.
    pub at: Timestamp,
    /// The whole story, for the operator.
    pub detail: Arc<str>,
    /// What the copy last wrote to standard error; for the operator too.
    pub stderr: Arc<[String]>,
}

/// One copy, as the operator sees it.
pub struct View {
    /// Where it stands.
    pub state: State,
    /// Since when.
    pub since: Timestamp,
    /// Since when it takes no calls, and why.
    pub down: Option<Down>,
    /// How often it was started.
    pub starts: u64,
    /// Calls on it now, and how many there may be.
    pub in_flight: Option<(u32, u32)>,
    /// What went wrong last.
    pub last_failure: Option<LastFailure>,
    /// What its process, or the last one, has written to standard error.
    pub stderr: StderrTail,
}

impl Member {
    pub(crate) fn new(state: State) -> Self {
        Self {
            state,
            since: Timestamp::now(),
            down: None,
            starts: 0,
            copy: None,
            last_failure: None,
            stderr: StderrTail::default(),
        }
    }

    /// It stands there now; `copy` if it takes calls.
    pub(crate) fn enter(&mut self, state: State, copy: Option<Arc<Copy>>) {
        let now = Timestamp::now();
        if !self.state.is_like(&state) {
            self.since = now;
        }
        match (&self.state, &state) {
            (_, State::Ready(_)) => self.down = None,
            (State::Ready(_), _) => {
                self.down.get_or_insert(Down { since: now, reason: None });
            }
            _ => {}
        }
        self.state = state;
        self.copy = copy;
    }

    /// It has failed. If it was down already, it is so since then.
    pub(crate) fn note_down(&mut self, reason: Arc<str>) {
        let since = self.down.as_ref().map_or_else(Timestamp::now, |down| down.since);
        self.down = Some(Down { since, reason: Some(reason) });
    }

    pub(crate) fn note_start(&mut self) {
        self.starts += 1;
    }

    pub(crate) fn note_last_failure(&mut self, last_failure: LastFailure) {
        self.last_failure = Some(last_failure);
    }

    pub(crate) fn show_stderr(&mut self, stderr: StderrTail) {
        self.stderr = stderr;
    }

    pub(crate) fn down(&self) -> Option<&Down> {
        self.down.as_ref()
    }

    pub(crate) fn view(&self) -> View {
        View {
            state: self.state.clone(),
            since: self.since,
            down: self.down.clone(),
            starts: self.starts,
            in_flight: self.copy.as_ref().map(|it| (it.load.in_flight(), it.load.limit())),
            last_failure: self.last_failure.clone(),
            stderr: self.stderr.clone(),
        }
    }
}
