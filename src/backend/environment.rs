//! What all backends of one gateway share.

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
use super::queue::Gate;
use super::supervise::restart_policy::Budget;
use crate::common::ids::ServerId;
use crate::common::offload::Offload;
use crate::common::policy::Rate;
use crate::telemetry::metrics::Metrics;

/// Copies that are being started at once, of all servers that are shared: half as many as there are processors, within these
/// bounds. Starting is the most work that most of them ever do, and others' calls need the processors too.
const STARTS: RangeInclusive<usize> = 1..=8;
/// The same of one server whose processes callers start.
const OWN_STARTS_MAX: usize = 4;

/// By the server's name: its rate, and what keeps it, as long as there is a backend that needs it.
type Gates = HashMap<ServerId, (Rate, Weak<Gate>)>;

/// What all backends of one gateway share.
#[derive(Clone)]
pub struct Environment {
    /// This executable, which is run again as the guard of each server.
    pub own_program: PathBuf,
    /// The longest answer that is accepted.
    pub max_response: usize,
    /// See [`CANCEL_GRACE`].
    pub cancel_grace: Duration,
    /// Makes the source of ids for each run of a server.
    pub ids: fn() -> Arc<dyn IdSource>,
    /// How often a copy may be started.
    pub budget: Budget,
    /// Who may start one now.
    starts: Arc<Semaphore>,
    /// What keeps each server's rate.
    gates: Arc<Mutex<Gates>>,
    /// What is counted.
    pub metrics: Metrics,
    /// Which tools are held back.
    pub pins: Arc<Pins>,
    /// Runs long computations.
    pub offload: Offload,
}

impl Environment {
    /// The environment of a gateway in earnest, with nothing pinned.
    pub fn new(own_program: PathBuf, max_response: usize, metrics: Metrics) -> Self {
        let ids: fn() -> Arc<dyn IdSource> = || Arc::new(RequestIds::new());
        let (cancel_grace, budget, pins) = (CANCEL_GRACE, Budget::default(), Arc::default());
        let processors = available_parallelism().map_or(1, NonZero::get);
        let starts = Semaphore::new((processors / 2).clamp(*STARTS.start(), *STARTS.end()));
        let (starts, gates) = (Arc::new(starts), Arc::default());
        Self {
            own_program,
            max_response,
            cancel_grace,
            ids,
            budget,
            starts,
            gates,
            metrics,
            pins,
            offload: Offload::new(),
        }
    }

    /// What keeps a server's rate, if it has one: the same for all backends of that name and rate that there are, be they
    /// of several tenants or the old one and the new.
    pub(super) fn gate(&self, server: &ServerId, rate: Option<Rate>) -> Option<Arc<Gate>> {
        let rate = rate?;
        let mut gates = self.gates.lock();
        let known = gates.get(server).filter(|(known, _)| *known == rate);
        if let Some(gate) = known.and_then(|(_, gate)| gate.upgrade()) {
            return Some(gate);
        }
        let gate = Arc::new(Gate::new(rate));
        gates.insert(server.clone(), (rate, Arc::downgrade(&gate)));
        Some(gate)
    }

    /// A turn to start a process, until it is dropped.
    pub(super) async fn turn_to_start(&self) -> Option<SemaphorePermit<'_>> {
        self.starts.acquire().await.ok()
    }

    /// The same with turns of its own to start: whoever has processes started, however slow, holds up no other server.
    pub fn with_own_starts(self) -> Self {
        Self { starts: Arc::new(Semaphore::new(OWN_STARTS_MAX)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::backend::testing::environment;

    /// How many may start now; they do until dropped.
    fn all_turns(environment: &Environment) -> Vec<SemaphorePermit<'_>> {
        let turn = || environment.turn_to_start().now_or_never();
        std::iter::from_fn(turn).map(Option::unwrap).collect()
    }

    #[test]
    fn only_so_many_start_at_once_and_the_next_when_one_has() {
        let environment = environment();
        let mut turns = all_turns(&environment);
        let processors = available_parallelism().unwrap().get();
        assert_eq!(turns.len(), (processors / 2).clamp(1, 8));
        turns.pop();
        assert_eq!(all_turns(&environment).len(), 1);
    }

    #[test]
    fn those_whom_callers_start_have_turns_of_their_own() {
        let environment = environment();
        let own = environment.clone().with_own_starts();
        let (all, owns) = (all_turns(&environment), all_turns(&own));
        assert!(!all.is_empty());
        assert_eq!(owns.len(), 4);
    }
}
