//! Writes times for people.

use std::time::Duration;

use super::limit_use::millis_up;

/// Returns a time in the units that people read, rounded up: whoever waits must not come too soon.
pub fn in_words(duration: Duration) -> String {
    let millis = millis_up(duration);
    let (tenths, seconds, minutes) =
        (millis.div_ceil(100), millis.div_ceil(1000), millis.div_ceil(60_000));
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", tenths / 10, tenths % 10),
        60_000..3_600_000 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_seconds_minutes_and_hours() {
        for (micros, text) in [
            (0, "0 ms"),
            (162_001, "163 ms"),
            (1_600_000, "1.6 s"),
            (59_900_001, "60.0 s"),
            (60_000_000, "1 min 0 s"),
            (2_713_200_000, "45 min 14 s"),
            (7_260_000_000, "2 h 1 min"),
        ] {
            assert_eq!(in_words(Duration::from_micros(micros)), text);
        }
    }
}
