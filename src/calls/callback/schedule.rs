//! The times at which a delivery is tried: often at first, then seldom, for a day. Pure.

use std::time::Duration;

/// The pauses between attempts, in seconds. The sum is somewhat more than a day.
const PAUSES_S: [u64; 12] = [5, 15, 60, 300, 900, 1800, 3600, 7200, 10_800, 14_400, 21_600, 28_800];
/// A receiver that asks for a longer pause is tried again after this one.
const PAUSE_MAX: Duration = Duration::from_secs(8 * 3600);
/// Deliveries of one moment must not come back in one moment: a tenth more at most.
const SPREAD: f64 = 0.1;

/// Returns the pause after the `failed`-th attempt, from 1, or `None` if it was the last.
/// `retry_after` is the pause that the receiver asked for. `random` is from 0 to 1.
pub fn pause_after(failed: u32, retry_after: Option<Duration>, random: f64) -> Option<Duration> {
    let seconds = PAUSES_S.get(failed.saturating_sub(1) as usize)?;
    let pause = Duration::from_secs(*seconds).mul_f64(1.0 + SPREAD * random.clamp(0.0, 1.0));
    Some(pause.max(retry_after.unwrap_or_default().min(PAUSE_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_spread_over_a_day_and_end() {
        let pauses: Vec<Duration> =
            (1..).map_while(|failed| pause_after(failed, None, 0.0)).collect();
        let total: Duration = pauses.iter().sum();
        assert!(pauses.is_sorted());
        assert!(total > Duration::from_secs(24 * 3600), "{total:?}");
        assert!(total < Duration::from_secs(26 * 3600), "{total:?}");
        assert_eq!(pause_after(pauses.len() as u32 + 1, Some(PAUSE_MAX), 0.0), None);
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_pause_within_bounds() {
        let asked = |seconds| pause_after(1, Some(Duration::from_secs(seconds)), 0.0).unwrap();
        assert_eq!(asked(1), Duration::from_secs(5));
        assert_eq!(asked(120), Duration::from_secs(120));
        assert_eq!(asked(1_000_000), PAUSE_MAX);
    }

    #[test]
    fn pauses_differ_a_little() {
        assert_eq!(pause_after(3, None, 1.0).unwrap(), Duration::from_secs(66));
    }
}
