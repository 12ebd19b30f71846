//! Writes times for callers.

use std::fmt::{self, Display};
use std::time::Duration;

/// Writes milliseconds with three decimals, by integers: every call is answered with two of them.
pub fn millis(duration: Duration) -> impl Display {
    let micros = duration.as_micros();
    fmt::from_fn(move |f| write!(f, "{}.{:03}", micros / 1000, micros % 1000))
}
