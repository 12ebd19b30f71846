//! The clock of rates in memory.

use governor::clock::{Clock as _, QuantaClock, Reference};
use governor::nanos::Nanos;

/// Nanoseconds since its creation. Reads the processor's counter: a system call, even the cheapest,
/// would be most of the cost of a check.
#[derive(Clone, Debug)]
pub(super) enum Clock {
    Real {
        source: QuantaClock,
        start: <QuantaClock as governor::clock::Clock>::Instant,
    },
    #[cfg(test)]
    Fake(governor::clock::FakeRelativeClock),
}

impl Clock {
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
