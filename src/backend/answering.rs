//! Whether a server answers calls at all. One that is wedged may still answer pings, or print.

use tokio::time::Instant;

/// What is known of it, under the lock of the calls that wait.
#[derive(Debug, Default)]
pub(super) struct Answering {
    /// Counts the signs that it works on calls: answers, and progress that somebody hears.
    signs: u64,
    /// When the first call was written that is past its deadline and grace, if there was no sign since.
    stuck_since: Option<Instant>,
}

impl Answering {
    /// What a call remembers when it is written.
    pub(super) fn signs(&self) -> u64 {
        self.signs
    }

    /// It works on calls.
    pub(super) fn note_sign(&mut self) {
        self.signs += 1;
        self.stuck_since = None;
    }

    /// A call that was written then, after so many signs, is overdue.
    pub(super) fn note_overdue(&mut self, written: Instant, signs: u64) {
        if signs == self.signs {
            let first = self.stuck_since.map_or(written, |first| first.min(written));
            self.stuck_since = Some(first);
        }
    }

    /// Since when it has answered no call, if one is overdue.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.stuck_since
    }
}
