//! A rate as numbers: the interval in which one call is earned, and the burst.
//!
//! All calculations use the *debt*: the time until all calls made are earned back. A call adds one
//! interval to it, and time reduces it. A call that would exceed the capacity is refused. This is
//! GCRA, the leaky bucket as a meter, which needs one number for each rate.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::common::policy::Rate;

/// Lists may come this many times as often as calls.
const LISTS_PER_CALL: u32 = 10;
/// A tenant may have ten lists a second, however low its rate: many clients list at every connect.
const LIST_INTERVAL_MAX: Duration = Duration::from_millis(100);
/// Ten clients connect at once, each with five lists.
const LIST_BURST_MIN: u32 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// One call is earned in each interval.
    pub interval: Duration,
    /// Calls that may come at once.
    pub burst: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    /// Calls that may come now.
    pub calls: u32,
    /// Until the next call may come, if none may now; else until all may.
    pub reset: Duration,
}

impl Quota {
    pub fn new(rate: Rate, burst: Option<u32>) -> Self {
        let burst = NonZeroU32::new(burst.unwrap_or(rate.count())).unwrap_or(NonZeroU32::MIN);
        // Rounded down to nanoseconds, so that a caller at exactly this rate is never refused.
        Self { interval: rate.period() / rate.count(), burst }
    }

    /// Returns one of `replicas` equal shares, with a burst of at least one.
    pub fn divided(self, replicas: u32) -> Self {
        let burst = NonZeroU32::new(self.burst.get() / replicas).unwrap_or(NonZeroU32::MIN);
        Self { interval: self.interval * replicas, burst }
    }

    /// Returns the quota of lists for a tenant with this quota of calls.
    pub fn of_lists(self) -> Self {
        let burst = self.burst.get().saturating_mul(LISTS_PER_CALL).max(LIST_BURST_MIN);
        Self {
            interval: (self.interval / LISTS_PER_CALL).min(LIST_INTERVAL_MAX),
            burst: NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The time in which a whole burst is earned.
    pub fn capacity(self) -> Duration {
        self.interval * self.burst.get()
    }

    /// Returns how long a call must wait at this debt.
    pub fn wait(self, owed: Duration) -> Duration {
        (owed + self.interval).saturating_sub(self.capacity())
    }

    pub fn remaining(self, owed: Duration) -> Remaining {
        let calls = self.capacity().saturating_sub(owed).as_nanos() / self.interval.as_nanos();
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        Remaining { calls, reset: if calls == 0 { self.wait(owed) } else { owed } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(rate: &str, burst: Option<u32>) -> Quota {
        Quota::new(rate.parse().unwrap(), burst)
    }

    #[test]
    fn the_fastest_and_the_slowest_rate_are_exact() {
        assert_eq!(quota("1000000/s", None).interval, Duration::from_micros(1));
        assert_eq!(quota("1/h", None).interval, Duration::from_secs(3600));
        // The slowest of all: a century.
        let slow = quota("1/h", Some(1_000_000));
        assert_eq!(slow.remaining(slow.capacity() - slow.interval).calls, 1);
    }

    #[test]
    fn a_caller_at_the_exact_rate_is_never_too_early() {
        for rate in ["3/s", "7/min", "999999/s"] {
            let rate: Rate = rate.parse().unwrap();
            let interval = Quota::new(rate, None).interval;
            assert!(interval * rate.count() <= rate.period(), "{rate}");
            assert!(interval * rate.count() > rate.period().mul_f64(0.999), "{rate}");
        }
    }

    #[test]
    fn the_remaining_calls_follow_from_the_debt() {
        let quota = quota("10/s", Some(4));
        let ms = Duration::from_millis;
        assert_eq!(quota.remaining(Duration::ZERO), Remaining { calls: 4, reset: ms(0) });
        assert_eq!(quota.remaining(ms(101)), Remaining { calls: 2, reset: ms(101) });
        assert_eq!(quota.remaining(ms(301)), Remaining { calls: 0, reset: ms(1) });
        assert_eq!(quota.remaining(ms(400)), Remaining { calls: 0, reset: ms(100) });
        assert_eq!((quota.wait(ms(300)), quota.wait(ms(400))), (ms(0), ms(100)));
    }

    #[test]
    fn lists_may_come_ten_times_as_often_as_calls_and_ten_times_a_second_at_least() {
        let lists = |rate, burst| quota(rate, burst).of_lists();
        let of = |ms, burst| Quota {
            interval: Duration::from_millis(ms),
            burst: NonZeroU32::new(burst).unwrap(),
        };
        assert_eq!(lists("1/h", None), of(100, 50));
        assert_eq!(lists("1/s", Some(4)), of(100, 50));
        assert_eq!(lists("100/s", Some(200)), of(1, 2000));
    }

    #[test]
    fn the_shares_of_a_quota_add_up_to_it() {
        let part = quota("10/s", Some(5)).divided(2);
        assert_eq!((part.interval, part.burst.get()), (Duration::from_millis(200), 2));
        assert_eq!(quota("10/s", Some(1)).divided(3).burst.get(), 1);
    }
}
