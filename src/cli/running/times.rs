//! Times and durations, as commands read and show them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::config;

/// Parses a duration, as the configuration has them.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    config::duration(text).filter(|duration| !duration.is_zero()).ok_or_else(|| {
        format!("`{text}` is not a time: write a number with ms, s, min or h, at most 24h")
    })
}

/// Parses a moment, as `--from` and `--to` take it.
pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("`{text}` is not a time: write it as 2026-11-01T00:00:00Z"))
}

/// Returns the moment in a member of JSON.
pub(super) fn moment_of(json: &Value) -> Option<Timestamp> {
    json.as_str()?.parse().ok()
}

/// Shows how long ago a moment was: `12 s`, `5 min`, `3 h`, `4 d`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let age = now.duration_since(since).max(SignedDuration::ZERO);
    match age.as_secs() {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        for bad in ["", "30", "0s", "25h", "30 parsecs"] {
            let told = "is not a time: write a number with ms, s, min or h, at most 24h";
            assert_eq!(duration(bad), Err(format!("`{bad}` {told}")));
        }
    }

    #[test]
    fn ages_have_one_unit() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 9);
        let ago = |seconds| age(now - SignedDuration::from_secs(seconds), now);
        assert_eq!(
            [59, 60, 3_599, 3_600, 86_400].map(ago),
            ["59 s", "1 min", "59 min", "1 h", "1 d"]
        );
        assert_eq!(ago(-5), "0 s");
    }
}
