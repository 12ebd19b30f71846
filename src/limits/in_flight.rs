//! Calls in flight: counted when they begin, until they are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Refusal;

/// How many calls are in flight, and how many may be. Copies count together, each by its own limit.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    count: Arc<AtomicU32>,
    max: Option<u32>,
}

/// One call that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicU32>);

/// The place of one call within the limits of its tenant, until it is dropped. It goes with the call, also when nobody
/// waits for that any more: what a server still works on counts.
#[derive(Debug)]
pub struct Admission {
    pub(super) _tenant: Permit,
    /// Of limits for single servers and tools.
    pub(super) scoped: Vec<Permit>,
}

impl InFlight {
    /// The same calls under another limit. Those in flight stay, also if there are more of them than the limit.
    pub fn with_max(&self, max: Option<u32>) -> Self {
        Self { count: self.count.clone(), max }
    }

    /// Whether there is a limit at all.
    pub fn is_limited(&self) -> bool {
        self.max.is_some()
    }

    /// Counts one more call, if there is a place for it.
    pub fn take(&self, scope: &str) -> Result<Permit, Refusal> {
        let limit = self.max.unwrap_or(u32::MAX);
        // Not added first and looked at then: a call that is refused must not take the place of one that is not.
        self.count
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < limit).then(|| count + 1)
            })
            .map(|_| Permit(self.count.clone()))
            .map_err(|_| Refusal::Busy { scope: scope.to_owned(), limit })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
