//! Whether a call that failed is tried again.
//!
//! A call that no server has seen is, as long as there is time. One that a server may have seen is only if its tool says
//! that doing it twice does no harm, the operator has allowed it (`retry = "safe"`), and not too many are.

use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::{CallError, Executed};
use crate::backend::instance::tools::Tool;
use crate::backend::{Backend, State};
use crate::config::Retry;
use crate::tenants::limits::Standing;

/// Attempts at one call, the first included.
const ATTEMPTS_MAX: u32 = 5;
/// The wait before the second attempt. It doubles with each.
const PAUSE: Duration = Duration::from_millis(20);

/// What has become of one call so far, at whichever processes: one may have taken another's place meanwhile.
#[derive(Default)]
pub(super) struct Tried {
    /// How many attempts there were, the one under way included.
    count: u32,
    /// Whether one of those that failed may have run the tool.
    may_have_run: bool,
}

impl Tried {
    /// A call's last error, as it is after all that was before, and what was left of the tenant's rates.
    pub(super) fn then(&self, last: CallError, standing: Option<Standing>) -> CallError {
        let standing = standing.unwrap_or_default();
        let attempts = self.count;
        if attempts == 0 && standing.is_empty() {
            return last;
        }
        let executed = if self.may_have_run { Executed::Unknown } else { last.executed() };
        CallError::Attempted { attempts, executed, standing, last: Box::new(last) }
    }
}

/// The attempts at one call that one process has.
pub(super) struct Attempts<'a> {
    server: &'a Backend,
    /// What is over at this time is over for good.
    deadline: Instant,
    /// Whether doing it twice does no harm.
    is_repeatable: bool,
    /// These and those before.
    tried: &'a mut Tried,
    /// The copy that failed it last.
    pub(super) avoid: Option<usize>,
}

impl<'a> Attempts<'a> {
    /// The first one. What may have run elsewhere is refused where it must not be repeated.
    pub(super) fn new(
        server: &'a Backend,
        tool: Option<&Tool>,
        deadline: Instant,
        tried: &'a mut Tried,
    ) -> Result<Self, CallError> {
        server.retries().note_call();
        let is_repeatable =
            server.config().retry == Retry::Safe && tool.is_some_and(Tool::is_repeatable);
        if tried.may_have_run && !is_repeatable {
            let reason = "the gateway stopped it".to_owned();
            return Err(CallError::BackendExited { reason, executed: Executed::Unknown });
        }
        tried.count += 1;
        Ok(Self { server, deadline, is_repeatable, tried, avoid: None })
    }

    /// How many there were, the one under way included.
    pub(super) fn count(&self) -> u32 {
        self.tried.count
    }

    /// When the answer to this attempt is no longer of use.
    pub(super) fn deadline(&self) -> Instant {
        if !self.is_repeatable || self.tried.count >= ATTEMPTS_MAX {
            return self.deadline;
        }
        let now = Instant::now();
        let left = self.deadline.duration_since(now);
        let attempt = self.server.config().attempt_timeout.unwrap_or(left / 3);
        (now + attempt).min(self.deadline)
    }

    /// When to try again after this error, if at all.
    pub(super) fn again(&mut self, error: &CallError) -> Option<Instant> {
        if self.tried.count >= ATTEMPTS_MAX || !self.may_repeat(error) {
            return None;
        }
        let pause = PAUSE * (1 << (self.tried.count - 1));
        let pause = pause.mul_f64(rand::rng().random_range(0.5..=1.0));
        let now = Instant::now();
        // Nobody knows better than the server itself, or whoever keeps it.
        let until = match (error, self.server.state()) {
            (CallError::BackendHttp { retry_after: Some(after), .. }, _) => now + *after,
            // Nobody waits in quarantine. Who has not been told so yet will be by the next attempt, at once.
            (CallError::ServerUnavailable { .. }, State::Quarantined { .. }) => return None,
            (_, State::Backoff { until, .. }) => until.max(now),
            _ => now,
        };
        let at = until + pause;
        // What is spent is spent: last of all.
        if at >= self.deadline || !self.may_spend(error) {
            return None;
        }
        self.tried.count += 1;
        self.tried.may_have_run |= error.executed() == Executed::Unknown;
        self.server.metrics().retries.inc();
        Some(at)
    }

    fn may_repeat(&self, error: &CallError) -> bool {
        let failed = match error {
            CallError::BackendExited { .. }
            | CallError::BackendProtocol { .. }
            // It was there when the call came, and was not when it was to be written.
            | CallError::ServerUnavailable { .. } => true,
            // Its copy was replaced at that moment.
            CallError::ShuttingDown => !matches!(self.server.state(), State::Stopped),
            // Most refusals would be the same again.
            CallError::BackendHttp { .. } => {
                error.is_retryable() || error.executed() == Executed::Unknown
            }
            // The attempt's deadline, not the call's.
            CallError::DeadlineExceeded { .. } => self.is_repeatable,
            _ => false,
        };
        failed && (error.executed() == Executed::No || self.is_repeatable)
    }

    /// Only what may be executed twice counts against the budget.
    fn may_spend(&self, error: &CallError) -> bool {
        error.executed() == Executed::No || self.server.retries().spend()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::testing::{backend, set_state};
    use crate::config::{Program, Server, Transport};

    const MINUTE: Duration = Duration::from_secs(60);

    /// The next attempt of a call that has failed so, at a server that stands there.
    fn next_after(errors: &[CallError], state: State) -> Option<Duration> {
        let server = backend(Server::new(Transport::Stdio(Program::default())));
        set_state(&server, state);
        let (now, mut tried) = (Instant::now(), Tried::default());
        let mut attempts = Attempts::new(&server, None, now + MINUTE, &mut tried).unwrap();
        let mut next = None;
        for error in errors {
            next = attempts.again(error);
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
    async fn nobody_waits_for_the_end_of_a_quarantine() {
        let until = Instant::now() + MINUTE / 2;
        let quarantined = || State::Quarantined { until, reason: "failed".into() };
        assert_eq!(next_after(&[refused()], quarantined()), None);
        // It is told why by the next attempt.
        assert!(next_after(&[never_written()], quarantined()).is_some_and(|after| after <= PAUSE));
        // What is started again sooner is waited for.
        let backoff = State::Backoff { until, reason: "failed".into() };
        assert!(next_after(&[refused()], backoff).is_some_and(|after| after > MINUTE / 2));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_differ() {
        for count in 1..ATTEMPTS_MAX {
            let errors: Vec<_> = (0..count).map(|_| never_written()).collect();
            let pauses = || next_after(&errors, State::Starting).unwrap();
            let pauses: Vec<_> = (0..100).map(|_| pauses()).collect();
            let longest = PAUSE * (1 << (count - 1));
            let (low, high) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
            assert!(*low >= longest / 2 && *high <= longest, "{low:?} to {high:?} of {longest:?}");
            assert!(*high - *low > longest / 4, "{low:?} to {high:?} of {longest:?}");
        }
        let too_many: Vec<_> = (0..ATTEMPTS_MAX).map(|_| never_written()).collect();
        assert_eq!(next_after(&too_many, State::Starting), None);
    }
}
