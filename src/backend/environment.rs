//! The part of a gateway that all its backends share.

use std::collections::HashMap;
use std::num::NonZero;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::CANCEL_GRACE;
use super::connection::request_ids::{IdSource, RequestIds};
use super::instance::pins::Pins;
use super::queue::RateGate;
use super::supervise::restart_policy::Budget;
use crate::common::ids::ServerId;
use crate::common::offload::Offload;
use crate::common::policy::Rate;
use crate::telemetry::metrics::Metrics;

/// Bounds of how many instances of shared servers start at once, which is half the number of
/// processors. Most servers never work harder than at their start, and calls need processors, too.
const STARTS: RangeInclusive<usize> = 1..=8;
/// How many start at once of one server whose processes callers start.
const OWN_STARTS_MAX: usize = 4;

/// The rate and gate of each server, as long as a backend needs it.
type Gates = HashMap<ServerId, (Rate, Weak<RateGate>)>;

#[derive(Clone)]
pub struct Environment {
    /// This executable, which also runs as the guard of each server.
    pub own_program: PathBuf,
    /// The length of the longest accepted answer, in bytes.
    pub max_response: usize,
    /// See [`CANCEL_GRACE`].
    pub cancel_grace: Duration,
    /// Makes the source of ids for each run of an instance.
    pub ids: fn() -> Arc<dyn IdSource>,
    pub budget: Budget,
    starts: Arc<Semaphore>,
    gates: Arc<Mutex<Gates>>,
    pub metrics: Metrics,
    pub pins: Arc<Pins>,
    /// Runs long computations.
    pub offload: Offload,
}

impl Environment {
    /// Creates one with nothing pinned.
    pub fn new(own_program: PathBuf, max_response: usize, metrics: Metrics) -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        let starts = Semaphore::new((processors / 2).clamp(*STARTS.start(), *STARTS.end()));
        Self {
            own_program,
            max_response,
            cancel_grace: CANCEL_GRACE,
            ids: || Arc::new(RequestIds::default()),
            budget: Budget::default(),
            starts: Arc::new(starts),
            gates: Arc::default(),
            metrics,
            pins: Arc::default(),
            offload: Offload::new(),
        }
    }

    /// Returns the gate that keeps a server's rate. Backends of the same name and rate share it,
    /// those of several tenants as well as the two of a rollover.
    pub(super) fn gate(&self, server: &ServerId, rate: Option<Rate>) -> Option<Arc<RateGate>> {
        let rate = rate?;
        let mut gates = self.gates.lock();
        let known = gates.get(server).filter(|(known, _)| *known == rate);
        if let Some(gate) = known.and_then(|(_, gate)| gate.upgrade()) {
            return Some(gate);
        }
        let gate = Arc::new(RateGate::new(rate));
        gates.insert(server.clone(), (rate, Arc::downgrade(&gate)));
        Some(gate)
    }

    /// Waits for the permit to start a process.
    pub(super) async fn start_permit(&self) -> Option<SemaphorePermit<'_>> {
        self.starts.acquire().await.ok()
    }

    /// Returns a clone with start permits of its own: processes that callers start, however slow,
    /// hold up no other server.
    pub fn with_own_starts(self) -> Self {
        Self { starts: Arc::new(Semaphore::new(OWN_STARTS_MAX)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::testing::environment;

    fn all_permits(environment: &Environment) -> Vec<SemaphorePermit<'_>> {
        let permit = || environment.start_permit().now_or_never();
        std::iter::from_fn(permit).map(Option::unwrap).collect()
    }

    #[test]
    fn only_so_many_start_at_once_and_the_next_when_one_has() {
        let environment = environment();
        let mut permits = all_permits(&environment);
        let processors = available_parallelism().unwrap().get();
        assert_eq!(permits.len(), (processors / 2).clamp(1, 8));
        permits.pop();
        assert_eq!(all_permits(&environment).len(), 1);
    }

    #[test]
    fn processes_that_callers_start_have_permits_of_their_own() {
        let environment = environment();
        let own = environment.clone().with_own_starts();
        let (all, owns) = (all_permits(&environment), all_permits(&own));
        assert!(!all.is_empty());
        assert_eq!(owns.len(), 4);
    }
}
