//! Decides whether a failed call is tried again.
//!
//! A call that no server has received is retried while there is time. A call that a server may have
//! received is retried only if `retry = "safe"`, its tool is read-only or idempotent, and retries
//! stay within the backend's retry budget.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::{CallError, Executed};
use crate::backend::connection::CloseReason;
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, RunState};
use crate::config::Retry;
use crate::tenants::limits::RateStatus;

/// The most attempts of one call, the first included.
const ATTEMPTS_MAX: u32 = 5;
/// The pause before the second attempt; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(20);

/// All attempts of one call so far, at whichever backends.
#[derive(Default)]
pub(super) struct AttemptHistory {
    /// The attempts, the current one included.
    count: u32,
    /// True if a failed attempt may have run the tool.
    may_have_run: bool,
}

impl AttemptHistory {
    /// Adds the earlier attempts and the tenant's rates to the last error.
    pub(super) fn into_error(self, last: CallError, rate_status: Option<RateStatus>) -> CallError {
        let rate_status = rate_status.unwrap_or_default();
        let attempts = self.count;
        if attempts == 0 && rate_status.is_empty() {
            return last;
        }
        let executed = if self.may_have_run { Executed::Unknown } else { last.executed() };
        CallError::Attempted { attempts, executed, rate_status, last: Box::new(last) }
    }
}

/// The attempts of one call at one backend.
pub(super) struct Attempts<'a> {
    backend: &'a Backend,
    deadline: Instant,
    /// True if the operator and the tool allow the call to run twice.
    is_repeatable: bool,
    history: &'a mut AttemptHistory,
    /// The instance that failed the call last.
    pub(super) avoid: Option<usize>,
}

impl<'a> Attempts<'a> {
    /// Begins the first attempt here. Fails if an attempt elsewhere may have run the tool and the
    /// call must not run twice.
    pub(super) fn new(
        backend: &'a Backend,
        tool: Option<&Tool>,
        deadline: Instant,
        history: &'a mut AttemptHistory,
    ) -> Result<Self, CallError> {
        backend.retries().note_call();
        let is_repeatable =
            backend.config().retry == Retry::Safe && tool.is_some_and(Tool::is_repeatable);
        if history.may_have_run && !is_repeatable {
            let reason = CloseReason::Stopped.to_string();
            return Err(CallError::BackendExited { reason, executed: Executed::Unknown });
        }
        history.count += 1;
        Ok(Self { backend, deadline, is_repeatable, history, avoid: None })
    }

    pub(super) fn count(&self) -> u32 {
        self.history.count
    }

    /// Returns the deadline of the current attempt: a part of the call's, if it may be repeated.
    pub(super) fn deadline(&self) -> Instant {
        if !self.is_repeatable || self.history.count >= ATTEMPTS_MAX {
            return self.deadline;
        }
        let now = Instant::now();
        let left = self.deadline.duration_since(now);
        let attempt = self.backend.config().attempt_timeout.unwrap_or(left / 3);
        (now + attempt).min(self.deadline)
    }

    /// Returns the time of the next attempt after this error, or `None` if there is none.
    pub(super) fn next(&mut self, error: &CallError) -> Option<Instant> {
        if self.history.count >= ATTEMPTS_MAX || !self.may_repeat(error) {
            return None;
        }
        let pause = PAUSE * (1 << (self.history.count - 1));
        let pause = pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        let now = Instant::now();
        // The server or its supervisor knows best when to come back.
        let until = match (error, self.backend.state()) {
            (CallError::BackendHttp { retry_after: Some(after), .. }, _) => now + *after,
            // No call waits for the end of a quarantine. An attempt that failed otherwise learns of
            // the quarantine from its next attempt, at once.
            (CallError::ServerUnavailable { .. }, RunState::Quarantined { .. }) => return None,
            (_, RunState::Backoff { until, .. }) => until.max(now),
            _ => now,
        };
        let at = until + pause;
        // Last, because what is spent of the budget does not come back.
        if at >= self.deadline || !self.may_spend(error) {
            return None;
        }
        self.history.count += 1;
        self.history.may_have_run |= error.executed() == Executed::Unknown;
        self.backend.metrics().retries.inc();
        Some(at)
    }

    fn may_repeat(&self, error: &CallError) -> bool {
        let failed = match error {
            CallError::BackendExited { .. }
            | CallError::BackendProtocol { .. }
            // The instance was ready when the call came, and gone when it was to be written.
            | CallError::ServerUnavailable { .. } => true,
            // The instance was replaced at that moment.
            CallError::ShuttingDown => !matches!(self.backend.state(), RunState::Stopped),
            // Most other statuses would be the same again.
            CallError::BackendHttp { .. } => {
                error.is_retryable() || error.executed() == Executed::Unknown
            }
            // The attempt's deadline passed, not the call's.
            CallError::DeadlineExceeded { .. } => self.is_repeatable,
            _ => false,
        };
        failed && (error.executed() == Executed::No || self.is_repeatable)
    }

    /// Takes a retry from the budget. A call that no server has received needs no budget.
    fn may_spend(&self, error: &CallError) -> bool {
        error.executed() == Executed::No || self.backend.retries().spend()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::testing::{backend, set_state};
    use crate::config::{Program, ServerConfig, Transport};

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the pause before the next attempt after these errors, at a backend in this state.
    fn next_after(errors: &[CallError], state: RunState) -> Option<Duration> {
        let backend = backend(ServerConfig::new(Transport::Stdio(Program::default())));
        set_state(&backend, state);
        let (now, mut history) = (Instant::now(), AttemptHistory::default());
        let mut attempts = Attempts::new(&backend, None, now + MINUTE, &mut history).unwrap();
        let mut next = None;
        for error in errors {
            next = attempts.next(error);
        }
        next.map(|at| at - now)
    }

    fn never_written() -> CallError {
        CallError::BackendExited { reason: String::new(), executed: Executed::No }
    }

    fn refused() -> CallError {
        CallError::ServerUnavailable { reason: String::new(), retry_after: MINUTE / 2 }
    }

    #[tokio::test(start_paused = true)]
    async fn no_call_waits_for_the_end_of_a_quarantine() {
        let until = Instant::now() + MINUTE / 2;
        let quarantined = || RunState::Quarantined { until, reason: "failed".into() };
        assert_eq!(next_after(&[refused()], quarantined()), None);
        // The next attempt says why.
        assert!(next_after(&[never_written()], quarantined()).is_some_and(|after| after <= PAUSE));
        // A restart that comes sooner is waited for.
        let backoff = RunState::Backoff { until, reason: "failed".into() };
        assert!(next_after(&[refused()], backoff).is_some_and(|after| after > MINUTE / 2));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_differ() {
        for count in 1..ATTEMPTS_MAX {
            let errors: Vec<_> = (0..count).map(|_| never_written()).collect();
            let pauses = || next_after(&errors, RunState::Starting).unwrap();
            let pauses: Vec<_> = (0..100).map(|_| pauses()).collect();
            let longest = PAUSE * (1 << (count - 1));
            let (low, high) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(*low >= longest / 2 && *high <= longest, "{low:?} to {high:?} of {longest:?}");
            assert!(*high - *low > longest / 4, "{low:?} to {high:?} of {longest:?}");
        }
        let too_many: Vec<_> = (0..ATTEMPTS_MAX).map(|_| never_written()).collect();
        assert_eq!(next_after(&too_many, RunState::Starting), None);
    }
}
