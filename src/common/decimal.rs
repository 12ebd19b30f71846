//! Writes numbers for callers. Every answer has several, and `format!` costs more than the rest of
//! its headers.

use std::time::Duration;

pub fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Writes milliseconds with three decimals.
pub fn push_millis(text: &mut String, duration: Duration) {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    push_number(text, micros / 1000);
    // The leading 1 keeps the zeros after the point.
    let mut buffer = itoa::Buffer::new();
    let decimals = buffer.format(1000 + micros % 1000);
    text.push('.');
    text.push_str(&decimals[1..]);
}

/// Returns milliseconds with three decimals.
pub fn millis(duration: Duration) -> String {
    let mut text = String::with_capacity(12);
    push_millis(&mut text, duration);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_have_three_decimals() {
        for (micros, text) in [(0, "0.000"), (7, "0.007"), (1_234_050, "1234.050")] {
            assert_eq!(millis(Duration::from_micros(micros)), text);
        }
    }
}
