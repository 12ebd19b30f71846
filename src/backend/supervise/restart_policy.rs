//! Decides when an instance that has failed is restarted. No other place does.
//!
//! ```text
//!   Idle ────────first call──────────────────────────▶ Starting
//!   Starting ────handshake done, tools listed────────▶ Ready
//!   Starting ────did not start───────────────────────▶ Backoff
//!   Starting ────fails for good──────────────────────▶ Quarantined
//!
//!   Ready ───────failed for the first time───────────▶ Starting, restarted within 20 ms
//!   Ready ───────failed again────────────────────────▶ Backoff
//!   Ready ───────failed too often────────────────────▶ Quarantined
//!   Ready ───────recycled, next run is ready─────────▶ Ready
//!   Ready ───────recycled, `exclusive`───────────────▶ Draining ──drained──▶ Starting
//!
//!   Backoff ─────delay over, last run was ready──────▶ Starting
//!   Backoff (after a failed start), Quarantined
//!           ─────delay over, started─────────────────▶ Ready
//!           ─────delay over, did not start───────────▶ Backoff; too often: Quarantined
//!
//!   any of them ─stop────────────────────────────────▶ Stopped
//! ```
//!
//! Callers wait for an instance that is Starting. They do not wait for a start after one that
//! failed: the instance stays in Backoff or Quarantined while it starts, and callers are refused
//! until it is Ready.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

/// A healthy instance that fails is restarted within this time, at random: those that failed
/// together do not start together.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The wait after the second failure in a row. It doubles with each.
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The pause between attempts to reach a server with a `url`.
const CONNECT_EVERY: Duration = Duration::from_secs(5);

/// How often an instance may be started.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Starts `within` a time; the next one is made in quarantine.
    pub starts: usize,
    pub within: Duration,
    /// The time between starts in quarantine.
    pub probe_every: Duration,
    /// An instance that stayed up this long is healthy: its next failure counts as the first.
    pub healthy_after: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            starts: 5,
            within: Duration::from_secs(10),
            probe_every: Duration::from_secs(30),
            healthy_after: Duration::from_secs(10),
        }
    }
}

impl Budget {
    /// Returns the budget for a server with a `url`: asking it costs less than starting a process.
    pub fn of_connecting(self) -> Self {
        Self { probe_every: self.probe_every.min(CONNECT_EVERY), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// No start will succeed, as far as can be told.
    ForGood,
    ToStart,
    /// The instance was ready for this long.
    After(Duration),
}

/// When an instance is restarted, and what callers do until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStart {
    /// Callers wait.
    Restart(Instant),
    /// Callers are refused.
    Backoff(Instant),
    /// Callers are refused, for long.
    Quarantine(Instant),
}

impl NextStart {
    pub fn at(self) -> Instant {
        match self {
            Self::Restart(at) | Self::Backoff(at) | Self::Quarantine(at) => at,
        }
    }
}

/// Remembers the starts of one instance. Planned ones do not count.
#[derive(Debug)]
pub struct RestartPolicy {
    budget: Budget,
    /// The latest, as many as the budget has.
    starts: VecDeque<Instant>,
    failures: u32,
    in_quarantine: bool,
    has_not_started: bool,
}

impl RestartPolicy {
    pub fn new(budget: Budget) -> Self {
        let (starts, failures) = (VecDeque::new(), 0);
        Self { budget, starts, failures, in_quarantine: false, has_not_started: false }
    }

    pub fn note_start(&mut self, now: Instant) {
        if self.starts.len() == self.budget.starts {
            self.starts.pop_front();
        }
        self.starts.push_back(now);
    }

    /// Returns whether callers wait for the start that is next, or under way. It may take as long
    /// as the last one, so after a start that failed they do not.
    pub fn is_awaited(&self) -> bool {
        !self.in_quarantine && !self.has_not_started
    }

    /// Decides about the start after a failure that does not count, since a tenant may have caused
    /// it. Whoever pardons failures bounds how many.
    pub fn after_pardon(&mut self, up: Duration, now: Instant) -> NextStart {
        self.starts.pop_back();
        self.has_not_started = false;
        if up >= self.budget.healthy_after {
            self.failures = 0;
            self.in_quarantine = false;
        }
        NextStart::Restart(now + AT_ONCE.mul_f64(rand::rng().random_range(0.5..=1.0)))
    }

    /// Decides about the start after a failure.
    pub fn after(&mut self, failed: Failed, now: Instant) -> NextStart {
        if matches!(failed, Failed::After(up) if up >= self.budget.healthy_after) {
            self.failures = 0;
            self.in_quarantine = false;
        }
        self.has_not_started = !matches!(failed, Failed::After(_));
        self.failures += 1;
        let wait = match self.failures {
            1 => AT_ONCE,
            n => BACKOFF.saturating_mul(1 << (n - 2).min(20)).min(BACKOFF_MAX),
        };
        let at = now + wait.mul_f64(rand::rng().random_range(0.5..=1.0));
        let is_spent = self.starts.len() == self.budget.starts
            && self.starts.front().is_some_and(|first| at < *first + self.budget.within);
        // One that takes its time to fail is no better.
        let is_hopeless = self.failures as usize >= self.budget.starts;
        if failed == Failed::ForGood || is_spent || is_hopeless || self.in_quarantine {
            self.in_quarantine = true;
            // Never earlier, but not all instances at once either.
            let wait = self.budget.probe_every.mul_f64(rand::rng().random_range(1.0..=1.1));
            return NextStart::Quarantine(now + wait);
        }
        match failed {
            Failed::After(_) if self.failures == 1 => NextStart::Restart(at),
            _ => NextStart::Backoff(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Starts it whenever it may be, and has it fail so; gives the times of all starts.
    fn starts(failed: impl Fn(usize) -> (Duration, Failed), time: Duration) -> Vec<Duration> {
        let begin = Instant::now();
        let mut policy = RestartPolicy::new(Budget::default());
        let (mut now, mut starts) = (begin, vec![]);
        while now < begin + time {
            policy.note_start(now);
            starts.push(now - begin);
            let (took, failed) = failed(starts.len());
            now = policy.after(failed, now + took).at();
        }
        starts
    }

    #[test]
    fn one_that_always_fails_is_started_five_times_in_ten_seconds_then_once_in_thirty() {
        let starts = starts(|_| (Duration::ZERO, Failed::ToStart), seconds(600));
        let early = starts.iter().filter(|at| **at < seconds(10)).count();
        assert_eq!(early, 5, "{starts:?}");
        let later = starts.windows(2).skip(4);
        assert!(later.clone().count() > 10);
        for pair in later {
            assert!(pair[1] - pair[0] >= seconds(30), "{starts:?}");
        }
    }

    #[test]
    fn one_that_takes_its_time_to_fail_is_no_better() {
        let starts = starts(|_| (seconds(3), Failed::ToStart), seconds(600));
        for pair in starts.windows(2).skip(4) {
            assert!(pair[1] - pair[0] >= seconds(30), "{starts:?}");
        }
    }

    #[test]
    fn one_that_cannot_start_is_tried_once_in_thirty_seconds_from_the_first() {
        let starts = starts(|_| (Duration::ZERO, Failed::ForGood), seconds(100));
        assert_eq!(starts.len(), 4, "{starts:?}");
    }

    #[test]
    fn a_healthy_one_that_fails_is_back_at_once() {
        let mut policy = RestartPolicy::new(Budget::default());
        let now = Instant::now();
        policy.note_start(now);
        for n in 1..100 {
            let now = now + seconds(60 * n);
            let next = policy.after(Failed::After(seconds(60)), now);
            assert!(matches!(next, NextStart::Restart(at) if at <= now + AT_ONCE), "{next:?}");
            policy.note_start(next.at());
        }
    }

    #[test]
    fn nobody_waits_for_the_second_start_of_one_that_did_not_start() {
        let mut policy = RestartPolicy::new(Budget::default());
        let now = Instant::now();
        policy.note_start(now);
        let next = policy.after(Failed::ToStart, now + seconds(60));
        assert!(matches!(next, NextStart::Backoff(_)), "{next:?}");
    }

    #[test]
    fn callers_wait_for_a_start_unless_the_last_one_failed_or_it_is_in_quarantine() {
        let mut policy = RestartPolicy::new(Budget::default());
        let now = Instant::now();
        assert!(policy.is_awaited(), "the first");
        policy.after(Failed::ToStart, now);
        assert!(!policy.is_awaited(), "the last one failed");
        policy.after(Failed::After(seconds(1)), now + seconds(20));
        assert!(policy.is_awaited(), "the last one started");
        policy.after(Failed::ForGood, now + seconds(40));
        policy.after(Failed::After(seconds(1)), now + seconds(80));
        assert!(!policy.is_awaited(), "it is in quarantine still");
        policy.after(Failed::After(seconds(60)), now + seconds(200));
        assert!(policy.is_awaited(), "it was healthy");
    }

    #[test]
    fn failures_that_are_pardoned_do_not_count() {
        let (mut policy, now) = (RestartPolicy::new(Budget::default()), Instant::now());
        policy.note_start(now);
        let first = policy.after(Failed::After(seconds(1)), now);
        assert!(matches!(first, NextStart::Restart(_)));
        for _ in 0..100 {
            policy.note_start(now);
            let next = policy.after_pardon(seconds(1), now);
            assert!(matches!(next, NextStart::Restart(at) if at <= now + AT_ONCE), "{next:?}");
            assert!(policy.is_awaited());
        }
        policy.note_start(now);
        assert!(matches!(policy.after(Failed::After(seconds(1)), now), NextStart::Backoff(_)));
    }

    #[test]
    fn one_that_heals_in_quarantine_is_out_of_it() {
        let mut policy = RestartPolicy::new(Budget::default());
        let now = Instant::now();
        assert!(matches!(policy.after(Failed::ForGood, now), NextStart::Quarantine(_)));
        let still = policy.after(Failed::After(seconds(1)), now + seconds(40));
        assert!(matches!(still, NextStart::Quarantine(_)));
        let healed = policy.after(Failed::After(seconds(11)), now + seconds(90));
        assert!(matches!(healed, NextStart::Restart(_)));
    }

    #[test]
    fn waits_are_within_their_bounds_and_differ() {
        let budget = Budget { starts: 10, ..Budget::default() };
        let wait = |failures: u32, failed: Failed| {
            let (mut policy, now) = (RestartPolicy::new(budget), Instant::now());
            let waits = (0..failures).map(|_| policy.after(failed, now).at() - now);
            waits.last().unwrap()
        };
        let expect = |failures: u32, failed: Failed, from: Duration, to: Duration| {
            let waits: Vec<_> = (0..100).map(|_| wait(failures, failed)).collect();
            let (low, high) = (*waits.iter().min().unwrap(), *waits.iter().max().unwrap());
            assert!(from <= low && high <= to, "{low:?} to {high:?}, not {from:?} to {to:?}");
            assert!(high - low > (to - from) / 2, "all near {low:?}");
        };
        expect(1, Failed::After(seconds(60)), AT_ONCE / 2, AT_ONCE);
        for failures in 2..=9 {
            let wait = BACKOFF * (1 << (failures - 2));
            expect(failures, Failed::ToStart, wait / 2, wait);
        }
        let probe_every = budget.probe_every;
        expect(1, Failed::ForGood, probe_every, probe_every.mul_f64(1.1));
    }

    proptest! {
        #[test]
        fn never_more_than_five_starts_in_any_ten_seconds(
            ups in prop::collection::vec(0_u64..15_000, 1..50),
        ) {
            let starts = starts(
                |n| {
                    let up = Duration::from_millis(ups[n % ups.len()]);
                    (up, Failed::After(up))
                },
                seconds(300),
            );
            for six in starts.windows(6) {
                prop_assert!(six[5] - six[0] >= seconds(10), "{:?}", six);
            }
        }
    }
}
