//! The time that rates in memory go by.

use governor::clock::{Clock as _, QuantaClock, Reference};
use governor::nanos::Nanos;

/// Nanoseconds since it was made. Reads the processor's counter: a system call, even the cheapest, would be most
/// of what a check costs.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    /// The machine's.
    Real {
        /// Where it is read.
        source: QuantaClock,
        /// What it read first.
        start: <QuantaClock as governor::clock::Clock>::Instant,
    },
    /// A test's.
    #[cfg(test)]
    Fake(governor::clock::FakeRelativeClock),
}

impl Clock {
    /// The machine's clock.
    pub fn real() -> Self {
        let source = QuantaClock::default();
        let start = source.now();
        Self::Real { source, start }
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        match self {
            Self::Real { source, start } => source.now().duration_since(*start),
            #[cfg(test)]
            Self::Fake(clock) => clock.now(),
        }
    }
}
